"""The contents of a sweep's page as plain data, which `gyroscope report SWEEP --json` prints.

A setting is one combination of the sweep's axes with all its seeds. Arms are compared with each other. An arm has the
settings that differ only in the one or two axes along which results are drawn. An undetermined number is NaN here and
null in JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

# Version of this layout. A change that would break a reader adds one.
VERSION = 1
# Relative distance from the best mean within which a setting counts as good.
TOLERANCE = 0.02


@final
@dataclass(frozen=True)
class TrialData:
    """One seed of a setting."""

    seed: int
    value: float
    problem: str
    """The reason why there is no value. Empty if there is one or if the trial has not ended."""
    ended: bool
    folder: str
    """Its run directory inside the folder of the sweep."""


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
    """Whether its mean is within the tolerance of the best setting of its arm."""
    trials: Sequence[TrialData]
    page: str = ""
    """Relative address. Empty if rotation was not tracked."""


@final
@dataclass(frozen=True)
class Width:
    """The contiguous range of an axis around the best value in which results are good, with other settings re-tuned.

    `decades` is NaN if a value is not positive. If the range reaches an end of the grid, it may be wider.
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
    """An arm: its name, the index of its best setting (None without a score), and how many settings are good."""

    name: str
    best: int | None
    good: int
    settings: int
    widths: Sequence[Width]


@final
@dataclass(frozen=True)
class Comparison:
    """Two arms, each at its best setting: the difference of the means, and the p-value of Welch's test."""

    first: int
    second: int
    difference: float
    p_value: float


@final
@dataclass(frozen=True)
class SweepData:
    """A sweep. `drawn` lists the axes of its maps, at most two, horizontal first. The other axes make the arms."""

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
