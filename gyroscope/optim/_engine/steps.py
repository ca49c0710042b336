"""The form in which a class describes its update to the loop: a direction, and how whole vectors turn along it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope.geometry import Split
from gyroscope.optim import formulas
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim.formulas import Change, Number

Group = dict[str, Any]


class TensorKind(NamedTuple):
    """A tensor as a step sees it: its split into vectors, its shape and its type. Steps have float32 or better."""

    split: Split
    rotates: bool
    fan_in: int
    shape: torch.Size
    dtype: torch.dtype
    precision: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Turn:
    """How whole weight vectors, in rows, take a step: read a few sums, decide for each vector, move its entries.

    rows        names of the values per vector, with those before the first step
    numbers     all numbers of the step, among them the direction's
    key         all that the functions depend on beside their arguments
    measure     (entries, rows, update, product, numbers) -> values per vector, the first of them 0 or above.
                It writes Δ into `update` if the step has a direction. Otherwise `update` is the gradient
    decide      (values, rows, fan_in, numbers) -> coefficients and new rows
    move        (entries, update, coefficients, noise, scratch): changes weight and moments
    finish      (entries, coefficients): runs after `move`, outside of a compiled program
    angle       rotation in radians, or None on the sphere. Low-precision weights may be too coarse for it
    """

    rows: Mapping[str, Number]
    numbers: tuple[Number, ...]
    key: tuple[object, ...]
    measure: Callable[..., tuple[Tensor, ...]]
    decide: Callable[..., Change]
    move: Callable[..., None]
    finish: Callable[[Sequence[Tensor], Sequence[Any]], None] | None = None
    angle: Number | None = None


@dataclass(frozen=True)
class Step:
    """A step of [weight, gradient, *moments]: entry by entry along a direction, or as `turn` says.

    direction   of `formulas`, with its moments and numbers. None if another optimizer has made Δ, or `turn` has none
    lr, decay   the rule's own. `decay` is decoupled. L2 is the number "l2"
    stacked     moments of each name that share one tensor, along a new first dimension. 0 is one without that dimension
    descend     (weight, update, lr, decay): changes the weight entry by entry
    compile     whether a program takes the step entry by entry. That of a turn is an option of the group
    """

    direction: Callable[..., None] | None
    moments: tuple[str, ...]
    numbers: Mapping[str, Number]
    lr: Number
    decay: Number = 0.0
    turn: Turn | None = None
    stacked: int = 0
    descend: Callable[..., None] = field(default=formulas.plain_)
    compile: Compile = False

    @property
    def key(self) -> Hashable:
        """All that the step entry by entry depends on. Tensors of several shapes or groups may share a batch."""
        return (self.direction, *self.numbers.values(), self.lr, self.decay, self.descend, self.compile)

    @cached_property
    def kernel(self) -> Callable[..., None] | None:
        """torch's kernel of the step entry by entry, given all weights, all gradients and so on, if there is one."""
        return self._fused(lr=self.lr, decay=self.decay)

    @cached_property
    def direction_kernel(self) -> Callable[..., None] | None:
        """torch's kernel of Δ, which it adds to the first of its tensors, if there is one."""
        return self._fused()

    def _fused(self, **others: Number) -> Callable[..., None] | None:
        """Return torch's kernel with the step's numbers, or None if it has none or a number is a tensor."""
        numbers = {**self.numbers, **others}
        # The kernel takes floats. Reading a tensor would wait for its device.
        is_known = not any(isinstance(number, Tensor) for number in numbers.values())
        return partial(formulas.fused_adam_, **numbers) if is_known and self.direction in formulas.FUSED else None
