"""The input and output of the search for incidents: consecutive samples of all layers, and an event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
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
class Samples:
    """Consecutive samples of a run.

    layers  names of the layers
    steps   steps of the samples
    values  for each name of `SERIES` an array (samples, layers), NaN if there is no value
    first   number of samples of the run before these
    peak    highest learning rate of each layer before these
    """

    layers: Sequence[str]
    steps: Array
    values: Mapping[str, Array]
    first: int = 0
    peak: Array | float = nan

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def highest_lr(self) -> Array:
        """Highest learning rate since the previous sample, or that of the step if the run did not record it."""
        return np.fmax(self["highest_lr"], self["lr"])

    def row(self, step: float) -> int:
        """Return the row of the first sample from a step on, or of the last sample."""
        return min(int(np.searchsorted(self.steps, step)), len(self.steps) - 1)

    def since(self, row: int) -> int:
        """Return the first step after the sample before a row."""
        return int(self.steps[row - 1]) + 1 if row else 0

    def named(self, mask: Mask) -> tuple[str, ...]:
        """Return the names of the layers that a mask marks."""
        return tuple(self.layers[number] for number in np.flatnonzero(mask).tolist())


def previous(values: Array) -> Array:
    """Return for each row the one before it, NaN for the first.

    >>> previous(np.array([1, 2, 3])).tolist()
    [nan, 1.0, 2.0]
    """
    return np.concatenate([np.full((1, *values.shape[1:]), nan), values[:-1]])[: len(values)]


def jumped(now: Array, before: Array, factor: float = limit.SETTING_JUMP) -> Mask:
    """Return where a setting rose or fell by more than a factor."""
    return np.asarray((now > factor * before) | (before > factor * now))
