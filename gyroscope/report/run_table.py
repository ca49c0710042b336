"""The layers of a run as a table for a terminal."""

from collections.abc import Callable, Sequence
from math import isfinite, nan

from gyroscope.report.layer_table import UNKNOWN, Column, LayerTable, known, layer_table
from gyroscope.report.run_data import LayerData, LayerSummary


def run_table(layers: Sequence[LayerData]) -> LayerTable:
    """Return the table of a run's layers by family."""
    return layer_table(layers, COLUMNS, _distance, {layer.name: layer.shape for layer in layers})


def _distance(layer: LayerData) -> float:
    ratio = layer.summary.rotation_ratio
    return max(ratio, 1 / ratio) if ratio > 0 else nan


def _column(title: str, value: Callable[[LayerSummary], float], is_ratio: bool = False) -> Column:
    def text(layer: LayerData) -> str:
        number = value(layer.summary)
        if isfinite(number):
            return known(number) + "*" * (is_ratio and layer.summary.reference == "forecast")
        # A layer that was not measured and a layer whose numbers are not finite must not look the same.
        return "not finite" if layer.summary.diverged and not is_ratio else UNKNOWN

    return Column(title, lambda layer: value(layer.summary), text)


COLUMNS = (
    _column("rotation,\nrad", lambda line: line.rotation),
    _column("÷ pre-\ndicted", lambda line: line.rotation_ratio, is_ratio=True),
    _column("norm", lambda line: line.norm),
    _column("÷ pre-\ndicted", lambda line: line.norm_ratio, is_ratio=True),
    Column("λₑ/λ", lambda layer: layer.summary.decay_ratio),
    Column("spread\n÷ noise", lambda layer: layer.summary.imbalance),
    Column("settled\nat step", lambda layer: layer.summary.settled_at, is_step=True),
)
