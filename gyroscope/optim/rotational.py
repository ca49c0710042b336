"""Rotational: the rotational variant of any torch optimizer, made around an instance of it."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import increment_version

from gyroscope._checks import check_fraction, check_non_negative
from gyroscope.geometry import Granularity, Split, at_least_float32
from gyroscope.optim._engine.base import SPLIT, Group
from gyroscope.optim._engine.compiled import can_run
from gyroscope.optim._engine.shards import across_processes, local
from gyroscope.optim._engine.turning import How, Inner, Plan, rotate_compiled, row_state, slack, turn_with_others
from gyroscope.optim._engine.workspace import Kept, Workspace
from gyroscope.optim.formulas import Turning, given
from gyroscope.theory.law import Weights
from gyroscope.theory.rules.base import UpdateRule

Angle = float | Callable[[int], float] | UpdateRule
MODES = ("equilibrium", "hyperball")
LINEAR = {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Lion", "Muon", "NAdam", "RAdam", "RMSprop", "SGD"}
"""Optimizers whose step is lr times something that knows of the weights only through weight decay."""
DECAY_ALONG_WEIGHTS = {"AdamW", "Lion", "Muon", "SGD"}
"""Those whose weight decay does not shape the direction: it is off while they make one."""


@final
class Rotational(torch.optim.Optimizer):
    """Any torch optimizer with its weight vectors held at their norms and turned by a given angle (RE Algorithm 1).

    The inner optimizer takes its step without decay, at learning rate 1 where it is linear in it; the update is read
    off other memory of the weights' size, and turned. What does not rotate takes the inner step as it is.
    `angular_update`, radians per step: the inner rule's own in equilibrium (`rule_of`), at its lr and decay of the
    moment; or a number, a function of the step (from 0), or another rule, taken at the group's lr. A group's
    `angle_schedule` multiplies it. mode="hyperball" turns by arctan(lr) every step, without centring or averaging.

    The parameter groups and the state are the inner optimizer's own, so schedulers and checkpoints act on both.

    >>> layer = torch.nn.Linear(8, 4)
    >>> optimizer = Rotational(torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1))
    >>> optimizer.param_groups is optimizer.inner.param_groups
    True
    """

    row_state: ClassVar[tuple[str, ...]] = ("radius", "update_sq")
    turns_by_group: ClassVar[bool] = True

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        *,
        angular_update: Angle | None = None,
        mode: Literal["equilibrium", "hyperball"] = "equilibrium",
        beta: float = 0.99,
        centre: bool = True,
        granularity: Granularity = "neuron",
        compile: bool = False,
        stochastic_rounding: bool = False,
    ) -> None:
        self.inner = inner
        options: Group = {**SPLIT, "granularity": granularity, "mode": mode, "beta": beta, "centre": centre}
        options |= {"compile": compile, "stochastic_rounding": stochastic_rounding}
        super().__init__(inner.param_groups, {**options, "angular_update": angular_update, "angle_schedule": None})
        self.param_groups, self.state = inner.param_groups, inner.state
        self._spare: dict[Tensor, Tensor] = {}  # memory in which the inner optimizer steps
        self._weights: dict[Tensor, Tensor] = {}  # while it does

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own to the inner optimizer."""
        if not any(param_group is known for known in self.inner.param_groups):
            self.inner.add_param_group(param_group)
            param_group = self.inner.param_groups[-1]
        for option, default in self.defaults.items():
            param_group.setdefault(option, default)
        try:
            self._check(param_group)
        except ValueError:
            groups = self.inner.param_groups
            groups[:] = [group for group in groups if group is not param_group]
            raise

    def _check(self, group: Group) -> None:
        check_fraction("beta", group["beta"])
        check_non_negative("weight_decay", group.get("weight_decay", 0.0))
        if group["mode"] not in MODES:
            raise ValueError(f"mode={group['mode']!r} is unknown: choose one of 'equilibrium', 'hyperball'")
        asked = group["angular_update"]
        if isinstance(asked, float | int):
            check_non_negative("angular_update", asked)
        turning = _split(group)[0]
        if turning and asked is None and group["mode"] == "equilibrium":
            if not group.get("weight_decay"):
                raise ValueError(
                    "weight_decay=0 in a group that rotates: its angular update would be 0; give the inner optimizer a "
                    "weight decay, for example 0.1, or pass angular_update=…, or granularity='none'"
                )
            self._angle(group, turning[0], 0)

    @_disable_dynamo  # in a trace its numbers would be constants, and the memory that it lends would be lost
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; a closure recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.inner.param_groups
        alone = [self._unscaled(group) for group in groups]
        parts = [_split(group) for group in groups]
        turning = [[p for p in part[0] if p.grad is not None] for part in parts]
        stand_ins = []
        for group, unscaled, part, now in zip(groups, alone, parts, turning, strict=True):
            stand_ins += [{**unscaled, "params": now}, {**group, "params": part[1]}]
        try:
            for group, unscaled, now in zip(groups, alone, turning, strict=True):
                # Where the inner step may start from zero the update stands alone, with all its digits.
                from_zero = unscaled["lr"] is not group["lr"] and not unscaled.get("weight_decay")
                for p in now:
                    self._lend(p, from_zero)
            self._inner_step(stand_ins)
        finally:  # also when out of memory, or at Ctrl-C: the weights go back to where they were
            updates = {p: self._take_back(p) for p in list(self._weights)}
        space = Workspace(self.__dict__.setdefault("_kept", Kept()))
        for group, unscaled, now in zip(groups, alone, turning, strict=True):
            for p in now:
                update = updates[p]
                if unscaled["lr"] is group["lr"]:
                    update.sub_(p).div_(group["lr"])
                elif unscaled.get("weight_decay"):
                    update.sub_(p)
                self._turn(p, update, group, space)
        space.finish()
        increment_version(updates)  # a compiled program tells autograd nothing of what it changes
        return loss

    def _lend(self, p: Tensor, from_zero: bool) -> None:
        """Let the inner optimizer step in other memory, while the weights stay in theirs; a DTensor's are copied."""
        spare = self._spare.get(p)
        if spare is None:
            spare = self._spare[p] = torch.empty_like(p)
        if hasattr(p, "placements"):
            self._weights[p] = spare.copy_(p)
            if from_zero:
                p.zero_()
            return
        spare = spare.zero_() if from_zero else spare.copy_(p)
        self._weights[p], p.data = p.data, spare

    def _take_back(self, p: Tensor) -> Tensor:
        """Put the weights back; what the inner optimizer left in their place."""
        weights = self._weights.pop(p)
        if hasattr(p, "placements"):
            left = p.detach().clone()
            p.copy_(weights)
            return left
        left, p.data = p.data, weights
        return left

    def _unscaled(self, group: Group) -> Group:
        """The group with which the inner optimizer makes directions."""
        name, changes = type(self.inner).__name__, {}
        if name in LINEAR:
            changes["lr"] = 1.0
        if "weight_decay" in group and (name in DECAY_ALONG_WEIGHTS or group.get("decoupled_weight_decay")):
            changes["weight_decay"] = 0.0
        return {**group, **changes}

    def _inner_step(self, stand_ins: list[Group]) -> None:
        groups = self.inner.param_groups
        self.inner.param_groups = [group for group in stand_ins if group["params"]]
        try:
            self.inner.step()
        finally:
            self.inner.param_groups = groups

    def _turn(self, p: Tensor, update: Tensor, group: Group, space: Workspace) -> None:
        state = self.state[p]
        if "radius" not in state:
            # After the inner step: torch's optimizers take an empty state for their sign to begin.
            state.update(row_state(Split.of(group), p, None, 0), turns=torch.tensor(0.0))
        t = int(state["turns"].add_(1))
        plan: Plan = space.once((id(group), t, p.shape), lambda: self._plan(group, p, t))
        across = across_processes(p, plan.split)
        w, u = local(p.detach()), local(update)
        if across is None and w.numel() == 0:
            return
        noise = space.noise(w, t, plan.by.angle, group["stochastic_rounding"])
        views = (plan.split if across is None else across.split).rows(w, u, *([] if noise is None else [noise]))
        rows = {name: local(state[name]) for name in self.row_state}
        centre = group["centre"] and group["mode"] != "hyperball"
        how = How(plan.split.fan_in(p.shape), centre, slack(p.dtype), across)
        if group["compile"] and across is None and can_run(w):
            rotate_compiled(views, rows, plan, how, space)
            return
        w, u, *others = views
        u = u.to(at_least_float32(u.dtype))
        act = partial(turn_with_others, w, u, others[0] if others else None, rows, plan.by, how, space)
        space.later(act, now=noise is not None)

    def _plan(self, group: Group, p: Tensor, t: int) -> Plan:
        """The numbers of the t-th turn of tensors of p's shape."""
        lr, decay = group["lr"], group["lr"] * group.get("weight_decay", 0.0)
        if group["mode"] == "hyperball":
            by = Turning.at(t, lr, 0.0, 0.0, lr, decay)
        else:
            by = Turning.at(t, self._angle(group, p, t - 1), group["beta"], group.get("eps", 0.0), lr, decay)
        return Plan(Split.of(group), Inner(given, (), {}, lr, cheap=True), by)

    def _angle(self, group: Group, p: Tensor, t: int) -> Any:
        """Radians for the t-th turn of p, counted from 0; no turn while lr = 0."""
        asked, lr, schedule = group["angular_update"], group["lr"], group["angle_schedule"]
        if asked is None:
            from gyroscope.optim.torch_rules import rule_of

            asked = rule_of(group, self.inner)
        if isinstance(asked, UpdateRule):
            weights = Weights(Split.of(group).fan_in(p.shape), None, tuple(p.shape))
            angle = asked.at(float(lr), weights, leading=True).angular_update
            if angle is None:
                raise ValueError(
                    f"{asked} does not say how far a vector turns without the gradient's size: "
                    "pass angular_update=…, a number or a rule such as gyroscope.theory.AdamW(lr, weight_decay)"
                )
        else:
            angle = asked(t) if callable(asked) else asked
            angle = angle * (lr != 0)
        return angle if schedule is None else angle * schedule(t)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this optimizer, or of the inner one alone; values per vector stay as they were saved."""
        pairs = list(zip(state_dict["param_groups"], self.param_groups, strict=False))
        groups = [{**{k: present[k] for k in self.defaults}, **saved} for saved, present in pairs]
        groups += state_dict["param_groups"][len(groups) :]
        self.inner.load_state_dict({**state_dict, "param_groups": groups})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        saved_ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        for index, p in zip(saved_ids, chain.from_iterable(g["params"] for g in self.param_groups), strict=True):
            saved = state_dict["state"].get(index, {})
            for key in {"turns", *self.row_state} & saved.keys():
                dtype = torch.float32 if key == "turns" else at_least_float32(p.dtype)
                device = "cpu" if key == "turns" else p.device
                self.state[p][key] = saved[key].to(device=device, dtype=dtype, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner, "_spare": {}, "_weights": {}}


def _split(group: Group) -> tuple[list[Tensor], list[Tensor]]:
    """The group's parameters that rotate, and those that do not."""
    split = Split.of(group)
    turning = [split.rotates(p.shape) for p in group["params"]]
    pairs = list(zip(group["params"], turning, strict=True))
    return [p for p, turns in pairs if turns], [p for p, turns in pairs if not turns]
