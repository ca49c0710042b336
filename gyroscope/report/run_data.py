"""What a page of runs shows, as plain data: the same that `gyroscope report --json` prints.

Arrays named `series` run over the samples in `RunData.steps`. Angles are radians per step. A number that is
undetermined is NaN here and null in JSON, where numbers in arrays have five digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np

from gyroscope._types import Array, Int64
from gyroscope.advice.findings import Severity
from gyroscope.advice.thresholds import MAX_USUAL_RATIO
from gyroscope.report.run_head import RunHead

Series: TypeAlias = dict[str, Array]

# What is kept of each layer, as quantity.statistic: `Run.series(layer, quantity, statistic)` has the same numbers.
LAYER_SERIES = (
    "angular_update.mean",
    "angular_update.q05",
    "angular_update.q95",
    "predicted_angular_update",
    "forecast_angular_update",
    "angle_to_start.mean",
    "angle_to_start.q05",
    "angle_to_start.q95",
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
    """A finding of the diagnosis, the panel that shows its evidence, and the trial behind its remedy."""

    kind: str
    severity: Severity
    sentence: str
    remedy: str
    layers: Sequence[str]
    evidence: Mapping[str, float]
    panel: str
    trial: str


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

    Once a layer's numbers are not finite, the earlier ones do not describe it: all are NaN, and `diverged` is true.

    reference             "equilibrium", or the "forecast" if the run is shorter than one memory
    decay_ratio           λ_e/λ: 1 if the loss does not depend on the scale of the weights
    rotation_discrepancy  D: squared ratio of predicted to measured rotation, of the median neuron
    alignment             s: 1 if updates are pure noise, above if gradients agree over the momentum's memory
    imbalance             95th over 5th percentile of the neurons' rotation, over that of pure noise
    """

    diverged: bool
    reference: str
    rotation: float
    predicted_rotation: float
    rotation_ratio: float
    norm: float
    norm_ratio: float
    decay_ratio: float
    rotation_discrepancy: float
    alignment: float
    imbalance: float
    dead_vectors: float
    frozen_share: float
    settled_at: float


@final
@dataclass(frozen=True)
class LayerData:
    """A layer: what it is, its series by the names of `LAYER_SERIES`, and what they come to.

    family         pattern of its name and those of the same layer in other blocks, or its label
    shape          of its own part of a fused weight
    distributions  by quantity, at a few steps. Empty on a live page, which asks for them one by one
    """

    name: str
    label: str
    family: str
    shape: Sequence[int]
    granularity: str
    vectors: int
    fan_in: int
    group: int
    summary: LayerSummary
    spread: Spread
    distributions: Mapping[str, Sequence[Distribution]]
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

    steps: Int64 = field(repr=False)
    values: Array = field(repr=False)
    last: float


@final
@dataclass(frozen=True)
class Plane:
    """Rotation and timescale over a grid of learning rates and weight decays, rows by weight decay.

    neighbours  settings of other optimizers that train alike: name, lr, weight_decay, what is kept, rotation ratio
    """

    group: int
    lr: Array
    weight_decay: Array
    rotation: Array
    timescale: Array
    neighbours: Sequence[Mapping[str, Any]]


@final
@dataclass(frozen=True)
class Stability:
    """The betas of Adam's groups with their exact margin, and for each `beta2` the largest stable beta1.

    continuous, exact  the criterion in continuous time and the exact one
    """

    betas: Sequence[Mapping[str, float]]
    beta2: Array
    continuous: Array
    exact: Array


@final
@dataclass(frozen=True)
class RunData:
    """A run. `series` is taken over its layers: `angular_update.mean.q50` is the median of the layers' means.

    total, stride  samples on disk, of which each `stride`-th was read
    scalars        by name in the order of appearance. On a live page only those that it draws
    summary        what the findings mean, in a few sentences
    id             under which a live page knows the run
    """

    name: str
    head: RunHead
    status: str
    total: int
    stride: int
    steps: Int64
    series: Series = field(repr=False)
    scalars: Mapping[str, LoggedSeries]
    groups: Sequence[GroupData]
    layers: Sequence[LayerData]
    summary: Sequence[str]
    verdicts: Sequence[FindingData]
    marks: Sequence[Mark]
    plane: Plane | None
    stability: Stability | None
    notes: Sequence[str]
    config: Mapping[str, Any]
    id: str = ""

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
    """The page: one run, or several on the layers they share: fewest findings first, then most, then the others.

    summary          how several runs differ, in a few sentences
    max_usual_ratio  measured over predicted, or its inverse, from which on the table highlights a number
    at               step at which the page opens. None shows all steps
    """

    runs: Sequence[RunData]
    gyroscope: str
    summary: Sequence[str] = ()
    max_usual_ratio: float = MAX_USUAL_RATIO
    at: int | None = None
