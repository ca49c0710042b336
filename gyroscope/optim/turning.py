"""One rotational step of one tensor: views, row state and compiled functions around the formulas of `step.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, final

import torch
from torch import Tensor

from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim.step import Number, Turning, move_, plain_, sums, turn
from gyroscope.theory.validate import check_fraction

Direction = Callable[..., None]
Imbalance = tuple[float, float, int]
State = dict[str, Any]
Group = dict[str, Any]
ROW_STATE = ("radius", "update_sq", "imbalance")
"""Values per vector in a parameter's state: they stay float32 or better whatever the weights are."""

COMPILE_FROM = 2**14
"""Entries below which a compiled call (70 µs before it starts) takes longer than the eager operations."""


@final
class Workspace:
    """What the tensors of one step share: memory for Δ, noise for rounding, a count, and a note for the user."""

    def __init__(self) -> None:
        self.num_tensors = 0
        self.rounds_updates_away = False
        self._buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._generators: dict[torch.device, torch.Generator] = {}

    def like(self, x: Tensor) -> Tensor:
        """Uninitialised, of x's shape, x's strides where they are dense, and float32 or better.

        One memory for all tensors: fresh pages would cost as much as the arithmetic.
        """
        dtype = at_least_float32(x.dtype)
        buffer = self._buffers.get((x.device, dtype))
        if buffer is None or buffer.numel() < x.numel():
            buffer = self._buffers[x.device, dtype] = torch.empty(x.numel(), dtype=dtype, device=x.device)
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        return buffer.as_strided(x.shape, x.stride()) if span == x.numel() else buffer[: x.numel()].view(x.shape)

    def noise(self, x: Tensor, seed: int) -> Tensor:
        """Uniform in [-½, ½), of x's shape; the seed is the step's number, so that a resumed run rounds alike."""
        generator = self._generators.get(x.device)
        if generator is None:
            generator = self._generators[x.device] = torch.Generator(x.device).manual_seed(seed)
        return torch.empty(x.shape, device=x.device).uniform_(-0.5, 0.5, generator=generator)


@dataclass(frozen=True)
class Inner:
    """The rule whose direction is turned: its function, its moments, its numbers of the moment, and its own step.

    `decay` is decoupled; `l2` goes into the gradient of what takes the plain step (None for a rule that has none).
    """

    direction: Direction
    moments: tuple[str, ...]
    knobs: Mapping[str, Any]
    lr: Number
    decay: Number = 0.0
    eps: Number = 0.0
    l2: Number | None = None

    def knobs_for(self, w: Tensor, plain: Tensor) -> Mapping[str, Any]:
        """The direction's numbers; `plain` is 1 for the vectors that take the plain step, 0 for those that turn."""
        return self.knobs if self.l2 is None else {**self.knobs, "w": w, "l2": self.l2 * plain}


def row_state(split: Split, p: Tensor, imbalance: Imbalance | None, number: int) -> dict[str, Tensor]:
    """A radius not read yet (-1) and an empty average of ‖Δ⊥‖² for each vector of the `number`-th tensor."""
    vectors, dtype = split.num_vectors(p.shape), at_least_float32(p.dtype)
    state = {
        "radius": torch.full((vectors,), -1.0, dtype=dtype, device=p.device),
        "update_sq": torch.zeros(vectors, dtype=dtype, device=p.device),
    }
    if imbalance is not None:
        share, factor, seed = imbalance
        state["imbalance"] = imbalance_factors(vectors, share, factor, seed + number).to(p.device, dtype)
    return state


def imbalance_factors(vectors: int, share: float, factor: float, seed: int) -> Tensor:
    """`factor` for a share of the vectors, chosen by seed, and 1 for the others: the imbalance experiment (RE Fig. 12).

    >>> imbalance_factors(4, share=0.5, factor=10.0, seed=0).sort().values
    tensor([ 1.,  1., 10., 10.])
    """
    order = torch.randperm(vectors, generator=torch.Generator().manual_seed(seed))
    return torch.where(order < round(share * vectors), factor, 1.0)


def update_(p: Tensor, grad: Tensor, state: State, group: Group, inner: Inner, angle: Number, space: Workspace) -> None:
    """One step of one parameter: turned by `angle` on average where its group rotates it, else the inner rule's own."""
    split = Split.of(group)
    for name in inner.moments:
        if name not in state:
            state[name] = torch.zeros_like(p)
    moments = [state[name] for name in inner.moments]
    if split.rotates(p.shape):
        _rotate(p.detach(), grad, moments, state, group, split, inner, angle, space)
    else:
        u = space.like(p)
        inner.direction(grad, u, *moments, **inner.knobs_for(p, u.new_ones(())))
        plain_(p, u, inner.lr, inner.decay)
    space.num_tensors += 1


def _rotate(
    w: Tensor,
    grad: Tensor,
    moments: list[Tensor],
    state: State,
    group: Group,
    split: Split,
    inner: Inner,
    angle: Number,
    space: Workspace,
) -> None:
    if "radius" not in state:
        state.update(row_state(split, w, group.get("imbalance"), space.num_tensors))
    t, beta, low = int(state["step"]), group["beta"], w.dtype.itemsize < 4
    noise = space.noise(w, t) if low and group["stochastic_rounding"] else None
    if low and noise is None:
        space.rounds_updates_away |= _known_below(angle, 1.28 * torch.finfo(w.dtype).eps)
    if "imbalance" in state:
        angle = angle * state["imbalance"]
    by = Turning(angle, beta, 1 - beta**t, 1 - beta ** (t - 1), inner.eps, inner.lr, inner.decay)
    options = {
        "fan_in": split.fan_in(w.shape),
        "centre": group["centre"],
        "slack": max(1e-3, 2 * torch.finfo(w.dtype).eps),
    }
    views = split.rows(w, grad, *moments, *([] if noise is None else [noise]))
    noise = None if noise is None else views.pop()
    w, grad, *moments = views
    u, rows = space.like(w), (state["radius"], state["update_sq"])
    column = (-1, *(1,) * (w.dim() - 1))
    knobs = inner.knobs_for(w, (state["radius"] == 0).to(u.dtype).view(column))
    if group["compile"] and w.numel() >= COMPILE_FROM:
        kind = (inner.direction, w.dim(), w.dtype, w.shape[0] == 1, group["centre"], noise is None)
        knobs = {name: _scalar(knob) for name, knob in knobs.items()}
        ones = torch.ones_like(state["radius"]).view(column)
        found = compiled(_advance, kind)(inner.direction, w, grad, u, moments, knobs, ones)
        compiled(_finish, kind)(w, u, found, *rows, Turning(*map(_scalar, by)), noise, **options)
    else:
        found = _advance(inner.direction, w, grad, u, moments, knobs)
        _finish(w, u, found, *rows, by, noise, **options)


def _advance(
    direction: Direction,
    w: Tensor,
    grad: Tensor,
    u: Tensor,
    moments: list[Tensor],
    knobs: Mapping[str, Any],
    ones: Tensor | None = None,
) -> Tensor:
    # A factor per vector keeps Inductor's loops nested, vectors over entries: moments, Δ and sums then make ONE loop.
    direction(grad if ones is None else grad * ones, u, *moments, **knobs)
    return sums(w, u)


def _finish(
    w: Tensor,
    u: Tensor,
    found: Tensor,
    radius: Tensor,
    update_sq: Tensor,
    by: Turning,
    noise: Tensor | None,
    **options: Any,
) -> None:
    move_(w, u, turn(found, radius, update_sq, by, **options), noise)


@cache
def compiled(function: Callable[..., Any], key: tuple[object, ...]) -> Callable[..., Any]:
    """`function` compiled for one kind of tensor (sizes stay free).

    A copy of its code for each kind, because Dynamo counts recompilations per code object and gives up after eight.
    """
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return torch.compile(copy, dynamic=True, fullgraph=True)


def _scalar(value: Any) -> Any:
    """A number as a 0-d tensor, so that a new value is no new program; flags and tensors stay."""
    number = isinstance(value, float | int) and not isinstance(value, bool)
    return torch.tensor(value, dtype=torch.float64) if number else value


def _known_below(angle: Number, threshold: float) -> bool:
    """Whether the angle is above 0 and below the threshold, as far as that is known without asking a device."""
    return not (isinstance(angle, Tensor) and angle.device.type != "cpu") and bool(0 < angle < threshold)


def check_rotational(group: Group) -> None:
    """Raise unless the options that all rotational optimizers share make sense together."""
    split, imbalance = Split.of(group), group["imbalance"]
    turning = any(split.rotates(p.shape) for p in group["params"])
    check_fraction("beta", group["beta"])
    if turning and group["weight_decay"] == 0:
        raise ValueError(
            "weight_decay=0 in a group that rotates: its angular update would be 0; give it a weight decay, "
            "for example 0.1, or granularity='none'"
        )
    if imbalance is not None:
        share, factor, seed = imbalance
        if not (0 <= share <= 1 and factor > 0 and isinstance(seed, int)):
            raise ValueError(f"imbalance={imbalance!r} must be (share in [0, 1], factor above 0, integer seed)")
