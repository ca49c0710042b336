"""Run an experiment by its id: measure, judge, draw, and write the record; an interrupted run goes on where it was."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gyroscope.lab import record
from gyroscope.lab.bench import Bench
from gyroscope.lab.catalogue import entry
from gyroscope.lab.claim import Claim
from gyroscope.lab.experiment import Experiment, Result, load
from gyroscope.lab.picture import draw
from gyroscope.lab.readme import write_readme

Size = Literal["quick", "paper"]


@dataclass(frozen=True)
class Outcome:
    """A finished run: its claims, and where the record and the figure lie."""

    claims: list[Claim]
    record: Path
    figure: Path


def run(
    name: str, size: Size = "quick", seeds: int | None = None, out: Path = Path("results"),
    tell: Callable[[float], None] | None = None,
) -> Outcome:  # fmt: skip
    """Run the experiment of this id and write its record, its figure and the README of `out`."""
    experiment, config = load(name), config_of(name, size, seeds)
    kept = out / ".parts" / name
    bench = Bench(_ignored(kept), tell)
    with threads(1 if size == "quick" else None):
        result = experiment.run(config, bench)
    claims = experiment.claims(result)
    where = record.write(
        out, record.describe(name, entry(name).claim, size, config, bench.seconds), claims, result.values
    )
    figure = draw(experiment.plot(result), where)
    write_readme(out)
    shutil.rmtree(kept)
    return Outcome(claims, where, figure)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads for torch: small tensors are slower on several, most of all where the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def config_of(name: str, size: Size, seeds: int | None = None) -> Any:
    """The config of an experiment at a size, with another number of seeds if asked."""
    if size not in ("quick", "paper"):
        raise ValueError(f"size={size!r} is unknown: choose quick or paper")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds={seeds} must be 1 or above")
    config = getattr(load(name).Config, size)()
    return config if seeds is None else replace(config, seeds=seeds)


def recall(out: Path, name: str) -> tuple[Experiment, Result[Any]]:
    """The experiment and its result as the record has it: to draw or to judge again without measuring."""
    found = record.read(out, name)
    if found is None:
        raise ValueError(f"{name!r} has not been run here: `gyroscope lab run {name}`")
    experiment = load(name)
    try:
        config = experiment.Config(**{key: _tuples(value) for key, value in found.data["config"].items()})
    except TypeError:
        raise ValueError(f"the record of {name!r} was made by other code: `gyroscope lab run {name}`") from None
    values = {key: np.array(value, dtype=np.float64) for key, value in found.data["values"].items()}
    return experiment, Result(config, values)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _ignored(folder: Path) -> Path:
    """The folder, made, and left out of version control; ValueError where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parents[1] / ".gitignore").write_text("*\n")
    except OSError as error:
        raise ValueError(f"cannot write {str(folder)!r}: {error.strerror or error}; choose another --out") from None
    return folder
