"""Run an experiment by its id: measure, judge, draw, and write the record. An interrupted run can continue."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gyroscope.spelling import one_of
from gyroscope.tools import check_count, dumps, write_text
from gyroscope_lab.framework.catalogue import SIZES, Size, entry_of
from gyroscope_lab.framework.experiment import Experiment, Result, load
from gyroscope_lab.framework.figures import write_figure
from gyroscope_lab.framework.results import (
    ExperimentRecord,
    commit_of_code,
    describe,
    write_record,
)
from gyroscope_lab.framework.results_pages import write_pages
from gyroscope_lab.framework.seeds import FIRST_CHOOSING_SEED
from gyroscope_lab.framework.trials import fingerprint, run_trials


def run(
    name: str,
    size: Size = "quick",
    seeds: int | None = None,
    out: Path = Path("results"),
    report: Callable[[float], None] = lambda share: None,
    source: Path | None = None,
    first_seed: int = 0,
) -> None:
    """Run the experiment of this id and write its record, its figure and the README of `out`.

    name        id such as smd/fig4
    size        quick, medium or paper
    seeds       number of seeds. None: that of the experiment
    out         folder of the results, and of finished trials of an interrupted run
    report      called with the finished share, from 0 to 1
    source      folder of experiments outside the lab. None: those of the papers
    first_seed  the first judged seed
    """
    experiment = load(name, source)
    check_first_seed(first_seed)
    config = config_of(name, size, seeds, source)
    cache = out / ".parts" / name
    write_text(cache.parents[1] / ".gitignore", "*\n")  # also checks, before hours of work, that `out` can be written
    with threads(1 if size == "quick" else None):
        result = run_trials(experiment, config, cache, report, first_seed)
    description = describe(name, entry_of(name, source).claim, size, config, result.seconds, first_seed)
    description |= {"code": fingerprint(config)}
    record = write_record(out, description, experiment.claims(result), result.values, result.choosing)
    write_figure(experiment.plot(result), record)
    write_pages(out, source)
    if hasattr(experiment, "write_summary"):  # a page about several experiments, as results/advice.md
        experiment.write_summary(out)
    shutil.rmtree(cache)  # last: until everything is written, the trials are the only copy


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads. Small tensors are slower on several, most of all on a shared machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_first_seed(first_seed: int) -> None:
    """Raise a ValueError if judged seeds could overlap with choosing seeds."""
    check_count("first_seed", first_seed, at_least=0)
    if first_seed >= FIRST_CHOOSING_SEED // 2:
        raise ValueError(f"first_seed={first_seed} must be below {FIRST_CHOOSING_SEED // 2}: higher seeds only choose")


def config_of(
    name: str,
    size: Size,
    seeds: int | None = None,
    source: Path | None = None,
) -> Any:
    """Return the config of an experiment at a size, with the given number of seeds, if any."""
    one_of("size", size, SIZES)
    if seeds is not None:
        check_count("seeds", seeds, at_least=1)
    experiment = load(name, source)
    if not hasattr(experiment, size.upper()):
        sizes = " or ".join(each for each in SIZES if hasattr(experiment, each.upper()))
        raise ValueError(f"{name!r} has no {size.upper()} config. Choose the size {sizes}")
    config = getattr(experiment, size.upper())
    return config if seeds is None else replace(config, seeds=seeds)


def is_finished(
    name: str,
    size: Size,
    config: Any,
    out: Path,
    first_seed: int = 0,
) -> bool:
    """Return whether the folder has a record of this config and these seeds, measured by the current code."""
    record = ExperimentRecord.read(out, name)
    if record is None:
        return False
    wanted = describe(name, "", size, config, 0.0, first_seed) | {"code": fingerprint(config)}
    same = ("size", "config", "seeds", "choosing_seeds", "code")
    return all(record.data.get(key) == json.loads(dumps(wanted[key])) for key in same)


def judge_again(name: str, out: Path) -> None:
    """Judge and draw a record by the claims of the current code, without measuring."""
    experiment, result = read_result(out, name)
    record = ExperimentRecord.read(out, name)
    assert record is not None
    kept = {key: value for key, value in record.data.items() if key not in ("claims", "values", "choosing")}
    description = {**kept, "claim": entry_of(name).claim, "judged_by": commit_of_code()}
    path = write_record(out, description, experiment.claims(result), result.values, result.choosing)
    write_figure(experiment.plot(result), path)
    write_pages(out)


def read_result(out: Path, name: str) -> tuple[Experiment, Result[Any]]:
    """Return the experiment and its recorded result, to draw or judge again without measuring."""
    record = ExperimentRecord.read(out, name)
    if record is None:
        raise ValueError(f"{name!r} has not been run here: `gyroscope lab run {name}`")
    experiment = load(name)
    try:
        config = _like(experiment.QUICK, record.data["config"])
    except TypeError:
        raise ValueError(f"the record of {name!r} was made by other code: `gyroscope lab run {name}`") from None
    values, choosing = (
        {key: np.array(value, dtype=np.float64) for key, value in record.data.get(part, {}).items()}
        for part in ("values", "choosing")
    )
    return experiment, Result(config, values, record.data["seconds"], choosing)


def _like(template: Any, value: Any) -> Any:
    """Return a value of a record in a config's types: JSON has no tuples and no classes, and configs have no lists."""
    if isinstance(value, list):
        if hasattr(template, "_fields"):  # a named tuple
            return type(template)(*map(_like, template, value))
        first = template[0] if isinstance(template, tuple) and template else None
        return tuple(_like(first, each) for each in value)
    if isinstance(value, dict) and is_dataclass(template) and not isinstance(template, type):
        return type(template)(**{key: _like(getattr(template, key, None), each) for key, each in value.items()})
    if isinstance(value, dict) and isinstance(template, dict):
        first = next(iter(template.values()), None)
        return {key: _like(template.get(key, first), each) for key, each in value.items()}
    return value
