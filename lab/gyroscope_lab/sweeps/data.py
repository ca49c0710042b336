"""What the page of a sweep shows, as plain data: the same that `gyroscope report SWEEP --json` prints.

A setting is one combination of the sweep's axes with all its seeds. An arm is what is compared: the settings that share
everything but the one or two axes along which results are drawn. An undetermined number is NaN here and null in JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

# Of this layout; a change that would break a reader adds one.
VERSION = 1
# Relative distance from the best mean within which a setting is called good.
TOLERANCE = 0.02


@final
@dataclass(frozen=True)
class TrialData:
    """One seed of a setting."""

    seed: int
    value: float
    problem: str
    """Why there is no value; empty where there is one, or the trial has not ended."""
    ended: bool
    folder: str
    """Its run directory, in the folder of the sweep."""


@final
@dataclass(frozen=True)
class SettingData:
    """A setting: its score over seeds, and the page of its runs."""

    settings: Mapping[str, Any]
    arm: int
    n: int
    mean: float
    deviation: float
    interval: float
    """Half-width of the 95 % confidence interval of the mean."""
    failures: int
    p_best: float
    """p-value of Welch's test against the best setting of all."""
    good: bool
    """Within the tolerance of the best setting of its arm."""
    trials: Sequence[TrialData]
    page: str = ""
    """Relative address; empty where rotation was not tracked."""


@final
@dataclass(frozen=True)
class Width:
    """Values of an axis that are as good as the best, in one piece around it, with all else chosen anew.

    `decades` is NaN where a value is not above 0. At an end of what was tried the region may be wider.
    """

    axis: str
    low: float
    high: float
    decades: float
    at_low_end: bool
    at_high_end: bool


@final
@dataclass(frozen=True)
class ArmData:
    """An arm: its name, its best setting as an index (None where nothing has a score), and how much of it is good."""

    name: str
    best: int | None
    good: int
    settings: int
    widths: Sequence[Width]


@final
@dataclass(frozen=True)
class Comparison:
    """Two arms at the best settings of each: difference of the means, and the p-value of Welch's test."""

    first: int
    second: int
    difference: float
    p_value: float


@final
@dataclass(frozen=True)
class SweepData:
    """A sweep. `drawn` are the axes of its maps, at most two, the horizontal one first; the others make the arms."""

    name: str
    metric: str
    higher_is_better: bool
    planned: int
    ended: int
    axes: Mapping[str, Sequence[Any]]
    drawn: Sequence[str]
    settings: Sequence[SettingData]
    arms: Sequence[ArmData]
    comparisons: Sequence[Comparison]
    best: int | None
    gyroscope: str
    tolerance: float = TOLERANCE
    version: int = VERSION

    @property
    def failed(self) -> list[tuple[SettingData, TrialData]]:
        """The trials that ended without a score."""
        return [(setting, trial) for setting in self.settings for trial in setting.trials if trial.problem]
