"""A measured run as the start of a transfer, and a transferred run compared with the prediction of a rule."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, final

import numpy as np

from gyroscope.advice.history import LayerHistory, layer_histories
from gyroscope.advice.layer_families import join_words
from gyroscope.report.transfer_data import CheckedQuantity, TransferCheck
from gyroscope.store import open_run
from gyroscope.theory import FixedNorm, Schedule, Transfer, UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.scaling import TransferRow

# Names under which people log the batch, as a scalar or in the tracker's config.
BATCH_NAMES = ("batch", "batch_size")


@final
@dataclass(frozen=True)
class MeasuredRun:
    """The values of a run that a transfer uses.

    rule          of the group with the most layers that decay, at the peak learning rate
    steps         length of the run
    batch         as logged, or None
    width         the most common number of entries of a weight vector
    initial_norm  RMS norm of one vector at the first sample, median over layers
    layers        the layers of the group
    """

    rule: UpdateRule
    steps: float
    batch: float | None
    width: float
    initial_norm: float
    layers: tuple[LayerHistory, ...]

    def schedule(self, steps: int) -> Schedule:
        """Return the measured shape of the learning rate, stretched over a number of steps."""
        first = self.layers[0]
        known = np.isfinite(first.lr)
        share = first.steps[known] / self.steps
        multiplier = np.clip(first.lr[known] / first.lr[first.peak], 0.0, 1.0)
        return Schedule("measured", steps, 0, lambda t: np.interp(t / steps, share, multiplier))

    def sizes(self, given: Mapping[str, float]) -> dict[str, float]:
        """Return the sizes of the run by name. Those that are given replace the measured ones."""
        sizes = {"width": self.width}
        length = next((given[unit] for unit in ("tokens", "samples") if unit in given), None)
        if length is not None:
            # A logged batch may count samples while the length counts tokens.
            sizes["batch"] = length / self.steps
        else:
            sizes["steps"] = self.steps
            if self.batch is not None:
                sizes["batch"] = self.batch
        return sizes | dict(given)


def read_run(path: str | Path) -> MeasuredRun:
    """Read the settings, length, batch and widths of a run. Raise ValueError if it has no weights that decay."""
    run = open_run(path)
    layers = [layer for layer in layer_histories(run) if layer.rule is not None and not layer.is_embedding]
    groups = Counter(layer.layer.group for layer in layers if _moves(layer.rule))
    if not groups:
        raise ValueError(f"{str(path)!r} has no layer whose settings could be transferred: lr or weight decay is 0")
    chosen = tuple(layer for layer in layers if layer.layer.group == groups.most_common(1)[0][0])
    rule = chosen[0].rule
    assert rule is not None  # layers without a rule were left out
    if chosen[0].keeps_norm and not rule.keeps_norm:
        rule = FixedNorm(rule)  # a run has the rule that sets the angle of a rotational optimizer
    widths = Counter(float(layer.layer.fan_in) for layer in chosen)
    norms = [layer.series("norm", "rms")[0] for layer in chosen]
    return MeasuredRun(rule, _steps(run), _batch(run), widths.most_common(1)[0][0], float(np.nanmedian(norms)), chosen)


def _moves(rule: UpdateRule | None) -> bool:
    return rule is not None and rule.lr > 0 and (rule.weight_decay > 0 or not rule.has_weight_decay)


def _steps(run: Any) -> float:
    """Return the number of steps, by the last sample or by the last logged value if that is later."""
    logged = [run.scalar(name)[0][-1] for name in run.scalars]
    return float(max(run.steps[-1], *logged, 0) + 1)


def _batch(run: Any) -> float | None:
    """Return the batch that was logged or stored with the run."""
    stored = run.config.get("user")
    for name in BATCH_NAMES:
        if name in run.scalars:
            return float(np.median(run.scalar(name)[1]))
        if isinstance(stored, Mapping) and isinstance(stored.get(name), int | float):
            return float(stored[name]) * float(stored.get("accumulate") or 1)
    return None


def check_run(moved: Transfer, path: str | Path, name: str | None) -> TransferCheck:
    """Compare a transferred run with the prediction of a rule, by default the rule nearest to its settings."""
    run = read_run(path)
    rows = [row for row in moved.rows if row.lr and (name is None or row.name == name)]
    row = min(rows, key=lambda each: _distance(each, run.rule))
    promised = row.applied_to(run.rule)
    pairs = [_measured(layer, promised) for layer in run.layers]
    quantities: dict[str, list[tuple[float | None, float]]] = {
        "lr": [(row.lr, run.rule.lr)],
        "weight decay": [(row.weight_decay, run.rule.plain.weight_decay)],
        "rotation, mrad": [(1e3 * old, 1e3 * new) for old, new, *_ in pairs],
        "RMS entry": [(old, new) for *_, old, new in pairs],
        "run length": [(row.run_length, layer.run_length) for layer in run.layers],
    }
    checked = [CheckedQuantity.of(name, each) for name, each in quantities.items()]
    return TransferCheck(str(path), row.name, tuple(each for each in checked if each), _other(moved, run))


def _distance(row: TransferRow, rule: UpdateRule) -> float:
    pairs = ((row.lr, rule.lr), (row.weight_decay, rule.plain.weight_decay))
    return sum(abs(log(promised / used)) for promised, used in pairs if promised and used)


def _measured(layer: LayerHistory, promised: UpdateRule) -> tuple[float, ...]:
    """Return predicted and measured rotation, then RMS entry, over the last part of the run at full rate."""
    rates = promised.lr * layer.lr / layer.lr[layer.peak]
    fan_in = float(layer.layer.fan_in)
    settled = promised.at(rates, Weights(fan_in, None, tuple(layer.layer.shape)))
    unknown = np.full(len(rates), np.nan)
    angle = unknown if settled.angular_update is None else settled.angular_update
    norm = unknown if settled.norm is None else settled.norm
    norms = (layer.rms(each) / fan_in**0.5 for each in (norm, layer.series("norm", "rms")))
    return layer.rms(angle), layer.rms(layer.rms_angle), *norms


def _other(moved: Transfer, run: MeasuredRun) -> str:
    """Return the sizes in which the run differs from the requested one, or an empty sentence."""
    pairs = {"steps": (moved.to.steps, run.steps), "width": (moved.to.width, run.width)}
    # The last sample may be some steps before the end.
    other = [
        f"{name} {used:g} instead of {wanted:g}"
        for name, (wanted, used) in pairs.items()
        if wanted and abs(log(used / wanted)) > log(1.1)
    ]
    return f"This run has {join_words(other)}." if other else ""
