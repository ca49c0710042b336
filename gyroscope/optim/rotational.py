"""Rotational: a wrapper that makes a rotational variant of any torch optimizer."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict
from functools import partial
from numbers import Real
from typing import Any, Literal, cast, final

import torch
from torch import Tensor

from gyroscope._checks import check_non_negative
from gyroscope._dtensor import local
from gyroscope.geometry import Granularity, Split
from gyroscope.model.parameters import NO_VECTORS, refuse_flat
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.inner_step import (
    SpareMemory,
    divide_by_lr_,
    refuse_needed_closure,
    step_with_groups,
)
from gyroscope.optim._engine.loading import match_groups, restored, saved_and_present
from gyroscope.optim._engine.loop import kind_of
from gyroscope.optim._engine.optimizer import (
    SPLIT_OPTIONS,
    EngineOptimizer,
    check_rates,
    check_spelling,
    options_of,
    refuse_complex,
)
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim._engine.tensors import Task
from gyroscope.optim.formulas import Norms
from gyroscope.optim.loss_gradient_part import loss_part, moments, numbers, rotates_loss_part
from gyroscope.optim.rotation import RuleFacts, hyperball, keeping_average, rotation
from gyroscope.optim.rotation_options import (
    ROTATION_ROWS,
    Centring,
    UpdateAverage,
    check_rotation_options,
    is_published_hyperball,
    matrix_options,
    outer_members,
    rotating,
    warn_of_zero_matrices,
)
from gyroscope.optim.torch_rules import rule_of
from gyroscope.optimizers import Rules, spec_of
from gyroscope.theory.law import AnyCorrelation, Weights
from gyroscope.theory.rules.base import UpdateRule

Angle = float | Callable[[int], float] | UpdateRule
MODES = ("equilibrium", "hyperball")
ANGLES = ("angular_update", "angle_schedule")
# The key of the loss part's numbers in the copy of a group with which a step is taken.
LOSS_PART = "loss_part_numbers"


@final
class Rotational(EngineOptimizer):
    """Any torch optimizer with fixed norms of weight vectors, which rotate by a given angle (RE Algorithm 1).

    The inner optimizer takes its step in spare memory of the weights' size, without decay, and at learning rate 1 if it
    is linear in it. This gives the update Δ. That holds for classes of our table, also if a subclass renames them. For
    any other class Δ is the difference of weights divided by lr, and 0 at lr = 0. It has few digits if a step is hardly
    larger than the weights' rounding errors. Around torch's Adam with L2 in the gradient only the loss part of Δ
    rotates: with AdamW's angle that is RE's special variant (docs/theory.md, "Rotational variants"). Around other rules
    with L2 all of Δ does, so decoupled decay is better there. Weights that do not rotate take the inner step. Groups
    and state are the inner optimizer's own, so schedulers and checkpoints act on both.

    inner                a torch optimizer that takes one update per step, unlike LBFGS
    angular_update       radians per step. None: the inner rule's equilibrium (`rule_of`), at its present lr and decay.
                         Or a number, a function of the step (from 0), or another rule, used at the group's lr
    mode                 "equilibrium", or "hyperball" as published: W ← R·n(W - lr·R·n(u)) with n(x) = x/‖x‖, u = -Δ
                         and R the initial norm, without tangent projection, centring or averaging. lr is the relative
                         length of a step, and weight_decay may be 0. Around Muon this is MuonH, around AdamW AdamH.
                         Embeddings and the output layer take the inner step (docs/theory.md, "Hyperball")
    tangent              mode="hyperball" along the part of u across W, which rotates by arctan(lr): the step of Layca
                         (Carbonnelle and De Vleeschouwer 2019)
    granularity          "neuron", unless a group has its own. mode="hyperball" without `tangent` rotates whole
                         matrices ("tensor"), and each matrix of a stack if `gyro.param_groups` has found experts. Pass
                         a granularity to keep the groups' own
    norms                as RotationalAdamW's, in mode="equilibrium". The inner optimizer's rule gives the drift and the
                         equilibrium, also if angular_update is a number
    beta, update_average, centre, compile, stochastic_rounding    as RotationalAdamW's
    rules                theory rules for your own inner optimizers, {SignMomentum: function of the group}, which are
                         the "rule" of every group that has none (docs/own-optimizer.md)

    Every option may be set per group. A group's `angle_schedule`, a function of the step, multiplies its angle.
    A state_dict contains no functions and rules, and loading keeps the current ones. `RotationalAdamW` describes when
    settings of the inner optimizer carry over.

    >>> layer = torch.nn.Linear(8, 4)
    >>> optimizer = Rotational(torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1))
    >>> optimizer.param_groups is optimizer.inner.param_groups
    True
    """

    # The inner optimizer counts its own steps under "step", also of weights that do not rotate.
    counter = "turns"

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        *,
        angular_update: Angle | None = None,
        mode: Literal["equilibrium", "hyperball"] = "equilibrium",
        beta: float = 0.99,
        update_average: UpdateAverage = "noise",
        norms: Norms = "fixed",
        centre: Centring = True,
        granularity: Granularity | None = None,
        tangent: bool = False,
        compile: Compile = False,
        stochastic_rounding: bool = False,
        rules: Rules | None = None,
    ) -> None:
        options = options_of(locals())
        functions = options.pop("rules") or {}
        self._chooses_matrices = options["granularity"] is None
        options["granularity"] = granularity or "neuron"
        rule = next((functions[cls] for cls in type(inner).__mro__ if cls in functions), None)
        self._options: Group = {**SPLIT_OPTIONS, **options, "angle_schedule": None, "rule": rule}
        refuse_needed_closure(inner)
        self.inner = inner
        self._inner_rules: dict[int, tuple[Group, UpdateRule]] = {}
        # OneCycleLR and CyclicLR look for betas or momentum in the defaults.
        super().__init__(inner.param_groups, {**inner.defaults, **self._options})
        self.param_groups = inner.param_groups
        self.state = inner.state
        self._spare = SpareMemory()

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with their own options to the inner optimizer."""
        check_spelling(param_group, {**self.inner.defaults, **self._options}, type(self).__name__)
        if not any(param_group is known for known in self.inner.param_groups):
            self.inner.add_param_group(param_group)
            param_group = self.inner.param_groups[-1]
        matrices = matrix_options(param_group) if self._chooses_matrices else {}
        outer = outer_members(param_group) if matrices else []
        for option, default in self._options.items():
            param_group.setdefault(option, default)
        if is_published_hyperball(param_group):
            if outer and len(outer) < len(param_group["params"]):
                param_group = self._set_apart(param_group, outer)
            elif outer:
                matrices = asdict(NO_VECTORS)
            param_group.update(matrices)
        try:
            self._check(param_group)
        except ValueError:
            # In place, because the inner optimizer has the same list.
            groups = self.inner.param_groups
            groups[:] = [group for group in groups if group is not param_group]
            raise

    def _set_apart(self, group: Group, outer: list[int]) -> Group:
        """Split a group into the members at these positions, which do not rotate, and the others, which it returns."""
        # New dicts: the caller may keep the given one, as the description of `param_groups` does.
        parts = [
            {**group, **{key: [group[key][i] for i in positions] for key in ("params", "param_names")}}
            for positions in ([i for i in range(len(group["params"])) if i not in outer], outer)
        ]
        parts[1].update(asdict(NO_VECTORS))
        groups = self.inner.param_groups
        place = next(i for i, known in enumerate(groups) if known is group)
        groups[place : place + 1] = parts
        self._check(parts[1])
        return parts[0]

    def _check(self, group: Group) -> None:
        refuse_complex(group, type(self).__name__)
        refuse_flat(group["params"])
        check_rates(group)
        check_rotation_options(group)
        if group["mode"] not in MODES:
            raise ValueError(f"mode={group['mode']!r} is unknown: choose one of 'equilibrium', 'hyperball'")
        angle = group["angular_update"]
        if isinstance(angle, float | int):
            check_non_negative("angular_update", angle)
        weights = rotating(group)
        if is_published_hyperball(group):
            warn_of_zero_matrices(weights)
        if group["mode"] == "hyperball" and group["norms"] != "fixed":
            raise ValueError(
                f"norms={group['norms']!r} with mode='hyperball', which keeps the norms of matrices: pass "
                "norms='fixed', or mode='equilibrium'"
            )
        if weights and angle is None and group["mode"] == "equilibrium":
            if not group.get("weight_decay") and group.get("rule") is None:
                raise ValueError(
                    "weight_decay=0 in a group that rotates: its angular update would be 0. Give the inner optimizer a "
                    "weight decay, for example 0.1, or pass angular_update=…, or granularity='none'"
                )
            self._angle(group, kind_of(weights[0], group), 0)
        if weights and group["norms"] != "fixed":
            self._correlation(group, kind_of(weights[0], group))
            if group["norms"] == "settling":
                self._settled_angle(group, kind_of(weights[0], group))

    def _tasks(self) -> list[Task]:
        """Take the inner optimizer's step. Weights that rotate get it as an update Δ instead."""
        now = []
        stand_ins = []
        for group in self.param_groups:
            unscaled = self._unscaled(group)
            weights = {id(p): p for p in rotating(group)}  # by identity, because == of tensors is elementwise
            rest = [p for p in group["params"] if id(p) not in weights]
            stepping = [p for p in weights.values() if p.grad is not None]
            now += [(p, group, unscaled) for p in stepping]
            stand_ins += [{**unscaled, "params": stepping}, {**group, "params": rest}]
        # From zero, if the rule allows it, the update keeps all its digits.
        starts = {
            p: unscaled["lr"] is not group["lr"] and not unscaled.get("weight_decay") for p, group, unscaled in now
        }
        stepping_groups = [group for group in stand_ins if group["params"]]
        updates = self._spare.take_step(starts, partial(step_with_groups, self.inner, stepping_groups))
        tasks = []
        variants: dict[Hashable, Group] = {}
        for p, group, unscaled in now:
            update = updates[p]
            task_group = group
            if rotates_loss_part(self.inner, group):
                # The loop makes Δ from the gradient and the inner state. Tensors with the same numbers share a group.
                of_loss = numbers(group, self.state[p]["step"])
                task_group = variants.setdefault((id(group), of_loss["t"]), {**group, LOSS_PART: of_loss})
                update = cast(Tensor, p.grad)
                update = -update if group.get("maximize") else update
            # The step was taken at the group's lr from the weights, at lr 1 from the weights, or from zero.
            elif unscaled["lr"] is group["lr"]:
                divide_by_lr_(local(update.sub_(p)), group["lr"])
            elif unscaled.get("weight_decay"):
                update.sub_(p)
            tasks.append(Task(p, update, self.state[p], task_group))
        return tasks

    def _unscaled(self, group: Group) -> Group:
        """Return the group with which the inner optimizer makes Δ."""
        spec = spec_of(self.inner)
        changes: Group = {}
        is_along = bool(group.get("decoupled_weight_decay"))
        if spec is not None and spec.scales_with_lr:
            # At lr = 1 the update is not multiplied by a small number and divided again.
            changes["lr"] = 1.0
            is_along = is_along or spec.is_linear or spec.is_decoupled(group)
        # Decay along the weights does not change the direction, so it is off meanwhile.
        if "weight_decay" in group and is_along:
            changes["weight_decay"] = 0.0
        return {**group, **changes}

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        lr = group["lr"]
        # Decay is for vectors without a direction. L2 in the gradient is part of their Δ.
        inner = Step(None, (), {}, lr, lr * group.get("weight_decay", 0.0))
        of_loss = group.get(LOSS_PART)
        if of_loss is not None:
            inner = Step(loss_part, moments(group), of_loss, lr)
        if is_published_hyperball(group):
            return hyperball(inner, kind)
        if group["mode"] == "hyperball":
            # Each update is divided by its exact size.
            tangent = {**group, "beta": 0.0, "update_average": "plain", "centre": False}
            return rotation(inner, RuleFacts(), lr, tangent, t, kind)
        eps = group.get("eps", 0.0)
        spec = spec_of(self.inner)
        # Adafactor's eps is a pair, for other uses.
        facts = RuleFacts("" if spec is None else spec.formula, eps if isinstance(eps, Real) else 0.0)
        settled_angle = None
        if kind.rotates and group["norms"] != "fixed":
            facts = facts._replace(correlation=self._correlation(group, kind))
            settled_angle = self._settled_angle(group, kind) if group["norms"] == "settling" else 0.0
        step = rotation(inner, facts, self._angle(group, kind, t - 1), group, t, kind, settled_angle)
        return step if of_loss is not None or self._unscaled(group)["lr"] is not lr else keeping_average(step)

    def _angle(self, group: Group, kind: TensorKind, t: int) -> Any:
        """Return the radians of the t-th rotation, from 0, of tensors with these vectors. 0 while lr = 0."""
        angle = group["angular_update"]
        lr = group["lr"]
        if angle is None or isinstance(angle, UpdateRule):
            angle = self._rule_angle(group, weights_of(kind))
        else:
            # In the precision of the step, because a product with the boolean of a tensor is float32.
            is_moving = (lr != 0).to(kind.precision) if isinstance(lr, Tensor) else lr != 0
            angle = (angle(t) if callable(angle) else angle) * is_moving
        schedule = group["angle_schedule"]
        return angle if schedule is None else angle * schedule(t)

    def _correlation(self, group: Group, kind: TensorKind) -> AnyCorrelation:
        """Return the correlation of the inner optimizer's updates under noise."""
        lr = group["lr"]
        # The correlation does not depend on lr, which may be on a device.
        rule = self._inner_rule(
            {**group, "lr": float(lr) if _is_known(lr) else 1 / (1 + group.get("weight_decay", 0.0))}
        )
        correlation = rule.correlation(weights_of(kind))
        if correlation is None:
            raise ValueError(
                f"norms={group['norms']!r} needs the correlation of updates, which is unknown for {rule.name}: pass "
                "norms='fixed', or rules={…} with a gyroscope.theory.Rule for the inner optimizer"
            )
        return correlation

    def _settled_angle(self, group: Group, kind: TensorKind) -> Any:
        """Return the angle in equilibrium, also if the group rotates by another. Raise if there is none."""
        given = group["angular_update"]
        by_rule = group if given is None or isinstance(given, UpdateRule) else {**group, "angular_update": None}
        if by_rule is not group and not group.get("weight_decay") and group.get("rule") is None:
            raise ValueError(
                f"norms='settling' with weight_decay=0 and angular_update={given!r}: without decay there is no "
                "equilibrium to settle to. Pass norms='free', or give the inner optimizer a weight decay"
            )
        return self._rule_angle(by_rule, weights_of(kind))

    def _rule_angle(self, group: Group, weights: Weights) -> Any:
        """Return the equilibrium angle of the group's rule, or of the inner optimizer's, to leading order."""
        lr = group["lr"]
        on_device = not _is_known(lr)
        # Reading lr from a device would wait for it, so any lr below 1/weight_decay replaces it.
        known = 1 / (1 + group.get("weight_decay", 0.0)) if on_device else float(lr)
        given = group["angular_update"]
        rule = self._inner_rule({**group, "lr": known}) if given is None else given
        # The rule's own lr, which for SGD with dampening is a share of the group's.
        angle = rule.at(known if given is not None else rule.lr, weights, leading=True).angular_update
        if angle is None:
            raise ValueError(
                f"the rotation of {rule} depends on the gradient's size: "
                "pass angular_update=…, a number or a rule such as gyroscope.theory.AdamW(lr, weight_decay)"
            )
        return angle * (lr / known) ** rule.angle_exponent if on_device else angle

    def _inner_rule(self, group: Group) -> UpdateRule:
        """Return the inner optimizer's rule, which is made again only if an option of the group has changed."""
        options = {option: value for option, value in group.items() if option not in ("params", "param_names")}
        slot = id(group["params"])
        last, rule = self._inner_rules.get(slot, ({}, None))
        if rule is None or not all(map(_is_constant, options.values())) or last != options:
            rule = rule_of(group, self.inner)
            self._inner_rules[slot] = (options, rule)
        return rule

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and options with the values per vector, without functions and rules."""
        saved = super().state_dict()
        for group in saved["param_groups"]:  # copies of the groups
            for key in ("rule", *ANGLES):
                if key == "rule" or _is_code(group.get(key)):
                    group.pop(key, None)
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this optimizer, or of the inner one alone."""
        for before in list(self._optimizer_load_state_dict_pre_hooks.values()):
            state_dict = before(self, state_dict) or state_dict
        state_dict = match_groups(self.param_groups, state_dict, type(self).__name__)
        pairs_of_groups = zip(state_dict["param_groups"], self.param_groups, strict=True)
        groups = [{**{option: now[option] for option in self._options}, **saved} for saved, now in pairs_of_groups]
        # Loading makes new lists and dicts, which both optimizers must share.
        self.inner.load_state_dict({**state_dict, "param_groups": groups})
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state
        for saved_id, p, group in saved_and_present(state_dict, self.param_groups):
            saved = state_dict["state"].get(saved_id, {})
            # torch has cast these to the dtype of the weights, for example bfloat16.
            for key in saved.keys() & set(ROTATION_ROWS):
                self.state[p][key] = restored(saved[key], p, Split.of(group))
            # The momentum of an inner state alone has been filling since its own first step.
            fills = group["update_average"] == "noise" and Split.of(group).rotates(p.shape)
            count = saved.get("turns", saved.get("step") if fills else None)
            if count is not None:
                self.state[p]["turns"] = torch.tensor(float(count))
        for after in list(self._optimizer_load_state_dict_post_hooks.values()):
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "inner": self.inner,
            "_options": self._options,
            "_chooses_matrices": self._chooses_matrices,
            "_spare": SpareMemory(),
            "_inner_rules": {},
        }


def weights_of(kind: TensorKind) -> Weights:
    """Return what a rule may need to know of tensors of this kind."""
    return Weights(kind.fan_in, None, tuple(kind.shape))


def _is_known(lr: float | Tensor) -> bool:
    """Return whether reading lr waits for no device."""
    return not isinstance(lr, Tensor) or lr.device.type == "cpu"


def _is_constant(option: Any) -> bool:
    """Return whether a value cannot change in place, unlike a tensor or a list."""
    if isinstance(option, tuple):
        return all(map(_is_constant, option))
    return option is None or isinstance(option, float | int | str) or _is_code(option)


def refuse_inner(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise a ValueError for the inner optimizer of a `Rotational`, which steps spare memory."""
    for optimizer in optimizers:
        # A `Rotational` writes its options into the groups that it shares with the inner optimizer.
        shared = any(ANGLES[1] in group for group in optimizer.param_groups)
        if shared and not isinstance(optimizer, Rotational):
            raise ValueError(
                f"this {type(optimizer).__name__} is the inner optimizer of a Rotational, which rotates the weights "
                "after its step, so nothing can be measured around it: pass the Rotational instead"
            )


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, UpdateRule)
