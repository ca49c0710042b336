"""One rotational step of one tensor: views, row state and pieces in cache around the formulas of `step.py`."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast, final

import torch
from torch import Tensor

from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim.compiling import can_run, packed, rotate_rows, run
from gyroscope.optim.shards import Across, across_processes, local, placed_like
from gyroscope.optim.step import Number, Turn, Turning, eager_sums, move_, plain_, turn
from gyroscope.theory.validate import check_fraction

ROUNDING = (
    "the angular update is below what low-precision weights resolve, so rounding loses much of it: "
    "pass stochastic_rounding=True, or keep the weights in float32"
)

Direction = Callable[..., None]
Imbalance = tuple[float, float, int]
State = dict[str, Any]
Group = dict[str, Any]
ROW_STATE = ("radius", "update_sq", "imbalance")
"""Values per vector in a parameter's state: they stay float32 or better whatever the weights are."""
CACHED = 2**19
"""Entries of a piece of an eager step: more of them leave the cache, fewer wait for Python."""
SMALL = 2**13
"""Tensors of fewer entries that do not turn take their step together: one by one they would wait for Python."""


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


@final
class Workspace:
    """What the tensors of one step share: memory for Δ, noise for rounding, a count, and a note for the user."""

    def __init__(self) -> None:
        self.num_tensors = 0
        self._rounds_updates_away = False
        self._shared: dict[Hashable, Any] = {}
        self._small: dict[tuple[object, ...], tuple[Callable[[list[Tensor]], None], list[list[Tensor]]]] = {}
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

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What tensors with one key share in this step, made when the first of them asks."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def plan(self, group: Group, t: int, rule: Rule) -> Plan:
        """The numbers of a group's t-th step: most of its tensors have the same count."""

        def make() -> Plan:
            inner, angle = rule(group, t)
            beta = group.get("beta", 0.0)
            by = Turning(angle, beta, 1 - beta**t, 1 - beta ** (t - 1), inner.eps, inner.lr, inner.decay)
            return Plan(Split("none") if angle is None else Split.of(group), inner, by)

        return cast(Plan, self.once((id(group), t), make))

    def act(self, rule: object, step: Callable[[list[Tensor]], None], tensors: list[Tensor]) -> None:
        """Let `step` change a weight and its moments entry by entry, given [weight, gradient, *moments].

        Small tensors of one `rule`, a name for what steps alike, wait for `finish` and are changed together.
        """
        if tensors[0].numel() < SMALL and all(x.is_contiguous() for x in tensors):
            kind = (rule, *((x.dtype, x.device) for x in tensors))
            self._small.setdefault(kind, (step, []))[1].append(tensors)
        else:
            step(tensors)

    def plain(self, inner: Inner, tensors: list[Tensor]) -> None:
        """The inner rule's own step of [weight, gradient, *moments]."""
        w, grad, *moments = tensors
        u = self.like(w)
        inner.direction(grad, u, *moments, **inner.knobs_for(w, 1.0))
        plain_(w, u, inner.lr, inner.decay)

    def finish(self) -> None:
        """The steps that small tensors wait for, with their entries laid end to end."""
        for step, waiting in self._small.values():
            together = [torch.cat([x.view(-1) for x in tensors]) for tensors in zip(*waiting, strict=True)]
            step(together)
            sizes = [tensors[0].numel() for tensors in waiting]
            for index in (0, *range(2, len(together))):  # all but the gradient have changed
                torch._foreach_copy_([x[index].view(-1) for x in waiting], list(together[index].split(sizes)))

    def noise(self, w: Tensor, step: int, angle: Number, stochastic: bool) -> Tensor | None:
        """Uniform in [-½, ½), to round low-precision weights with; seeded by `step`: a resumed run rounds alike.

        None where the weights need none or none is wanted: then an angle too small for them is remembered.
        """
        if w.dtype.itemsize >= 4:
            return None
        if not stochastic:
            self._rounds_updates_away |= _known_below(angle, 1.28 * torch.finfo(w.dtype).eps)
            return None
        generator = self._generators.get(w.device)
        if generator is None:
            generator = self._generators[w.device] = torch.Generator(w.device).manual_seed(step)
        return torch.empty(w.shape, device=w.device).uniform_(-0.5, 0.5, generator=generator)

    def warn(self, told: set[str]) -> None:
        """Tell the user once of what was noticed; `told` remembers."""
        if self._rounds_updates_away and ROUNDING not in told:
            told.add(ROUNDING)
            warnings.warn(ROUNDING, stacklevel=5)  # the user's line, behind what torch wraps around step


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
    plan = space.plan(group, int(state["step"]), rule)
    for name in plan.inner.moments:
        if name not in state:
            state[name] = torch.zeros_like(p)
    tensors = [p.detach(), grad, *(state[name] for name in plan.inner.moments)]
    if plan.split.rotates(p.shape):
        _rotate(p.detach(), [local(x) for x in tensors], state, group, plan, space)
    else:
        space.act(id(plan), partial(space.plain, plan.inner), [local(x) for x in tensors])
    space.num_tensors += 1


def _rotate(p: Tensor, tensors: list[Tensor], state: State, group: Group, plan: Plan, space: Workspace) -> None:
    split, w = plan.split, tensors[0]
    if "radius" not in state:
        state.update(row_state(split, p, group["imbalance"], space.num_tensors))
    across = across_processes(p, split)
    if across is None and w.numel() == 0:  # an empty shard has nothing to turn, and nobody waits for it
        return
    noise = space.noise(w, int(state["step"]), plan.by.angle, group["stochastic_rounding"])
    views = (split if across is None else across.split).rows(*tensors, *([] if noise is None else [noise]))
    noise = None if noise is None else views.pop()
    rows = {name: local(state[name]) for name in ROW_STATE if name in state}
    options = {"fan_in": split.fan_in(p.shape), "centre": group["centre"], "slack": slack(w.dtype)}
    if group["compile"] and across is None and can_run(w):
        rotate_compiled(views, noise, rows, plan, options)
    else:
        _rotate_eager(views, noise, rows, plan, options, space, across)


def rotate_compiled(
    views: list[Tensor], noise: Tensor | None, rows: dict[str, Tensor], plan: Plan, options: dict[str, Any]
) -> None:
    """One rotational step of [weight, gradient, *moments] in rows, by one program."""
    entries = views if noise is None else [*views, noise]
    key = (plan.inner.direction, plan.names, *plan.flags.values(), options["centre"], options["slack"])
    step = partial(
        rotate_rows,
        direction=plan.inner.direction,
        names=plan.names,
        flags=plan.flags,
        l2=plan.inner.l2 is not None,
        moments=len(plan.inner.moments),
        centre=options["centre"],
        slack=options["slack"],
    )
    run(key, step, entries, list(rows.values()), plan.numbers(views[0].device))


def _rotate_eager(
    views: list[Tensor],
    noise: Tensor | None,
    rows: dict[str, Tensor],
    plan: Plan,
    options: dict[str, Any],
    space: Workspace,
    across: Across | None,
) -> None:
    w, radius, inner, u = views[0], rows["radius"], plan.inner, space.like(views[0])
    by = plan.by._replace(angle=plan.by.angle * rows["imbalance"]) if "imbalance" in rows else plan.by
    at_rest = (radius == 0)[slice(None) if across is None else across.mine]
    at_rest = at_rest.to(radius.dtype).view(-1, *(1,) * (w.dim() - 1))

    def directed(part: slice) -> Tensor:
        _, grad, *moments = (view[part] for view in views)
        inner.direction(grad, u[part], *moments, **inner.knobs_for(w[part], at_rest[part]))
        return u[part]

    for part, turned in turns(w, directed, radius, rows["update_sq"], by, across, options):
        move_(w[part], u[part], turned, None if noise is None else noise[part])


def turns(
    w: Tensor,
    directed: Callable[[slice], Tensor],
    radius: Tensor,
    update_sq: Tensor,
    by: Turning,
    across: Across | None,
    options: dict[str, Any],
) -> Iterator[tuple[slice, Turn]]:
    """The turns of the vectors of w, piece by piece; `directed` makes Δ of a piece. The row state is updated.

    Two passes over pieces that fit into cache, with what is known per vector made at once in between.
    """
    parts = in_cache(w)
    found = torch.cat([torch.stack(eager_sums(w[part], directed(part))) for part in parts], -1)
    found = found if across is None else across.summed(found)
    turned: Turn = turn(found.unbind(0), radius, update_sq, by, **options)
    radius.copy_(turned.radius)
    update_sq.copy_(turned.update_sq)
    turned = turned if across is None else turned.at(across.mine)
    for part in parts:
        yield part, turned.at(part)


def in_cache(x: Tensor, dim: int = 0) -> list[slice]:
    """Cuts along a dimension that keep what is computed of each piece in a CPU's cache; one cut on other devices."""
    if x.device.type != "cpu" or x.numel() <= CACHED:
        return [slice(None)]
    size = max(1, CACHED * x.shape[dim] // x.numel())
    return [slice(start, start + size) for start in range(0, x.shape[dim], size)]


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
