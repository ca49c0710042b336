"""The form of an experiment (a config, a measurement, a figure and claims), and how it is loaded by its id.

An experiment module has

    a docstring whose first line is the claim and its source
    COST = {"quick": "20 s", "paper": "5 min"}                 duration at each size, "medium" between them if there is
                                                               a MEDIUM config, quick on one free core
    COVERS = ("sp/table1",)                                    optional: what else of the paper it shows

    @dataclass(frozen=True)
    class Config: …                                            plain values. `seeds` is the number of seeds, and
                                                               `parts`, optional, what each seed measures in turn,
                                                               `choosing_seeds`, optional, how many more seeds choose
                                                               between parts (`framework/choices.py`), and
                                                               `judged_parts`, optional, which parts are then judged
    QUICK = Config(…)                                          shows the claim within a minute or two
    MEDIUM = Config(…)                                         optional: 10 to 60 minutes of two cores, at which the
                                                               effect of the paper can be seen
    PAPER = Config(…)                                          the size of the paper, or as near as one machine comes

    def measure(trial: Trial[Config]) -> Measurements: …       one seed, and one part if there are parts
    def plot(result: Result[Config]) -> Figure: …              measured and predicted, as a plotly figure
    def claims(result: Result[Config]) -> list[Claim]: …       predictions come from result.config and `theory`

Every number in `result.values` is measured from weights and has the seed as its first axis.

A module with several experiments, which differ only in their configs, also has CLAIMS = {"fig4": "the claim", …}. COST,
QUICK, MEDIUM and PAPER are then dicts with such keys.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from numpy.typing import ArrayLike

from gyroscope.tools import Array
from gyroscope_lab.framework.catalogue import SIZES, implemented_entry
from gyroscope_lab.framework.claims import Claim

Measurements = Mapping[str, ArrayLike]
C = TypeVar("C")

STEPS_PER_REPORT = 64  # often enough for a progress bar, and too seldom to cost time


@dataclass(frozen=True, eq=False)
class Trial(Generic[C]):
    """One measurement of an experiment: the config, the seed, and the part if the config has parts."""

    config: C
    seed: int
    part: Any = None
    report: Callable[[float], None] = lambda share: None
    """Called with the finished share of the trial, from 0 to 1."""

    def generator(self) -> torch.Generator:
        """Return a new random generator with the trial's seed."""
        return torch.Generator().manual_seed(self.seed)

    def steps(self, count: int) -> Iterator[int]:
        """Yield 0 … count-1, and report the progress."""
        for step in range(count):
            if step % STEPS_PER_REPORT == 0:
                self.report(step / count)
            yield step

    def walk(self, steps: int) -> dict[str, Any]:
        """Return the arguments of a simulator that belong to the trial: `steps`, `seed` and `progress`."""
        return {"steps": steps, "seed": self.seed, "progress": lambda done: self.report(done / steps)}


@dataclass(frozen=True, eq=False)
class Result(Generic[C]):
    """Measurements: arrays by name, with the seed along the first axis (then the part, if there are parts)."""

    config: C
    values: dict[str, Array]
    seconds: float = 0.0
    """Time that all trials took, also before an interruption."""
    choosing: dict[str, Array] = field(default_factory=dict)
    """Numbers of the seeds that only choose between parts, (seeds, parts). See `choices`."""

    def __getitem__(self, name: str) -> Array:
        """Return the measured array of this name."""
        if name not in self.values:
            raise KeyError(f"nothing was measured under {name!r}: there are {', '.join(self.values)}")
        return self.values[name]


class Experiment(Protocol):
    """The parts of an experiment module that the runner uses."""

    QUICK: Any
    PAPER: Any

    def measure(self, trial: Trial[Any]) -> Measurements:
        """Return numbers and arrays by name, of the same shapes for every seed and part."""

    def plot(self, result: Result[Any]) -> Any:
        """Return a plotly figure of measurements and predictions."""

    def claims(self, result: Result[Any]) -> list[Claim]:
        """Return each claim, judged by the measurements."""


def load(name: str, source: Path | None = None) -> Experiment:
    """Return the experiment of this id, of the papers or of a folder `source`.

    A ValueError names the nearest ids if there is none, or what is missing if the file is not an experiment.
    """
    entry = implemented_entry(name, source)
    module = import_module(entry.module) if entry.path is None else _import_file(entry.path)
    for part in ("QUICK", "measure", "plot", "claims"):
        if not hasattr(module, part):
            raise ValueError(f"{str(module.__file__)!r} has no {part}, which an experiment needs")
    if not hasattr(module, "CLAIMS"):
        return cast(Experiment, module)
    key = name.split("/")[1]
    sizes = {size.upper(): getattr(module, size.upper(), {}) for size in SIZES}
    own = {size: configs[key] for size, configs in sizes.items() if key in configs}
    others = {name: value for name, value in vars(module).items() if name not in sizes}
    return cast(Experiment, SimpleNamespace(**others, **own))


def _import_file(path: Path) -> ModuleType:
    """Import a file outside the lab, once. Files beside it can be imported by their names, as beside a script."""
    name = f"{path.parent.name}.{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
