"""A measured run as the start of a transfer."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from gyroscope.advice.history import LayerHistory, layer_histories
from gyroscope.store import open_run
from gyroscope.theory import FixedNorm, Schedule, UpdateRule

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
