"""The last step of a checkpoint, reconstructed: pure functions of sums over each weight vector.

The step was  w = (1-a)·w_before - lr·u.  The optimizer's state still contains the direction u. a is lr·λ if the decay
is decoupled, and 0 if it is part of u. ⟨w,w⟩, ⟨w,u⟩ and ⟨u,u⟩ of the saved w are then enough for norm and angle of the
step at any learning rate. Ours: docs/theory.md, "Signal". Directions consist of operators, so arrays and tensors
work. Sums are NumPy's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch

from gyroscope._types import Array, Number
from gyroscope.theory.law import safe_divide
from gyroscope.theory.rules.sgdm import update_power


def nesterov_direction(buffer: Number, momentum: float) -> Number:
    """Estimate Nesterov's update g + α·m without its last g: along m, with the length of white noise.

        E‖g + αm‖² = (1-α²)·Σc²·E‖m‖²     (ours: docs/theory.md, "Signal")

    >>> f"{nesterov_direction(1.0, 0.9):.3f}"
    '1.158'
    """
    return buffer * ((1 - momentum**2) * update_power(momentum, nesterov=True)) ** 0.5


class StepSums(NamedTuple):
    """⟨w,w⟩, ⟨w,u⟩ and ⟨u,u⟩ of the weight and the direction of a step: arrays over vectors."""

    ww: Array
    wu: Array
    uu: Array

    def before(self, lr: float, decay: float) -> "StepSums":
        """Return the sums with the weight before the step, w_before = (w + lr·u)/(1-a).

        >>> sums = StepSums(np.array([1.0]), np.array([0.0]), np.array([4.0]))
        >>> sums.before(lr=0.5, decay=0.0).ww
        array([2.])
        """
        keep = 1 - decay
        ww = (self.ww + 2 * lr * self.wu + lr**2 * self.uu) / keep**2
        return StepSums(ww, (self.wu + lr * self.uu) / keep, self.uu)

    def total(self) -> "StepSums":
        """Return the sums over all vectors together, without those that are not finite."""
        finite = np.isfinite(self).all(0)
        return StepSums(*(np.asarray(part[finite].sum()) for part in self))


@final
@dataclass(frozen=True, eq=False)
class VectorMeasurement:
    """Sums over each vector of a parameter: arrays over vectors, NaN if the state is unknown."""

    known: bool  # whether the file has the optimizer's state of the parameter
    sums: StepSums  # of the weight and the direction u of the last step
    moments: Array  # sums of Adam's m̂² and v̂
    ones: Array  # ⟨w,1⟩ and ⟨u,1⟩, for steps that remove means
    state_sum: Array  # of all entries of the optimizer's state, which is finite if they are
    kept: Mapping[str, Array] = field(default_factory=dict)  # values per vector of the optimizer's state, by name
    shape: tuple[int, ...] = ()  # of the whole parameter
    fan_in: int = 1  # entries of one vector
    dtype: torch.dtype = torch.float32  # of the weights
    steps: int = 1  # updates of this parameter, 1 if unknown
    turns: int = 1  # the same for a rotational optimizer

    @property
    def non_finite(self) -> npt.NDArray[np.bool_]:
        """Mask of vectors with a weight or a state that is not finite."""
        state = sum(self.kept.values(), self.state_sum)
        return ~np.isfinite(self.sums.ww) | (self.known & ~np.isfinite(state))

    def part(self, start: int, stop: int) -> "VectorMeasurement":
        """Return the measurement of some of the vectors."""
        of = slice(start, stop)
        return replace(
            self,
            sums=StepSums(*(part[of] for part in self.sums)),
            moments=self.moments[:, of],
            ones=self.ones[:, of],
            state_sum=self.state_sum[of],
            kept={name: values[of] for name, values in self.kept.items()},
        )


def angles(before: StepSums, lr: float, decay: float) -> Array:
    """Return the angle of the step per vector in radians, from sums with the weight before it. NaN if unknown.

        η_r = atan2(lr·sqrt(⟨u,u⟩ - ⟨w,u⟩²/⟨w,w⟩), (1-a)·√⟨w,w⟩ - lr·⟨w,u⟩/√⟨w,w⟩)     (ours: docs/theory.md, "Signal")

    >>> float(angles(StepSums(np.array([1.0]), np.array([0.0]), np.array([1.0])), lr=1.0, decay=0.0)[0])
    0.7853981633974483
    """
    # Rounding may make the difference negative if a step is purely radial.
    across2 = np.maximum(before.uu * before.ww - before.wu**2, 0.0)
    turned = np.arctan2(lr * np.sqrt(across2), (1 - decay) * before.ww - lr * before.wu)
    return np.asarray(np.where((before.ww > 0) & np.isfinite(turned), turned, np.nan))


def radial_decay(
    total: StepSums, entries: int, lr: float, decay: float, weight_decay: float, beta: float
) -> tuple[float, float]:
    """Return λ_u, the weight decay that a radial gradient amounts to, and its standard error under noise.

        decoupled:  λ_u = [⟨w,u⟩·(1-β(1-a)) + β·lr·‖u‖²]/((1-β)·‖w‖²)     (ours: docs/theory.md, "Signal")
        L2:         λ_u = [(1-α)·⟨w,u⟩ + α·lr·‖u‖²]/‖w‖² - λ

    u is the momentum itself, SGD's or Adam's scaled one. The sums are total, with the weight before the step. The error
    is that of ⟨w,u⟩ between independent entries.
    """
    y, p, r = map(float, total)
    scatter = _scatter(y, r, entries)
    if decay == 0 and weight_decay > 0:
        value = float(safe_divide((1 - beta) * p + beta * lr * r, y)) - weight_decay
        return value, (1 - beta) * scatter
    forgotten = 1 - beta * (1 - decay)
    value = float(safe_divide(p * forgotten + beta * lr * r, (1 - beta) * y))
    return value, forgotten / (1 - beta) * scatter


def _scatter(ww: float, uu: float, entries: int) -> float:
    """Return the standard error of ⟨w,u⟩/⟨w,w⟩ between independent entries."""
    return float(safe_divide((uu / max(entries, 1)) ** 0.5, ww**0.5))
