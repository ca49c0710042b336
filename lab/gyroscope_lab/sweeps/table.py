"""Statistics of a sweep: mean, deviation and interval of each setting, the best ones, the good region, and a test."""

import json
import sqlite3
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10, nan, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gyroscope_lab.framework.claims import student_quantile
from gyroscope_lab.sweeps.data import TOLERANCE, Width
from gyroscope_lab.sweeps.plan import Sweep, SweepTrial
from gyroscope_lab.sweeps.run import Outcome, outcome


@dataclass(frozen=True)
class Setting:
    """One combination of the axes: its trials, one for each seed, and their scores."""

    settings: dict[str, Any]
    trials: tuple[SweepTrial, ...]
    outcomes: tuple[Outcome, ...]
    metric: str

    @property
    def values(self) -> tuple[float, ...]:
        """Scores of the seeds that succeeded."""
        return tuple(ended.scores[self.metric] for ended in self.outcomes if not problem_of(ended, self.metric))

    @property
    def mean(self) -> float:
        """Mean over seeds. NaN without a score."""
        return mean(self.values) if self.values else nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds. NaN for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else nan

    @property
    def interval(self) -> float:
        """Half-width of the 95 % confidence interval of the mean, by Student's t. NaN for fewer than two."""
        n = len(self.values)
        if n < 2:
            return nan
        return student_quantile(n - 1) * self.deviation / sqrt(n)

    @property
    def failures(self) -> int:
        """Number of seeds that ended without a score."""
        return len(self.outcomes) - len(self.values)


def problem_of(ended: Outcome, metric: str) -> str:
    """Return why an outcome has no score, or an empty string if it has one."""
    if ended.problem:
        return ended.problem
    if metric not in ended.scores:
        return f"no {metric}, only {', '.join(ended.scores) or 'nothing'}: choose another metric"
    return "" if isfinite(ended.scores[metric]) else f"{metric} is not finite"


def outcomes_of(sweep: Sweep, out: Path) -> list[Outcome]:
    """Return the outcomes of the trials that have ended, in the sweep's order."""
    return [ended for trial in sweep.trials if (ended := outcome(trial, out)) is not None]


def settings_of(sweep: Sweep, outcomes: Sequence[Outcome]) -> list[Setting]:
    """Group all trials by their settings without the seed, in the sweep's order. Some may not have ended."""
    names = list(sweep.axes)
    ended = {each.trial.name: each for each in outcomes}
    grouped: dict[tuple[Any, ...], list[SweepTrial]] = {}
    for trial in sweep.trials:
        grouped.setdefault(tuple(getattr(trial.config, name) for name in names), []).append(trial)
    return [
        Setting(
            dict(zip(names, values, strict=True)),
            tuple(trials),
            tuple(ended[trial.name] for trial in trials if trial.name in ended),
            sweep.metric,
        )
        for values, trials in grouped.items()
    ]


def best(sweep: Sweep, settings: Sequence[Setting]) -> Setting | None:
    """Return the setting with the best mean, or None without a score."""
    known = [setting for setting in settings if setting.values]
    sign = 1 if sweep.higher_is_better else -1
    return max(known, key=lambda setting: sign * setting.mean, default=None)


def good_region(sweep: Sweep, settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings whose mean is within 2 % of the best."""
    top = best(sweep, settings)
    if top is None:
        return []
    return [setting for setting in settings if abs(setting.mean - top.mean) <= TOLERANCE * abs(top.mean)]


def width(sweep: Sweep, settings: Sequence[Setting], axis: str) -> Width | None:
    """Return the range of a numeric axis within 2 % of the best mean, with the other settings re-tuned.

    Return None without a score.
    """
    top = best(sweep, settings)
    if top is None:
        return None
    good = {setting.settings[axis] for setting in good_region(sweep, settings)}
    values = sorted({setting.settings[axis] for setting in settings})
    first = last = values.index(top.settings[axis])
    # The range is contiguous. A good value beyond a bad one does not belong to it.
    while first > 0 and values[first - 1] in good:
        first -= 1
    while last < len(values) - 1 and values[last + 1] in good:
        last += 1
    decades = log10(values[last] / values[first]) if values[first] > 0 else nan
    return Width(axis, values[first], values[last], decades, first == 0, last == len(values) - 1)


def compare(first: Setting, second: Setting) -> float:
    """Return the p-value of Welch's t-test that two settings have the same mean. NaN if one has fewer than two runs."""
    if len(first.values) < 2 or len(second.values) < 2:
        return nan
    from scipy import stats  # takes a second to import

    with warnings.catch_warnings():
        # If all runs of a setting are equal, the deviation is 0, and p is still right.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(stats.ttest_ind(first.values, second.values, equal_var=False).pvalue)


def write_table(path: Path, sweep: Sweep, outcomes: Sequence[Outcome]) -> None:
    """Write the sweep as one SQLite file: every trial that ended, with its folder, and every setting."""
    trials = [
        (json.dumps(each.trial.varied), each.trial.config.seed, each.trial.name, json.dumps(each.scores), each.problem)
        for each in outcomes
    ]
    settings = [
        (
            json.dumps(each.settings),
            each.metric,
            each.mean,
            each.deviation,
            each.interval,
            len(each.values),
            each.failures,
        )
        for each in settings_of(sweep, outcomes)
    ]
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE IF EXISTS trial")
        database.execute("DROP TABLE IF EXISTS setting")
        database.execute("CREATE TABLE trial (settings TEXT, seed INTEGER, folder TEXT, scores TEXT, problem TEXT)")
        database.execute(
            "CREATE TABLE setting (settings TEXT, metric TEXT, mean REAL, deviation REAL, interval REAL, n INTEGER, "
            "failures INTEGER)"
        )
        database.executemany("INSERT INTO trial VALUES (?, ?, ?, ?, ?)", trials)
        database.executemany("INSERT INTO setting VALUES (?, ?, ?, ?, ?, ?, ?)", settings)
    database.close()
