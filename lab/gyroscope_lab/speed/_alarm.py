"""An alarm for learning rates that are too low or too high. Half of the tasks choose its unit and thresholds."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import final

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.speed._runs import FAN_IN, STEPS, Mask, Runs, at_best, scatter

# Fixed before the runs. The band contains this share of the good runs. As many are below it as above.
BAND_SHARE = 0.90
# Share of the good runs of the choosing half that a threshold may mark.
FALSE_ALARMS = 0.02
# Criterion on held-out tasks: an alarm marks at most this share of good runs, and at least this share of bad ones.
MOST_FALSE_ALARMS = 0.05
FEWEST_HITS = 0.40
# Powers of fan-in and of length that a correction may have.
POWERS = (-0.5, -0.25, 0.0, 0.25, 0.5)

UNITS: dict[str, Callable[[Runs], Array]] = {
    "peak rotation": lambda runs: runs.peak,
    "mid-run rotation": lambda runs: runs.mid,
    "end rotation": lambda runs: runs.end,
    "angle to the start": lambda runs: runs.total,
    "angle to the start × √fan-in": lambda runs: runs.total * np.sqrt(runs.fan_in),
    "run length in memories": lambda runs: runs.memories,
}
# Units that may be corrected for width and run length.
CORRECTED = ("mid-run rotation", "angle to the start")
# Default learning rate of each optimizer.
USUAL_LRS = {"AdamW": 1e-3, "RotationalAdamW": 1e-3, "SGDM": 0.1, "Lion": 1e-4, "Muon": 1e-3}


def usual_lr(optimizer: str) -> float:
    """Return the usual learning rate of an optimizer. Text after a comma in its name is ignored."""
    return USUAL_LRS[optimizer.partition(",")[0]]


def lr_over_usual(runs: Runs) -> Array:
    """Return the learning rate of each run over the usual one of its optimizer."""
    return np.asarray(runs.lr / np.array([usual_lr(name) for name in runs.optimizer]))


def default_lrs(choosing: Runs) -> dict[str, float]:
    """Return the median best learning rate of each optimizer on the choosing half, which is the tuned baseline."""
    best = at_best(choosing, choosing.lr)
    _, first = np.unique(choosing.cell, return_index=True)
    names = np.array([name.partition(",")[0] for name in choosing.optimizer[first]])
    return {str(name): float(np.exp(np.median(np.log(best[names == name])))) for name in np.unique(names)}


@final
@dataclass(frozen=True)
class Correction:
    """A factor (fan-in/64)^width · (steps/200)^length on a unit."""

    width: float = 0.0
    length: float = 0.0

    def factor(self, runs: Runs) -> Array:
        """Return the factor of each run."""
        return np.asarray((runs.fan_in / FAN_IN) ** self.width * (runs.steps / STEPS) ** self.length)


def best_correction(choosing: Runs, unit: str) -> Correction:
    """Return the correction with which a unit scatters least at the best learning rates of the choosing half."""
    corrections = [Correction(width, length) for width, length in product(POWERS, POWERS)]
    values = UNITS[unit](choosing)
    return min(corrections, key=lambda each: scatter(at_best(choosing, values * each.factor(choosing))))


@final
@dataclass(frozen=True)
class Alarm:
    """Thresholds in a unit, and the band of good runs. A run below `slow` or above `fast` is marked."""

    unit: str
    band: tuple[float, float]
    slow: float
    fast: float

    def marks_slow(self, values: Array) -> Mask:
        """Return which runs are marked as too slow. A run without a value is not marked."""
        return np.asarray(values < self.slow)

    def marks_fast(self, values: Array) -> Mask:
        """Return which runs are marked as too fast. A run without a value is not marked."""
        return np.asarray(values > self.fast)


def choose_alarm(unit: str, choosing: Runs, values: Array) -> Alarm:
    """Return the widest alarm with at most `FALSE_ALARMS` of good runs on each side, and the band of good runs."""
    good = np.sort(values[choosing.good & np.isfinite(values)])
    allowed = int(FALSE_ALARMS * len(good))
    outside = (1 - BAND_SHARE) / 2
    band = (float(np.quantile(good, outside)), float(np.quantile(good, 1 - outside)))
    return Alarm(unit, band, float(good[allowed]), float(good[-1 - allowed]))


@final
@dataclass(frozen=True)
class Confusion:
    """The number of runs of each kind, and how many of them an alarm marks."""

    slow_hits: int
    slow_runs: int
    slow_false: int
    fast_hits: int
    fast_runs: int
    fast_false: int
    good_runs: int

    @classmethod
    def of(cls, alarm: Alarm, runs: Runs, values: Array) -> "Confusion":
        """Count the runs that an alarm marks."""
        slow = alarm.marks_slow(values)
        fast = alarm.marks_fast(values)
        return cls(
            slow_hits=int((slow & runs.too_slow).sum()),
            slow_runs=int(runs.too_slow.sum()),
            slow_false=int((slow & runs.good).sum()),
            fast_hits=int((fast & runs.too_fast).sum()),
            fast_runs=int(runs.too_fast.sum()),
            fast_false=int((fast & runs.good).sum()),
            good_runs=int(runs.good.sum()),
        )

    @property
    def rates(self) -> dict[str, float]:
        """Shares of bad and of good runs that are marked. NaN if there are no runs of a kind."""

        def share(marked: int, all_runs: int) -> float:
            return marked / all_runs if all_runs else np.nan

        return {
            "slow_hits": share(self.slow_hits, self.slow_runs),
            "slow_false": share(self.slow_false, self.good_runs),
            "fast_hits": share(self.fast_hits, self.fast_runs),
            "fast_false": share(self.fast_false, self.good_runs),
        }


@final
@dataclass(frozen=True)
class Candidate:
    """A unit with its correction, and the alarm in this unit that the choosing half gives."""

    alarm: Alarm
    values: Callable[[Runs], Array]


def candidates(choosing: Runs) -> dict[str, Candidate]:
    """Return the alarms of all units by name, including corrected units."""
    units = dict(UNITS)
    for unit in CORRECTED:
        correction = best_correction(choosing, unit)
        name = f"{unit}, corrected by (fan-in/64)^{correction.width:g}·(steps/200)^{correction.length:g}"
        units[name] = _corrected(unit, correction)
    return {name: Candidate(choose_alarm(name, choosing, values(choosing)), values) for name, values in units.items()}


def _corrected(unit: str, correction: Correction) -> Callable[[Runs], Array]:
    return lambda runs: UNITS[unit](runs) * correction.factor(runs)


# Thresholds in mid-run rotation from a pilot with other trainings. No task here chose them, so all tasks judge them.
PILOT = Candidate(
    Alarm("mid-run rotation, thresholds of the pilot", (3.5e-3, 18.5e-3), 2e-3, 20e-3), lambda runs: runs.mid
)


def baselines(choosing: Runs) -> dict[str, Candidate]:
    """Return the alarms that use only the learning rate: over the usual one, and over the median best one."""
    tuned = default_lrs(choosing)

    def over_tuned(runs: Runs) -> Array:
        return np.asarray(runs.lr / np.array([tuned[name.partition(",")[0]] for name in runs.optimizer]))

    units = {"lr over the usual one": lr_over_usual, "lr over the median best one": over_tuned}
    return {name: Candidate(choose_alarm(name, choosing, values(choosing)), values) for name, values in units.items()}


def chosen_candidate(choosing: Runs) -> Candidate:
    """Return the candidate that marks most of the runs that are too slow in the choosing half."""

    def hits(candidate: Candidate) -> float:
        return Confusion.of(candidate.alarm, choosing, candidate.values(choosing)).rates["slow_hits"]

    return max(candidates(choosing).values(), key=hits)
