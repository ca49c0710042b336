"""What an experiment is: a config, a run, a picture and claims; and how it is found by its id.

An experiment module has

    a docstring whose first line says what is claimed, and where
    COST = {"quick": "20 s", "paper": "5 min"}                       what it costs on two cores
    COVERS = ("sp/table1",)                                          optional: what else of the paper it shows

    @dataclass(frozen=True)
    class Config:                                                    plain values; `seeds` is the number of seeds
        @classmethod
        def quick(cls) -> "Config": …
        @classmethod
        def paper(cls) -> "Config": …

    def run(config: Config, bench: Bench) -> Result[Config]:        return bench.over_seeds(config, measure)
    def plot(result: Result[Config]) -> plotly.graph_objects.Figure
    def claims(result: Result[Config]) -> list[Claim]:               predictions come from result.config and `theory`

Every number in `result.values` is measured from weights and has the seed as its first axis.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gyroscope.lab.catalogue import entry
from gyroscope.lab.claim import Claim

if TYPE_CHECKING:
    from gyroscope.lab.bench import Bench

FloatArray = NDArray[np.float64]


class Settings(Protocol):
    """A config: a frozen dataclass of plain values, at the size of a coffee or at the size of the paper."""

    @property
    def seeds(self) -> int:
        """Number of seeds, 0 … seeds-1."""

    @classmethod
    def quick(cls) -> Self:
        """The size that shows the claim within a minute or two."""

    @classmethod
    def paper(cls) -> Self:
        """The size of the paper, or as near as one machine comes."""


C = TypeVar("C")


@dataclass(frozen=True, eq=False)
class Result(Generic[C]):
    """What was measured: arrays by name, the seed along their first axis (then the part, where there are parts)."""

    config: C
    values: dict[str, FloatArray]

    def __getitem__(self, name: str) -> FloatArray:
        """The measured array of this name."""
        if name not in self.values:
            raise KeyError(f"nothing was measured under {name!r}; there are {', '.join(self.values)}")
        return self.values[name]


class Experiment(Protocol):
    """The face that every experiment module shows to the runner."""

    COST: dict[str, str]
    Config: type[Settings]

    def run(self, config: Any, bench: "Bench") -> Result[Any]:
        """Measure."""

    def plot(self, result: Result[Any]) -> Any:
        """Draw what was measured beside what was predicted, as a plotly figure."""

    def claims(self, result: Result[Any]) -> list[Claim]:
        """Judge each claim by what was measured."""


def load(name: str) -> Experiment:
    """The experiment of this id; ValueError with the nearest ids where there is none."""
    found = entry(name)
    if not found.implemented:
        raise ValueError(f"{name!r} is not implemented yet ({found.note}): `gyroscope lab list` shows what is")
    return cast(Experiment, import_module(found.module))
