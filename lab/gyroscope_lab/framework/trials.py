"""Run all trials of an experiment, seed by seed and part by part, and keep each finished trial in a file.

An interrupted run goes on from these files.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

import gyroscope
from gyroscope.tools import Array, write_text
from gyroscope_lab.framework.choices import candidates, judged_parts
from gyroscope_lab.framework.experiment import Experiment, Result, Trial
from gyroscope_lab.framework.seeds import choosing_seeds, judged_seeds

C = TypeVar("C")
# A seed, and the position of a part.
Place = tuple[int, int]
FinishedTrial = dict[str, Any]

# Significant digits of measured numbers, so that claims are judged by the numbers in the record.
DIGITS = 7
# The code that an experiment depends on. A finished trial is only valid for the code that measured it.
CORE = Path(gyroscope.__file__).parent
CORE_ROOMS = ("theory", "model", "optim", "nn", "measure", "advice")
LAB = Path(__file__).parents[1]
LAB_ROOMS = ("simulate", "tasks", "networks", "training")
SHARED = ("arms.py", "choices.py", "experiment.py", "named_options.py", "seeds.py", "trials.py", "weight_steps.py")


def run_trials(
    experiment: Experiment,
    config: C,
    cache: Path | None = None,
    report: Callable[[float], None] = lambda share: None,
    first_seed: int = 0,
) -> Result[C]:
    """Measure with every seed of a config: values of shape (seeds, …), or (seeds, parts, …) if it has parts.

    The seeds that choose between parts (`choosing_seeds`) are measured first and stored separately. Finished trials are
    stored below `cache`, if given. `report` gets the finished share of all trials.

    >>> from gyroscope_lab.sp import eq44
    >>> run_trials(eq44, eq44.Config(neurons=2, fan_in=4, batch=8, steps=3, seeds=2))["distance"].shape
    (2, 2, 3)
    """
    parts = getattr(config, "parts", (None,))
    seeds = judged_seeds(config, first_seed)
    folder = _folder(cache, config, len(parts))

    def finish(trials: Sequence[Place], done: int, after: int) -> dict[Place, FinishedTrial]:
        """Run trials, given how many were done before and how many follow at most."""
        finished = {}
        for number, (seed, part) in enumerate(trials, done):
            share_done = partial(_report_share, report, number, done + len(trials) + after)
            share_done(0.0)
            path = folder / f"{seed}-{part}.json" if folder else None
            finished[seed, part] = _read(path) or _measure(
                experiment, Trial(config, seed, parts[part], share_done), path
            )
        return finished

    choosing = list(product(choosing_seeds(config, first_seed), candidates(config)))
    chosen_by = finish(choosing, 0, len(seeds) * len(parts))
    choosing_values = _choosing_values(config, chosen_by, choosing)
    judged = finish(list(product(seeds, judged_parts(config, choosing_values))), len(choosing), 0)
    report(1.0)
    trials = [judged.get(place) for place in product(seeds, range(len(parts)))]
    shape = (len(seeds), len(parts)) if hasattr(config, "parts") else (len(seeds),)
    values = {name: _stack([trial and trial["values"][name] for trial in trials], shape)
              for name in next(iter(judged.values()))["values"]}  # fmt: skip
    seconds = sum(trial["seconds"] for trial in (*chosen_by.values(), *judged.values()))
    return Result(config, values, seconds, choosing_values)


def _report_share(report: Callable[[float], None], done: int, total: int, share: float) -> None:
    report((done + share) / total)


def _choosing_values(config: Any, finished: dict[Place, FinishedTrial], choosing: Sequence[Place]) -> dict[str, Array]:
    """Return the measurements of the choosing seeds, (seeds, parts), NaN for parts that are not candidates."""
    if not choosing:
        return {}
    seeds = sorted({seed for seed, _ in choosing})
    numbers = {name for name, value in finished[choosing[0]]["values"].items() if np.ndim(value) == 0}
    values = {name: np.full((len(seeds), len(config.parts)), np.nan) for name in sorted(numbers)}
    for seed, number in choosing:
        for name, array in values.items():
            array[seeds.index(seed), number] = finished[seed, number]["values"][name]
    return {name: rounded(array) for name, array in values.items()}


def rounded(values: ArrayLike) -> Array:
    """Return measurements with `DIGITS` significant digits.

    >>> rounded([3.14159265358979, 0.0]).tolist()
    [3.141593, 0.0]
    """
    x = np.asarray(values, dtype=np.float64)
    exact = [float(f"{value:.{DIGITS}g}") for value in x.ravel().tolist()]
    return np.array(exact, dtype=np.float64).reshape(x.shape)


def _stack(values: list[Any], shape: tuple[int, ...]) -> Array:
    """Return one array of all trials. A trial without a value, None, becomes NaN."""
    own = next(np.shape(value) for value in values if value is not None)
    arrays = [np.full(own, np.nan) if value is None else np.asarray(value, dtype=np.float64) for value in values]
    return rounded(np.stack(arrays).reshape(*shape, *own))


def _read(path: Path | None) -> FinishedTrial | None:
    if path is None or not path.exists():
        return None
    trial: FinishedTrial = json.loads(path.read_text())
    return trial


def _measure(experiment: Experiment, trial: Trial[Any], path: Path | None) -> FinishedTrial:
    start = time.monotonic()
    values = {name: np.asarray(value, dtype=np.float64).tolist() for name, value in experiment.measure(trial).items()}
    finished = {"seconds": time.monotonic() - start, "values": values}
    if path is not None:
        write_text(path, json.dumps(finished))  # completely or not at all, even if the process is killed
    return finished


def _folder(cache: Path | None, config: Any, parts: int) -> Path | None:
    """Return the folder of trials with this config and this code, for any number of seeds."""
    if cache is None:
        return None
    # Without the number of seeds, so that more seeds continue a finished run.
    seeds = {"seeds": None, "choosing_seeds": None}
    key = asdict(config) | seeds | {"parts": parts, "code": fingerprint(config)}
    return cache / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(config: Any) -> str:
    """Return a hash of the code that an experiment depends on: shared folders, and the module's own folder."""
    rooms = [*(CORE / room for room in CORE_ROOMS), *(LAB / room for room in LAB_ROOMS)]
    files = {path for room in rooms for path in room.rglob("*.py")}
    files |= {CORE / "geometry.py", *(LAB / "framework" / name for name in SHARED)}
    if own := sys.modules[type(config).__module__].__file__:
        files |= set(Path(own).parent.glob("*.py"))
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()
