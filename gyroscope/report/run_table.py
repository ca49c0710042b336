"""The tables of a page of runs: a line for each run, and the columns of the table of layers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.phrases import format_number
from gyroscope.report.layer_table import UNKNOWN, Column, LayerTable, known, layer_table
from gyroscope.report.run_data import LayerData, RunData, RunTable

RUN_HELPS = {
    "run": "name of its folder",
    "loss": "mean of the last values that training logged, on held-out data if there are any",
    "optimizer": "of the group with most layers",
    "lr": "peak learning rate",
    "wd": "weight decay at the peak learning rate",
    "rotation": "median over layers, per step, in the last part of the run at full rate",
    "state": "of most layers, and in parentheses the length of the run in memories",
    "steps": "taken so far",
    "change": "what the findings ask for",
}


def run_table(runs: Sequence[RunData]) -> RunTable:
    """Return the table of runs."""
    names = {run.head.loss_name for run in runs}
    loss = names.pop() if len(names) == 1 else "loss"
    header = [{"loss": loss or "loss"}.get(name, name) for name in RUN_HELPS]
    return RunTable(header, list(RUN_HELPS.values()), [_run_cells(run) for run in runs])


def _run_cells(run: RunData) -> list[str]:
    head = run.head
    rotations = [layer.summary["rotation"] for layer in run.layers if isfinite(layer.summary["rotation"])]
    steps = f"{head.steps:,}"
    return [
        run.name,
        known(head.loss, 4),
        head.optimizer,
        known(head.lr),
        known(head.weight_decay),
        f"{format_number(1e3 * float(np.median(rotations)), 2)} mrad" if rotations else UNKNOWN,
        _state(run),
        steps if run.status == "finished" else f"{steps}, {run.status}",
        changes_text(run.changes) or ("see findings" if any(each["remedy"] for each in run.findings) else UNKNOWN),
    ]


def _state(run: RunData) -> str:
    states = Counter(layer.summary["state"] for layer in run.layers)
    state = states.most_common(1)[0][0] if states else "unknown"
    length = run.head.run_length
    return f"{state} ({format_number(length, 2)})" if length > 0 and state != "at its angle" else state


def changes_text(changes: Mapping[str, Any]) -> str:
    """Return settings to change in a few words.

    >>> changes_text({"warmup": 50, "lr": "×0.3", "betas": (0.9, 0.99), "gain": True})
    'warmup 50, lr ×0.3, betas 0.9 and 0.99, gain'
    """
    texts = []
    for name, value in changes.items():
        words = " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        texts.append(name.replace("_", " ") + (f" {words}" if value is not True else ""))
    return ", ".join(texts)


def _column(title: str, name: str, help: str, *, is_ratio: bool = False) -> Column:
    def text(layer: LayerData, digits: int) -> str:
        if isfinite(layer.summary[name]):
            return known(layer.summary[name], digits) + "*" * (is_ratio and layer.summary["reference"] != "forecast")
        # A layer that was not measured and a layer whose numbers are not finite must not look the same.
        return "not finite" if layer.summary["diverged"] and not is_ratio else UNKNOWN

    return Column(title, lambda layer: layer.summary[name], text, help=help, is_ratio=is_ratio)


def _plain(title: str, name: str, help: str) -> Column:
    return Column(title, lambda layer: layer.summary[name], help=help)


COLUMNS = (
    _column("rotation,\nrad", "rotation", "angle per step, root mean square over vectors"),
    _column("÷ fore-\ncast", "rotation_ratio", "rotation over that of the forecast", is_ratio=True),
    _column("norm", "norm", "root mean square over vectors"),
    _column("÷ fore-\ncast", "norm_ratio", "norm over that of the forecast", is_ratio=True),
    Column("state", lambda _: nan, lambda layer, _: layer.summary["state"], help="of norm and rotation"),
    _plain(
        "λₑ/λ",
        "decay_ratio",
        "effective over given weight decay: 1 if the loss does not depend on the scale of the weights",
    ),
    _plain(
        "spread\n÷ noise",
        "imbalance",
        "95th over 5th percentile of the neurons' rotation, over that of pure noise: 1 if neurons are balanced",
    ),
    _plain(
        "radial\ngradient",
        "radial_gradient",
        "cosine of gradient and weight in a scale-sensitive layer: below 0 the gradient makes the norm grow",
    ),
    _plain("update", "update", "length of one step in a scale-sensitive layer, root mean square over vectors"),
    Column(
        "dead",
        lambda layer: layer.summary["dead_vectors"] or nan,
        help="vectors that never had a gradient",
        is_step=True,
    ),
    Column(
        "frozen",
        lambda layer: layer.summary["frozen_share"] if layer.summary["frozen_share"] >= limit.MIN_SHOWN_FROZEN else nan,
        help="share of the entries with a gradient that a step does not change, from 0.1 %",
    ),
    Column(
        "settled\nat step",
        lambda layer: layer.summary["settled_at"],
        help="step at which the norm came within 10 % of equilibrium",
        is_step=True,
    ),
    _plain("s", "alignment", "1 if updates are pure noise, larger if gradients agree from step to step"),
)


def _distance(layer: LayerData) -> float:
    ratio = layer.summary["rotation_ratio"]
    return max(ratio, 1 / ratio) if ratio > 0 else nan


def run_layer_table(layers: Sequence[LayerData]) -> LayerTable:
    """Return the table of the layers of a run, by family."""
    return layer_table(layers, COLUMNS, _distance, {layer.name: layer.shape for layer in layers})
