"""The input and output of incident detectors: one sample of all layers, and an event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit

# The values of each layer in a sample, as quantity and statistic.
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


Cause = Literal[
    "lr",
    "weight_decay",
    "betas",
    "weights",
    "frozen",
    "batches",
    "layer_gradient",
    "skipped",
    "not_finite",
    "resumed",
]


@final
@dataclass
class Incident:
    """One event.

    cause     its most likely cause
    since     first step at which it can have begun, right after the last sample without it
    step      first step at which it was seen
    end       last step at which it was seen
    layers    affected layers in order. Layers of one sample are sorted by how much they are affected
    first     where it was seen first
    evidence  numbers by name
    """

    cause: Cause
    since: int
    step: int
    end: int
    layers: tuple[str, ...]
    first: str
    evidence: dict[str, float] = field(default_factory=dict)

    @property
    def loss_lasts(self) -> bool:
        """Whether it is a lasting jump of the loss, not only a spike."""
        return self.cause == "batches" and "lasting" in self.evidence


@final
@dataclass(frozen=True, eq=False)
class LayerValues:
    """One sample: for each name of `SERIES` a number per layer, NaN if there is none.

    since  first step after the last sample
    """

    since: int
    step: int
    layers: Sequence[str]
    values: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    @property
    def spacing(self) -> int:
        """Steps since the last sample."""
        return self.step - self.since + 1

    @property
    def present(self) -> Mask:
        """Layers that took part in the step."""
        return np.isfinite(self["lr"])

    @property
    def highest_lr(self) -> Array:
        """Highest learning rate since the last sample, or that of this step if the run did not record it."""
        return np.fmax(self["highest_lr"], self["lr"])

    def named(self, mask: Mask) -> tuple[str, ...]:
        """Return the names of the layers that a mask marks."""
        return tuple(self.layers[number] for number in np.flatnonzero(mask).tolist())


def jumped(now: Array, before: Array | float, factor: float = limit.SETTING_JUMP) -> Mask:
    """Return the layers whose setting rose or fell by more than a factor."""
    return np.asarray((now > factor * before) | (before > factor * now))
