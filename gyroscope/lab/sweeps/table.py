"""What a sweep says: mean, deviation and interval of each arm, the best one, the good region, and a test."""

import json
import sqlite3
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gyroscope.integrations.extras import extra
from gyroscope.lab.sweeps.plan import Sweep
from gyroscope.lab.sweeps.run import Outcome

CONFIDENCE = 0.95
# Relative distance from the best mean within which a setting belongs to the good region.
GOOD = 0.02


@dataclass(frozen=True)
class Arm:
    """All seeds of one setting."""

    settings: dict[str, Any]
    values: tuple[float, ...]
    failures: int
    paths: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN where all failed."""
        return mean(self.values) if self.values else float("nan")

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; NaN of fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else float("nan")

    @property
    def interval(self) -> float:
        """Half-width of the 95 % confidence interval of the mean, by Student's t; NaN of fewer than two."""
        n = len(self.values)
        if n < 2:
            return float("nan")
        stats = extra("scipy.stats", "lab")
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * self.deviation / sqrt(n))


def arms(sweep: Sweep, outcomes: Iterable[Outcome]) -> list[Arm]:
    """The outcomes gathered by everything but the seed, in the sweep's order."""
    grouped: dict[str, list[Outcome]] = {}
    for ended in outcomes:
        settings = {name: value for name, value in ended.trial.varied.items() if name != "seed"}
        grouped.setdefault(json.dumps(settings), []).append(ended)
    found = []
    for text, members in grouped.items():
        values = [m.scores[sweep.metric] for m in members if not m.problem and sweep.metric in m.scores]
        finite = tuple(value for value in values if isfinite(value))
        found.append(Arm(json.loads(text), finite, len(members) - len(finite), tuple(str(m.path) for m in members)))
    return found


def best(sweep: Sweep, found: Sequence[Arm]) -> Arm | None:
    """The arm with the best mean."""
    known = [arm for arm in found if arm.values]
    if not known:
        return None
    return max(known, key=lambda arm: arm.mean) if sweep.higher_is_better else min(known, key=lambda arm: arm.mean)


def good_region(sweep: Sweep, found: Sequence[Arm]) -> list[Arm]:
    """The arms whose mean is within 2 % of the best."""
    top = best(sweep, found)
    if top is None:
        return []
    return [arm for arm in found if arm.values and abs(arm.mean - top.mean) <= GOOD * abs(top.mean)]


def compare(first: Arm, second: Arm) -> float:
    """p-value of Welch's t-test that two arms have the same mean; NaN where one has fewer than two runs."""
    if len(first.values) < 2 or len(second.values) < 2:
        return float("nan")
    stats = extra("scipy.stats", "lab")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # all runs of an arm alike: the deviation is 0, and p still right
        return float(stats.ttest_ind(first.values, second.values, equal_var=False).pvalue)


def write_table(path: Path, sweep: Sweep, outcomes: Sequence[Outcome]) -> None:
    """The sweep as one SQLite file: every trial, and every arm."""
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE IF EXISTS trial")
        database.execute("DROP TABLE IF EXISTS arm")
        database.execute("CREATE TABLE trial (settings TEXT, seed INTEGER, path TEXT, scores TEXT, problem TEXT)")
        database.execute(
            "CREATE TABLE arm (settings TEXT, metric TEXT, n INTEGER, mean REAL, deviation REAL, interval REAL, "
            "failures INTEGER)"
        )
        database.executemany(
            "INSERT INTO trial VALUES (?, ?, ?, ?, ?)",
            [
                (
                    json.dumps(ended.trial.varied),
                    ended.trial.config.seed,
                    str(ended.path),
                    json.dumps(ended.scores),
                    ended.problem,
                )
                for ended in outcomes
            ],
        )
        database.executemany(
            "INSERT INTO arm VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    json.dumps(arm.settings),
                    sweep.metric,
                    len(arm.values),
                    arm.mean,
                    arm.deviation,
                    arm.interval,
                    arm.failures,
                )
                for arm in arms(sweep, outcomes)
            ],
        )
    database.close()
