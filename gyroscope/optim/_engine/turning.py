"""One rotational step of one tensor: views, row state and pieces in cache around the formulas of `step.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gyroscope._checks import check_fraction
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.compiled import Program, can_run, packed, program_for, rotate_rows
from gyroscope.optim._engine.shards import Across, across_processes, local, placed_like
from gyroscope.optim._engine.workspace import WHOLE, Own, Workspace, cut, in_cache
from gyroscope.optim.formulas import Number, Turning, column, eager_sums, move_, plain_, turn

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
    `fused_` is the rule's own step of many tensors at once, where torch has a kernel for it; `cheap` says that a
    program makes Δ twice in less time than it takes to keep it.
    """

    direction: Direction
    moments: tuple[str, ...]
    knobs: Mapping[str, Any]
    lr: Number
    decay: Number = 0.0
    eps: Number = 0.0
    l2: Number | None = None
    fused_: Callable[..., None] | None = None
    cheap: bool = False

    def knobs_for(self, w: Tensor, plain: Any) -> Mapping[str, Any]:
        """The direction's numbers; `plain` is 1 for the vectors that take the plain step, 0 for those that turn."""
        if self.l2 is None:
            return self.knobs
        return {**self.knobs, "w": w, "l2": torch.as_tensor(self.l2 * plain, dtype=at_least_float32(w.dtype))}


Rule = Callable[[Group, int], tuple[Inner, Number | None]]
"""From a group and a step count to the inner rule of the moment and its angle (None: it never rotates)."""


@dataclass(frozen=True)
class Plan:
    """What the tensors of one group with one step count share in a step."""

    split: Split
    inner: Inner
    by: Turning
    _packed: dict[torch.device, Tensor] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The direction's knobs that are numbers."""
        return tuple(name for name, knob in self.inner.knobs.items() if not isinstance(knob, bool))

    @cached_property
    def flags(self) -> dict[str, bool]:
        """The direction's knobs that are flags."""
        return {name: knob for name, knob in self.inner.knobs.items() if isinstance(knob, bool)}

    def numbers(self, device: torch.device) -> Tensor:
        """The turn's numbers, the direction's and the L2, if it has one, as one tensor, made once."""
        if device not in self._packed:
            l2 = [] if self.inner.l2 is None else [self.inner.l2]
            knobs = [self.inner.knobs[name] for name in self.names]
            self._packed[device] = packed([*self.by, *knobs, *l2], device)
        return self._packed[device]


class How(NamedTuple):
    """What a turn needs to know of a tensor beside its entries."""

    fan_in: int
    centre: bool
    slack: float
    across: Across | None = None


class Piece(NamedTuple):
    """Vectors whose Δ is known, with their sums and their row state."""

    w: Tensor
    u: Tensor
    noise: Tensor | None
    sums: tuple[Tensor, ...]
    rows: dict[str, Tensor]
    how: How


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
    plan = planned(group, int(state["step"]), rule, space)
    for name in plan.inner.moments:
        if name not in state:
            state[name] = torch.zeros_like(p)
    w = p.detach()
    tensors = [local(w), local(grad), *[local(state[name]) for name in plan.inner.moments]]
    if plan.split.rotates(p.shape):
        _rotate(w, tensors, state, group, plan, space)
    else:
        space.act(space.once(("own", id(plan)), lambda: own_step(plan.inner, space)), tensors)
    space.num_tensors += 1


def planned(group: Group, t: int, rule: Rule, space: Workspace) -> Plan:
    """The numbers of a group's t-th step: most of its tensors have the same count."""

    def make() -> Plan:
        inner, angle = rule(group, t)
        by = Turning.at(t, 0.0 if angle is None else angle, group.get("beta", 0.0), inner.eps, inner.lr, inner.decay)
        return Plan(Split("none") if angle is None else Split.of(group), inner, by)

    return cast(Plan, space.once((id(group), t), make))


def own_step(inner: Inner, space: Workspace) -> Own:
    """The inner rule's own step."""

    def step(tensors: list[Tensor]) -> None:
        w, grad, *moments = tensors
        u = space.like(w)
        inner.direction(grad, u, *moments, **inner.knobs_for(w, 1.0))
        plain_(w, u, inner.lr, inner.decay)

    numbers = {**inner.knobs, "lr": inner.lr, "decay": inner.decay}
    known = not any(isinstance(number, Tensor) for number in numbers.values())
    return Own(step, partial(inner.fused_, **numbers) if inner.fused_ is not None and known else None)


def _rotate(p: Tensor, tensors: list[Tensor], state: State, group: Group, plan: Plan, space: Workspace) -> None:
    split, w = plan.split, tensors[0]
    if "radius" not in state:
        state.update(row_state(split, p, group["imbalance"], space.num_tensors))
    across = across_processes(p, split)
    if across is None and w.numel() == 0:  # an empty shard has nothing to turn, and nobody waits for it
        return
    noise = space.noise(w, int(state["step"]), plan.by.angle, group["stochastic_rounding"])
    views = (split if across is None else across.split).rows(*tensors, *([] if noise is None else [noise]))
    rows = {name: local(state[name]) for name in ROW_STATE if name in state}
    how = How(split.fan_in(p.shape), group["centre"], slack(w.dtype), across)
    if group["compile"] and across is None and can_run(w):
        rotate_compiled(views, rows, plan, how, space)
    else:
        noise = None if noise is None else views.pop()
        _rotate_eager(views, noise, rows, plan, how, space)


def rotate_compiled(entries: list[Tensor], rows: dict[str, Tensor], plan: Plan, how: How, space: Workspace) -> None:
    """One rotational step of [weight, gradient, *moments, noise if there is any] in rows, by one program."""
    scratch = not plan.inner.cheap
    key = (plan.inner.direction, plan.names, *plan.flags.values(), how.centre, how.slack)
    step = partial(
        rotate_rows,
        direction=plan.inner.direction,
        names=plan.names,
        flags=plan.flags,
        l2=plan.inner.l2 is not None,
        moments=len(plan.inner.moments),
        scratch=scratch,
        centre=how.centre,
        slack=how.slack,
    )
    values, numbers = list(rows.values()), plan.numbers(entries[0].device)
    noisy = len(entries) > 2 + len(plan.inner.moments)
    for part in in_cache(entries[0]):
        piece, of_rows = cut(entries, part), cut(values, part)
        like = of_rows[0]
        of_rows = [*of_rows, space.once(("ones", like.shape, like.dtype, like.device), partial(torch.ones_like, like))]
        memory = [space.like(piece[0])] if scratch else []
        program = program_for(key, step, [*piece, *memory], of_rows, numbers, scratch)
        space.later(partial(_run, program, piece, [*of_rows, numbers], scratch, space), now=noisy)


def _run(program: Program, entries: list[Tensor], others: list[Tensor], scratch: bool, space: Workspace) -> None:
    memory = [space.like(entries[0])] if scratch else []  # only now: what waits may hold other memory
    program([*entries, *memory, *others])


def _rotate_eager(
    views: list[Tensor], noise: Tensor | None, rows: dict[str, Tensor], plan: Plan, how: How, space: Workspace
) -> None:
    for part in in_cache(views[0]) if how.across is None else [WHOLE]:
        values = dict(zip(rows, cut(list(rows.values()), part), strict=True))
        rounding = None if noise is None else noise[part]
        act = partial(_rotate_piece, cut(views, part), rounding, values, plan, how, space)
        space.later(act, now=noise is not None)


def _rotate_piece(
    views: list[Tensor], noise: Tensor | None, rows: dict[str, Tensor], plan: Plan, how: How, space: Workspace
) -> None:
    (w, grad, *moments), inner = views, plan.inner
    knobs = inner.knobs
    if inner.l2 is not None:
        radius = rows["radius"] if how.across is None else rows["radius"][how.across.mine]
        knobs = inner.knobs_for(w, column((radius == 0).to(radius.dtype), w))
    u = space.like(w, keep=True)
    inner.direction(grad, u, *moments, **knobs)
    turn_with_others(w, u, noise, rows, plan.by, how, space)


def turn_with_others(
    w: Tensor, u: Tensor, noise: Tensor | None, rows: dict[str, Tensor], by: Turning, how: How, space: Workspace
) -> None:
    """Turn the vectors of w, whose Δ is u, when enough others have come.

    What is computed per vector takes as long for one tensor as for many.
    """
    sums = eager_sums(w, u, space.like(u))
    if how.across is not None:
        sums = how.across.summed(torch.stack(sums)).unbind(0)
    key = (by, how.centre, how.slack, sums[0].dtype, w.device, *rows)
    space.together(
        key, partial(_turn_together, by, how.centre, how.slack), Piece(w, u, noise, sums, rows, how), w.numel()
    )


def _turn_together(by: Turning, centre: bool, slack: float, pieces: list[Piece]) -> None:
    sums = tuple(torch.cat(column) for column in zip(*(piece.sums for piece in pieces), strict=True))
    radius, update_sq, *imbalance = (torch.cat(rows) for rows in zip(*(x.rows.values() for x in pieces), strict=True))
    if imbalance:
        by = by._replace(angle=by.angle * imbalance[0])
    fan_in = torch.cat([torch.full_like(piece.sums[0], piece.how.fan_in) for piece in pieces])
    turned = turn(sums, radius, update_sq, by, fan_in=fan_in, centre=centre, slack=slack)
    sizes = [piece.sums[0].numel() for piece in pieces]
    torch._foreach_copy_([piece.rows["radius"] for piece in pieces], torch.split(turned.radius, sizes))
    torch._foreach_copy_([piece.rows["update_sq"] for piece in pieces], torch.split(turned.update_sq, sizes))
    coefficients = zip(*(torch.split(values, sizes) for values in turned[:3]), strict=True)
    for (w, u, noise, _, _, how), found in zip(pieces, coefficients, strict=True):
        A, B, D = found if how.across is None else cut(list(found), how.across.mine)
        move_(w, u, A, B, D, noise)


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
