"""The data of a page of runs, which `gyroscope report --json` prints too.

Arrays named `series` run over the samples in `RunData.steps`. Angles are radians per step. An unknown number is NaN
here and null in JSON. Numbers in arrays have five digits in JSON. tools/javascript/page_data.d.ts has the types of the
dictionaries, as the page reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from gyroscope._types import Array, Int64
from gyroscope.advice.thresholds import MIN_RATE_SHARE
from gyroscope.report.layer_table import LayerTable
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


@final
@dataclass(frozen=True)
class LayerData:
    """A layer: its description, its series by the names of `LAYER_SERIES`, and their summary.

    family         pattern of its name and those of the same layer in other blocks, or its label
    shape          of the layer. A part of a fused weight has its own
    summary        the layer in one line: `run_layers.summary`
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
    findings       worst first
    table          the layers by family, as text
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
    table: LayerTable
    marks: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    config: Mapping[str, Any]
    id: str = ""
    colour: int = 0


@final
@dataclass(frozen=True)
class RunTable:
    """A line of text for each run, in the order of the page. `helps` has a tooltip for each column."""

    header: Sequence[str]
    helps: Sequence[str]
    rows: Sequence[Sequence[str]]


@final
@dataclass(frozen=True)
class Report:
    """The page: one run, or several with the layers they share. The lowest loss comes first.

    table            a line of text for each run
    left_out         the sentence about layers that only some runs have, or empty
    min_rate_share   share of the peak learning rate below which a logarithmic axis shows no curve
    at               step at which the page opens. None shows all steps
    """

    runs: Sequence[RunData]
    gyroscope: str
    table: RunTable
    left_out: str = ""
    min_rate_share: float = MIN_RATE_SHARE
    at: int | None = None
