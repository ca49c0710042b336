"""One rotational step of one tensor: views, row state and compiled functions around the formulas of `step.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import FunctionType
from typing import Any, final

import torch
from torch import Tensor

from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim.shards import Across, across_processes, local, placed_like
from gyroscope.optim.step import Number, Turning, move_, plain_, sums, turn
from gyroscope.theory.validate import check_fraction

Direction = Callable[..., None]
Imbalance = tuple[float, float, int]
State = dict[str, Any]
Group = dict[str, Any]
ROW_STATE = ("radius", "update_sq", "imbalance")
"""Values per vector in a parameter's state: they stay float32 or better whatever the weights are."""


@dataclass(frozen=True)
class Inner:
    """The rule whose direction is turned: its function, its moments, its numbers of the moment, and its own step.

    `decay` is decoupled; `l2` goes into the gradient of what takes the plain step (None for a rule that has none);
    `nested` asks for one compiled loop (see `rotate_rows_`), where Inductor can make it.
    """

    direction: Direction
    moments: tuple[str, ...]
    knobs: Mapping[str, Any]
    lr: Number
    decay: Number = 0.0
    eps: Number = 0.0
    l2: Number | None = None
    nested: bool = True

    def knobs_for(self, w: Tensor, plain: Any) -> Mapping[str, Any]:
        """The direction's numbers; `plain` is 1 for the vectors that take the plain step, 0 for those that turn."""
        if self.l2 is None:
            return self.knobs
        return {**self.knobs, "w": w, "l2": torch.as_tensor(self.l2 * plain, dtype=at_least_float32(w.dtype))}

    @cached_property
    def scalars(self) -> Mapping[str, Any]:
        """The direction's numbers as 0-d tensors."""
        return {name: scalar(knob) for name, knob in self.knobs.items()}


Rule = Callable[[Group, int], tuple[Inner, Number | None]]
"""From a group and a step count to the inner rule of the moment and its angle (None: it never rotates)."""


@dataclass(frozen=True)
class Plan:
    """What the tensors of one group with one step count share in a step."""

    split: Split
    inner: Inner
    by: Turning

    @cached_property
    def scalars(self) -> Turning:
        """The turn's numbers as 0-d tensors."""
        return Turning(*map(scalar, self.by))


@final
class Workspace:
    """What the tensors of one step share: memory for Δ, noise for rounding, a count, and a note for the user."""

    def __init__(self) -> None:
        self.num_tensors = 0
        self.rounds_updates_away = False
        self.held: Tensor | None = None
        self._plans: dict[tuple[int, int], Plan] = {}
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

    def plan(self, group: Group, t: int, rule: Rule) -> Plan:
        """The numbers of a group's t-th step, made once: most of its tensors have the same count."""
        key = (id(group), t)
        if key not in self._plans:
            inner, angle = rule(group, t)
            beta = group.get("beta", 0.0)
            by = Turning(angle, beta, 1 - beta**t, 1 - beta ** (t - 1), inner.eps, inner.lr, inner.decay)
            self._plans[key] = Plan(Split("none") if angle is None else Split.of(group), inner, by)
        return self._plans[key]

    def noise(self, x: Tensor, seed: int) -> Tensor:
        """Uniform in [-½, ½), of x's shape; the seed is the step's number, so that a resumed run rounds alike."""
        generator = self._generators.get(x.device)
        if generator is None:
            generator = self._generators[x.device] = torch.Generator(x.device).manual_seed(seed)
        return torch.empty(x.shape, device=x.device).uniform_(-0.5, 0.5, generator=generator)


def row_state(split: Split, p: Tensor, imbalance: Imbalance | None, number: int) -> dict[str, Tensor]:
    """A radius not read yet (-1) and an empty average of ‖Δ⊥‖² for each vector of the `number`-th tensor."""
    vectors = split.num_vectors(p.shape)
    # A DTensor's values per vector are spread over processes as its vectors are.
    like = split.sum(p) if hasattr(p, "placements") else p.new_empty(vectors, dtype=at_least_float32(p.dtype))
    state = {"radius": torch.full_like(like, -1.0), "update_sq": torch.zeros_like(like)}
    if imbalance is not None:
        share, factor, seed = imbalance
        state["imbalance"] = placed_like(imbalance_factors(vectors, share, factor, seed + number).to(like.dtype), like)
    return state


def slack(dtype: torch.dtype) -> float:
    """How far rounding may take a norm from its radius, relative; what is further was set from outside."""
    return max(1e-3, 2 * torch.finfo(dtype).eps)


def imbalance_factors(vectors: int, share: float, factor: float, seed: int) -> Tensor:
    """`factor` for a share of the vectors, chosen by seed, and 1 for the others: the imbalance experiment (RE Fig. 12).

    >>> imbalance_factors(4, share=0.5, factor=10.0, seed=0).sort().values
    tensor([ 1.,  1., 10., 10.])
    """
    order = torch.randperm(vectors, generator=torch.Generator().manual_seed(seed))
    return torch.where(order < round(share * vectors), factor, 1.0)


def update_(p: Tensor, grad: Tensor, state: State, group: Group, rule: Rule, space: Workspace) -> None:
    """One step of one parameter: turned by the rule's angle where its group rotates it, else the plain step."""
    t = int(state["step"])
    plan = space.plan(group, t, rule)
    inner = plan.inner
    for name in inner.moments:
        if name not in state:
            state[name] = torch.zeros_like(p)
    moments = [state[name] for name in inner.moments]
    if plan.split.rotates(p.shape):
        _rotate(p.detach(), grad, moments, state, group, plan, space)
    else:
        w, grad, *moments = map(local, (p.detach(), grad, *moments))
        u = space.like(w)
        inner.direction(grad, u, *moments, **inner.knobs_for(w, 1.0))
        plain_(w, u, inner.lr, inner.decay)
    space.num_tensors += 1


def _rotate(
    p: Tensor, grad: Tensor, moments: list[Tensor], state: State, group: Group, plan: Plan, space: Workspace
) -> None:
    split, inner = plan.split, plan.inner
    if "radius" not in state:
        state.update(row_state(split, p, group["imbalance"], space.num_tensors))
    across, noise = across_processes(p, split), None
    w, grad, *moments = map(local, (p, grad, *moments))
    if across is None and w.numel() == 0:  # an empty shard has nothing to turn, and nobody waits for it
        return
    if w.dtype.itemsize < 4:
        noise = space.noise(w, int(state["step"])) if group["stochastic_rounding"] else None
        space.rounds_updates_away |= noise is None and _known_below(plan.by.angle, 1.28 * torch.finfo(w.dtype).eps)
    by = plan.scalars if group["compile"] and across is None else plan.by
    if "imbalance" in state:
        by = by._replace(angle=by.angle * local(state["imbalance"]))
    options = {"fan_in": split.fan_in(p.shape), "centre": group["centre"], "slack": slack(w.dtype)}
    pieces = split if across is None else across.split
    views = pieces.rows(w, grad, *moments, *([] if noise is None else [noise]))
    noise = None if noise is None else views.pop()
    w, grad, *moments = views
    radius, rows = local(state["radius"]), (local(state["radius"]), local(state["update_sq"]))
    plain = None
    if inner.l2 is not None:
        at_rest = radius == 0 if across is None else (radius == 0)[across.mine]
        plain = at_rest.to(radius.dtype).view(-1, *(1,) * (w.dim() - 1))
    if group["compile"] and across is None:
        kind = (inner.direction, w.dim(), w.dtype, w.shape[0] == 1, group["centre"], noise is None)
        knobs = inner.scalars if inner.l2 is None else {**inner.scalars, "w": w, "l2": inner.l2 * plain}
        ones = torch.ones_like(radius).view(-1, *(1,) * (w.dim() - 1)) if inner.nested else None
        program = compiled(rotate_rows_, kind)
        space.held = program(inner.direction, w, grad, moments, rows, knobs, by, noise, None, ones, **options)
    else:
        knobs = inner.knobs_for(w, plain)
        u = space.like(w)
        rotate_rows_(inner.direction, w, grad, moments, rows, knobs, by, noise, u, across=across, **options)


def rotate_rows_(
    direction: Direction,
    w: Tensor,
    grad: Tensor,
    moments: list[Tensor],
    rows: tuple[Tensor, Tensor],
    knobs: Mapping[str, Any],
    by: Turning,
    noise: Tensor | None,
    u: Tensor | None,
    ones: Tensor | None = None,
    across: Across | None = None,
    **options: Any,
) -> Tensor | None:
    """A rotational step on rows, in one compiled program: `rows` are radius and update_sq, `u` is memory for Δ."""
    compiling, u = u is None, torch.empty_like(w, dtype=rows[0].dtype) if u is None else u
    # A factor per vector keeps Inductor's loops nested, vectors over entries: moments, Δ and sums then make ONE loop.
    direction(grad if ones is None else grad * ones, u, *moments, **knobs)
    found = sums(w, u)
    if across is not None:
        coefficients = turn(across.summed(found), *rows, by, **options)[..., across.mine]
    else:
        coefficients = turn(found, *rows, by, **options)
    # Inductor copies nothing for the clone. Its Δ is returned so that the caller can hold the memory until the next one
    # is made: freed at once, it would go back to the system, and fresh pages cost as much as the arithmetic.
    move_(w, u.clone() if compiling else u, coefficients, noise)
    return u if compiling else None


@cache
def compiled(function: Callable[..., Any], key: tuple[object, ...]) -> Callable[..., Any]:
    """`function` compiled for one kind of tensor (sizes stay free).

    A copy of its code for each kind, because Dynamo counts recompilations per code object and gives up after eight.
    """
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return torch.compile(copy, dynamic=True, fullgraph=True)


def scalar(value: Any) -> Any:
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
