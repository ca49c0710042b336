"""Measurements of the vectors of a parameter: sums, and the optimizer's values per vector."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from gyroscope._types import Array
from gyroscope.checkpoint.last_step.inverse_step import StepSums


@final
@dataclass(frozen=True, eq=False)
class VectorMeasurement:
    """Sums over each vector of a parameter: arrays over vectors, NaN if the state is unknown.

    known          whether the file has the optimizer's state of the parameter
    sums           of the weight and the direction u of the last step
    first, second  of Adam's m̂² and v̂
    ones           ⟨w,1⟩ and ⟨u,1⟩, for steps that remove means
    state_sum      of all entries of the optimizer's state, which is finite if they are
    kept           values per vector of the optimizer's state, by name
    shape, fan_in, dtype    of the whole parameter, of one vector, and of the weights
    steps          updates of this parameter, 1 if unknown
    turns          the same for a rotational optimizer
    angle_factor   of its last angle, if `follow` set one
    """

    known: bool
    sums: StepSums
    first: Array
    second: Array
    ones: Array
    state_sum: Array
    kept: Mapping[str, Array] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    fan_in: int = 1
    dtype: torch.dtype = torch.float32
    steps: int = 1
    turns: int = 1
    angle_factor: float = 1.0

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
            sums=StepSums(self.sums.ww[of], self.sums.wu[of], self.sums.uu[of]),
            first=self.first[of],
            second=self.second[of],
            ones=self.ones[:, of],
            state_sum=self.state_sum[of],
            kept={name: values[of] for name, values in self.kept.items()},
        )
