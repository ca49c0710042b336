"""The two forms in which a class describes its update to the loop: entry by entry, or whole vectors in three parts."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim import formulas
from gyroscope.optim._engine.memory import Scratch
from gyroscope.optim.formulas import Change, Number
from gyroscope.theory.law import AnyCorrelation

Group = dict[str, Any]


class Vectors(NamedTuple):
    """A tensor as a step sees it: its split into vectors, its shape and its type. Steps have float32 or better."""

    split: Split
    rotate: bool
    fan_in: int
    shape: torch.Size
    dtype: torch.dtype
    precision: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class PlainStep:
    """A step entry by entry: `step` changes weight and moments of [weight, gradient, *moments].

    Steps with equal keys are the same function. `fused` steps many tensors by one kernel, given all their weights, all
    their gradients and so on. `stacked` counts the moments of each name that share one tensor, along a new first
    dimension. 0 is one moment without that dimension.
    """

    moments: tuple[str, ...]
    step: Callable[[list[Tensor], Scratch], None]
    key: Hashable
    fused: Callable[..., None] | None = None
    stacked: int = 0


@dataclass(frozen=True)
class VectorStep:
    """A step of whole weight vectors, in rows: read a few sums, decide for each vector, move its entries.

    key         all that the functions depend on beside their arguments
    measure     (entries, rows, update, product, numbers) -> values per vector, the first of them 0 or above.
                With `makes_update` it writes Δ into `update`, otherwise `update` is the gradient
    decide      (values, rows, fan_in, numbers) -> coefficients and new rows
    move        (entries, update, coefficients, noise): changes weight and moments
    finish      (entries, coefficients): runs after `move`, outside of a compiled program
    fused       (updates of 0, gradients, *moments): writes Δ of many tensors by one kernel, or None
    angle       rotation in radians, or None on the sphere. Low-precision weights may be too coarse for it
    """

    moments: tuple[str, ...]
    rows: Mapping[str, Number]
    numbers: tuple[Number, ...]
    key: tuple[object, ...]
    measure: Callable[..., tuple[Tensor, ...]]
    decide: Callable[..., Change]
    move: Callable[..., None]
    finish: Callable[[Sequence[Tensor], Sequence[Any]], None] | None = None
    fused: Callable[..., None] | None = None
    makes_update: bool = False
    angle: Number | None = None
    stacked: ClassVar[int] = 0


Step = PlainStep | VectorStep


@dataclass(frozen=True)
class InnerRule:
    """The rule that makes Δ: a direction of `formulas` with its moments and numbers, and the rule's lr and decay.

    `direction` is None if another optimizer has made Δ. `decay` is decoupled. L2 is the number "l2".
    `formula` is the rule's name in the table of optimizers, `correlation` that of its Δ under noise, if it is known.
    """

    direction: Callable[..., None] | None
    moments: tuple[str, ...]
    numbers: Mapping[str, Number]
    lr: Number
    decay: Number = 0.0
    eps: Number = 0.0
    formula: str = ""
    correlation: AnyCorrelation | None = None

    def take_plain_step(self, tensors: list[Tensor], scratch: Scratch) -> None:
        """Take the rule's own step of [weight, gradient, *moments]."""
        w = tensors[0]
        u = scratch.like(w, at_least_float32(w.dtype))
        assert self.direction is not None
        self.direction(tensors, u, **self.numbers)
        formulas.plain_(w, u, self.lr, self.decay)

    def fused(self, **others: Number) -> Callable[..., None] | None:
        """Return torch's kernel of the rule with its numbers, or None if it has none or a number is a tensor."""
        numbers = {**self.numbers, **others}
        # The kernel takes floats. Reading a tensor would wait for its device.
        is_known = not any(isinstance(number, Tensor) for number in numbers.values())
        return partial(formulas.fused_adam_, **numbers) if is_known and self.direction in formulas.FUSED else None


def plain(inner: InnerRule) -> PlainStep:
    """Return the inner rule's own step."""
    # By value: tensors of several shapes or groups with the same numbers go into one batch.
    key = (inner.direction, *inner.numbers.values(), inner.lr, inner.decay)
    return PlainStep(inner.moments, inner.take_plain_step, key, inner.fused(lr=inner.lr, decay=inner.decay))
