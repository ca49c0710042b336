"""One layer in one step: what is read of it around the step, and the table of sums that it leaves.

The table has one row for each name in `SUMS` and one column for each piece of a vector.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from torch import Tensor

from gyroscope._types import Number
from gyroscope.measure._pipeline.layers import Layer
from gyroscope.measure._pipeline.optimizers import LayerReading

# ⟨w,w⟩, ⟨w,d⟩ and ‖d - (⟨w,d⟩/⟨w,w⟩)·w‖² of a weight w that moves by d.
TURN = ("ww", "wd", "tt")
SUMS = (
    *TURN,
    "most",  # the largest |d + decay·w| of an entry
    "frozen",  # entries with a gradient that did not move
    "wg",
    "gg",
    "gm",  # m: the momentum before the step, or after it if a closure makes the gradient within the step
    "mm",
    "wm",
    "ws",  # s: the gradient over Adam's denominator b
    "ss",
    "bb",
    "hh",  # h: the gradient after the step, if the step may have rescaled it
    *(f"old_{name}" for name in TURN),  # from the weights at the previous sample to those before this step
    *(f"start_{name}" for name in TURN),  # from the weights at the first sample, of the vectors whose start is kept
)
ROW = {name: number for number, name in enumerate(SUMS)}
OLD = slice(ROW["old_ww"], ROW["old_tt"] + 1)


class SecondMoment(NamedTuple):
    """Adam's denominator after the step, b = √v̂ + ε = √(v/correction) + eps, per entry or per vector.

    `fill` is (1-β1^t)/(1-β1), by which Adam's momentum is smaller than a sum of gradients (SP Table 1).
    """

    v: Tensor
    correction: Number
    eps: Number
    fill: Number


@final
@dataclass
class LayerStep:
    """The values read from a layer around one step. `views` are its tensors as rows of vectors, the weight first.

    If the gradient is None before the step, a closure makes it within the step (`late`). It is then compared with the
    momentum after the step. `rescaled`: the step may have changed the gradient's scale. `decay`: decoupled weight decay
    moved w by -decay·w. `table`: the sums, made before the step.
    """

    layer: Layer
    grad: Tensor | None
    had_momentum: bool
    late: bool = False
    rescaled: bool = False
    second: SecondMoment | None = None
    decay: Number | None = None
    views: list[Any] = field(default_factory=list)
    table: Tensor | None = None

    @property
    def reading(self) -> LayerReading:
        """How the layer was read: the part of it that is on the host."""
        return LayerReading(self.second is not None, self.late, self.had_momentum, self.rescaled)
