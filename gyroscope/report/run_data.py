"""What a page of runs shows, as plain data: the same that `gyroscope report --json` prints.

Arrays named `series` run over the samples in `RunData.steps`. Angles are radians per step. A number that is
undetermined is NaN here and null in JSON, where numbers in arrays have five digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from gyroscope.advice.findings import Severity
from gyroscope.advice.thresholds import MAX_USUAL_RATIO

Array: TypeAlias = npt.NDArray[np.float64]
Series: TypeAlias = dict[str, Array]

# Of this layout; a change that would break a reader adds one.
VERSION = 2

# What is kept of each layer, as quantity.statistic: `Run.series(layer, quantity, statistic)` has the same numbers.
LAYER_SERIES = (
    "angular_update.mean",
    "angular_update.q05",
    "angular_update.q95",
    "predicted_angular_update",
    "forecast_angular_update",
    "norm.rms",
    "predicted_norm",
    "forecast_norm",
    "grad_weight_cosine.mean",
    "lambda_e.q50",
    "rotation_discrepancy.q50",
    "alignment",
)

# Series of the layers that the page shows together, and which quantiles over layers it takes.
OVER_LAYERS = {
    "angular_update.mean": ("q05", "q50", "q95"),
    "predicted_angular_update": ("q50",),
    "forecast_angular_update": ("q50",),
    "max_update.max": ("max",),
    "alignment": ("q05", "q50", "q95"),
}

# Logged scalars that a page draws: the first ones, since each takes the room of a hand's breadth.
MOST_DRAWN = 4

# Quantities whose distribution over the neurons of a layer can be looked at.
DISTRIBUTIONS = ("angular_update", "norm")

# Kind of finding to the panel with its evidence; the others are seen in the panel `equilibrium`.
PANELS = {
    "diverged": "table",
    "layer_imbalance": "layers",
    "scale_sensitive": "layers",
    "neuron_imbalance": "balance",
    "unstable_betas": "stability",
    "dead_vectors": "table",
    "frozen_entries": "table",
    "not_measured": "table",
}


@final
@dataclass(frozen=True)
class FindingData:
    """A finding of the diagnosis and the panel that shows its evidence."""

    kind: str
    severity: Severity
    sentence: str
    remedy: str
    layers: Sequence[str]
    evidence: Mapping[str, float]
    panel: str
    trial: str
    """Section of results/advice.md that shows what the remedy did to real training."""


@final
@dataclass(frozen=True)
class Mark:
    """A step worth a line across the curves: `settled` (half of the layers had), `fell out` (the first layer did), or
    an incident by its name."""

    step: float
    what: str
    incident: bool = False


@final
@dataclass(frozen=True)
class Spread:
    """Rotation of a layer's neurons over their median, averaged over the last part of the run, against noise.

    `noise` is the 95th over the 5th percentile that white noise alone would give.
    """

    q05: float
    q25: float
    q75: float
    q95: float
    noise: float


@final
@dataclass(frozen=True)
class Distribution:
    """How many vectors of a layer have a value in each bin, and which have the smallest and the largest.

    Bin k counts 2^((k-96)/2) ≤ |x| < 2^((k-95)/2); `counts` begins with bin `first`. Ids are -1 where there is none.
    """

    step: int
    first: int
    counts: Sequence[int]
    least: float
    least_id: int
    most: float
    most_id: int


@final
@dataclass(frozen=True)
class LayerSummary:
    """A layer in one line: means over the last part of the run at full rate, ratios measured over predicted.

    Once a layer's numbers are not finite, the earlier ones describe it no more: all are NaN, and `diverged` is true.
    """

    diverged: bool
    reference: str
    """What the layer is compared with: "equilibrium", or its "forecast" while X = Σ a_t is below 1."""
    rotation: float
    predicted_rotation: float
    rotation_ratio: float
    norm: float
    norm_ratio: float
    decay_ratio: float
    """λ_e/λ: 1 where the loss does not see the scale of the weights."""
    rotation_discrepancy: float
    """D: squared ratio of predicted to measured rotation, of the median neuron."""
    alignment: float
    """s: 1 where updates are pure noise, above where gradients agree over the momentum's memory."""
    imbalance: float
    """95th over 5th percentile of the neurons' rotation, over that of pure noise."""
    dead_vectors: float
    frozen_share: float
    settled_at: float


@final
@dataclass(frozen=True)
class LayerData:
    """A layer: what it is, its series by the names of `LAYER_SERIES`, and what they come to."""

    name: str
    shape: Sequence[int]
    granularity: str
    vectors: int
    fan_in: int
    group: int
    summary: LayerSummary
    spread: Spread
    distributions: Mapping[str, Sequence[Distribution]]
    """By quantity, at a few steps; empty on a live page, which asks for them one by one."""
    series: Series = field(repr=False)


@final
@dataclass(frozen=True)
class GroupData:
    """A parameter group: the rule it follows, and the series `lr` and `weight_decay`."""

    rule: str
    layers: int
    series: Series = field(repr=False)


@final
@dataclass(frozen=True)
class LoggedSeries:
    """Values that training logged under one name, evenly thinned where they are many, and the last of them."""

    steps: npt.NDArray[np.int64] = field(repr=False)
    values: Array = field(repr=False)
    last: float


@final
@dataclass(frozen=True)
class Neighbour:
    """Settings with which another optimizer trains as this one does, and what it keeps."""

    name: str
    lr: float
    weight_decay: float
    kept: Sequence[str]
    rotation: float
    """Its rotation over this one's."""


@final
@dataclass(frozen=True)
class Plane:
    """Rotation and timescale over a grid of learning rates and weight decays, rows by weight decay."""

    group: int
    lr: Array
    weight_decay: Array
    rotation: Array
    timescale: Array
    neighbours: Sequence[Neighbour]


@final
@dataclass(frozen=True)
class Betas:
    """A pair of betas and its distance from instability, in continuous time and exactly; above 0 is stable."""

    beta1: float
    beta2: float
    margin: float
    exact_margin: float


@final
@dataclass(frozen=True)
class Stability:
    """The betas of Adam's groups, and for each `beta2` the largest stable beta1 by both criteria."""

    betas: Sequence[Betas]
    beta2: Array
    continuous: Array
    exact: Array


@final
@dataclass(frozen=True)
class RunData:
    """A run. `series` is taken over its layers: `angular_update.mean.q50` is the median of the layers' means."""

    name: str
    status: str
    total: int
    """Samples on disk, of which each `stride`-th was read."""
    stride: int
    steps: npt.NDArray[np.int64]
    series: Series = field(repr=False)
    scalars: Mapping[str, LoggedSeries]
    """By name in the order of appearance; on a live page those that it draws."""
    groups: Sequence[GroupData]
    layers: Sequence[LayerData]
    verdicts: Sequence[FindingData]
    marks: Sequence[Mark]
    plane: Plane | None
    stability: Stability | None
    notes: Sequence[str]
    config: Mapping[str, Any]
    id: str = ""
    """Under which a live page knows the run."""

    @property
    def score(self) -> tuple[float, ...]:
        """The smaller, the less stands out: bad findings, warnings, and how far layers are from their prediction."""
        severities = [finding.severity for finding in self.verdicts]
        ratios = np.array([layer.summary.rotation_ratio for layer in self.layers])
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.abs(np.log2(ratios))
        known = distance[np.isfinite(distance)]
        median = float(np.median(known)) if known.size else np.inf
        return severities.count("bad"), severities.count("warn"), median


@final
@dataclass(frozen=True)
class Report:
    """The page: one run, or several with the same layers: fewest findings first, then most, then the others."""

    runs: Sequence[RunData]
    gyroscope: str
    version: int = VERSION
    max_usual_ratio: float = MAX_USUAL_RATIO
    """Measured over predicted, or its inverse, from which on the table highlights a number."""
    at: int | None = None
    """The step at which the page opens; None: it shows all of them."""
