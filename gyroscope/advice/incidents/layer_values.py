"""What detectors of incidents read and report: one sample of all layers, and what was seen in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit

# What is read of each layer in a sample, as quantity and statistic.
SERIES = {
    "lr": "mean",
    "highest_lr": "mean",
    "weight_decay": "mean",
    "beta1": "mean",
    "beta2": "mean",
    "unit_grad_norm": "rms",
    "tangential_update": "rms",
    "effective_lr": "q50",
    "norm": "rms",
    "update_norm": "rms",
    "angular_update": "rms",
    "accumulated_angle": "rms",
    "skipped_steps": "mean",
    "lr_jump_step": "mean",
    "lr_before_jump": "mean",
    "setting_jump_step": "mean",
}


@final
@dataclass(frozen=True)
class Detected:
    """What a detector saw: `since`, `step` and `end` as an `Incident` has them, layers by their numbers."""

    since: int
    step: int
    end: int
    layers: tuple[int, ...]
    first: str
    evidence: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class LayerValues:
    """One sample: by the names of `SERIES` a number for each layer, NaN where there is none."""

    step: int
    values: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    @property
    def present(self) -> Mask:
        """Layers that took part in the step."""
        return np.isfinite(self["lr"])

    @property
    def highest_lr(self) -> Array:
        """Of the steps since the last sample; of this step where a run did not record it."""
        return np.fmax(self["highest_lr"], self["lr"])


def layer_numbers(mask: Mask) -> tuple[int, ...]:
    """Return the numbers of the layers that a mask marks."""
    return tuple(np.flatnonzero(mask).tolist())


def jumped(now: Array, before: Array | float, factor: float = limit.SETTING_JUMP) -> Mask:
    """Return the layers whose setting rose or fell by more than a factor."""
    return np.asarray((now > factor * before) | (before > factor * now))
