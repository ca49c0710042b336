"""The data of a page of runs, which `gyroscope report --json` prints too.

Arrays named `series` run over the samples in `RunData.steps`. Angles are radians per step. An unknown number is NaN
here and null in JSON. Numbers in arrays have five digits in JSON. tools/javascript/page_data.d.ts has the types of the
dictionaries, as the page reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np

from gyroscope._types import Array, Int64
from gyroscope.advice.thresholds import MAX_USUAL_RATIO, MIN_RATE_SHARE
from gyroscope.report.run_head import RunHead

Series: TypeAlias = dict[str, Array]

# Series of each layer as quantity.statistic. `Run.series(layer, quantity, statistic)` has the same numbers.
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
    "alignment",
)

# Series that the page shows for all layers together, with the quantiles over layers.
OVER_LAYERS = {
    "angular_update.mean": ("q05", "q50", "q95"),
    "predicted_angular_update": ("q50",),
    "forecast_angular_update": ("q50",),
}

# Number of logged scalars that a page draws. It draws the first ones, because each takes a whole chart.
MOST_DRAWN = 4

# Largest number of columns of the map: the ratio of a layer in so many parts of the run.
MAP_COLUMNS = 60

# Quantities whose distribution over the neurons of a layer can be shown.
DISTRIBUTIONS = ("angular_update", "norm")

# Kind of finding to the panel with its evidence. The evidence of other kinds is in the panel `equilibrium`.
PANELS = {
    "diverged": "table",
    "layer_imbalance": "layers",
    "scale_sensitive": "layers",
    "neuron_imbalance": "balance",
    "dead_vectors": "table",
    "frozen_entries": "table",
    "not_measured": "table",
}


@final
@dataclass(frozen=True)
class LayerData:
    """A layer: its description, its series by the names of `LAYER_SERIES`, and their summary.

    family         pattern of its name and those of the same layer in other blocks, or its label
    shape          of the layer. A part of a fused weight has its own
    summary        the layer in one line: `run_layers.summary`
    spread         rotation of its neurons over their median: `run_layers.spread`
    ratios         log2 of measured over predicted rotation, in each part of the run
    distributions  by quantity, at a few steps. Empty on a live page, which requests them one by one
    series         empty on a live page, which requests those of the layer that is open
    """

    name: str
    label: str
    family: str
    shape: Sequence[int]
    granularity: str
    vectors: int
    fan_in: int
    group: int
    summary: Mapping[str, Any]
    spread: Mapping[str, float]
    ratios: Array
    distributions: Mapping[str, Sequence[Mapping[str, Any]]]
    series: Series = field(repr=False)


@final
@dataclass(frozen=True)
class RunData:
    """A run. `series` is taken over its layers: `angular_update.mean.q50` is the median of the layers' means.

    total, stride  samples on disk. Every `stride`-th was read
    scalars        by name in the order of appearance. On a live page only those that it draws
    groups         parameter groups: rule, number of layers, and the series `lr` and `weight_decay`
    summary        what the findings mean, in a few sentences
    changes        what to change, as settings
    findings       with the panel that shows their evidence
    map_steps      first step of each part of the run, for `LayerData.ratios`
    marks          steps worth a line across the curves: `settled` (half of the layers had), or an incident by its
                   name
    id             under which a live page knows the run
    colour         number of its colour: its place among the runs that were named, so that it is the same on all pages
    """

    name: str
    head: RunHead
    status: str
    total: int
    stride: int
    steps: Int64
    map_steps: Int64
    series: Series = field(repr=False)
    scalars: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]
    layers: Sequence[LayerData]
    summary: Sequence[str]
    changes: Mapping[str, Any]
    findings: Sequence[Mapping[str, Any]]
    marks: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    config: Mapping[str, Any]
    id: str = ""
    colour: int = 0

    @property
    def score(self) -> tuple[float, ...]:
        """Sort key: number of bad findings and of warnings, and distance of the layers from their prediction."""
        severities = [finding["severity"] for finding in self.findings]
        ratios = np.array([layer.summary["rotation_ratio"] for layer in self.layers])
        distance = np.abs(np.log2(ratios[np.isfinite(ratios) & (ratios > 0)]))
        median = float(np.median(distance)) if distance.size else np.inf
        return severities.count("bad"), severities.count("warn"), median


@final
@dataclass(frozen=True)
class Report:
    """The page: one run, or several with the layers they share. First fewest findings, then most, then the others.

    summary          how several runs differ, in a few sentences
    max_usual_ratio  measured over predicted, or its inverse, above which the table highlights a number
    min_rate_share   share of the peak learning rate below which a logarithmic axis shows no curve
    at               step at which the page opens. None shows all steps
    """

    runs: Sequence[RunData]
    gyroscope: str
    summary: Sequence[str] = ()
    max_usual_ratio: float = MAX_USUAL_RATIO
    min_rate_share: float = MIN_RATE_SHARE
    at: int | None = None
