"""Run an experiment by its id: measure, judge, draw, and write the record; an interrupted run goes on where it was."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gyroscope.tools import check_count, write_text
from gyroscope_lab.framework.catalogue import entry_of
from gyroscope_lab.framework.experiment import Experiment, Result, load
from gyroscope_lab.framework.figures import write_figure
from gyroscope_lab.framework.results import ExperimentRecord, describe, write_readme, write_record
from gyroscope_lab.framework.trials import run_trials

Size = Literal["quick", "paper"]


def run(
    name: str,
    size: Size = "quick",
    seeds: int | None = None,
    out: Path = Path("results"),
    report: Callable[[float], None] = lambda share: None,
    source: Path | None = None,
) -> None:
    """Run the experiment of this id and write its record, its figure and the README of `out`.

    name    id such as smd/fig4
    size    quick or paper
    seeds   number of seeds, if not the experiment's own
    out     folder of the results; also of trials that are finished when a run is interrupted
    report  is called with the share that is done, from 0 to 1
    source  folder of experiments outside the lab; None: those of the papers
    """
    experiment = load(name, source)
    config = config_of(name, size, seeds, source)
    cache = out / ".parts" / name
    write_text(cache.parents[1] / ".gitignore", "*\n")  # also shows, before hours of work, whether `out` can be written
    with threads(1 if size == "quick" else None):
        result = run_trials(experiment, config, cache, report)
    claims = experiment.claims(result)
    description = describe(name, entry_of(name, source).claim, size, config, result.seconds)
    record = write_record(out, description, claims, result.values)
    write_figure(experiment.plot(result), record)
    write_readme(out, source)
    if hasattr(experiment, "write_summary"):  # a page about several experiments, as results/advice.md
        experiment.write_summary(out)
    shutil.rmtree(cache)  # last: until everything is written, the trials are the only copy


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads for torch: small tensors are slower on several, most of all where the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def config_of(name: str, size: Size, seeds: int | None = None, source: Path | None = None) -> Any:
    """Return the config of an experiment at a size, with another number of seeds if given."""
    if size not in ("quick", "paper"):
        raise ValueError(f"size={size!r} is unknown: choose quick or paper")
    if seeds is not None:
        check_count("seeds", seeds, at_least=1)
    experiment = load(name, source)
    if not hasattr(experiment, size.upper()):
        raise ValueError(f"{name!r} has no {size.upper()} config: choose the other size")
    config = experiment.QUICK if size == "quick" else experiment.PAPER
    return config if seeds is None else replace(config, seeds=seeds)


def read_result(out: Path, name: str) -> tuple[Experiment, Result[Any]]:
    """The experiment and its result as the record has it: to draw or to judge again without measuring."""
    record = ExperimentRecord.read(out, name)
    if record is None:
        raise ValueError(f"{name!r} has not been run here: `gyroscope lab run {name}`")
    experiment = load(name)
    try:
        config = type(experiment.QUICK)(**{key: _tuples(value) for key, value in record.data["config"].items()})
    except TypeError:
        raise ValueError(f"the record of {name!r} was made by other code: `gyroscope lab run {name}`") from None
    values = {key: np.array(value, dtype=np.float64) for key, value in record.data["values"].items()}
    return experiment, Result(config, values)


def _tuples(value: Any) -> Any:
    """JSON has no tuples, and configs have no lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
