"""The base class of all optimizers: checked options, state that survives loading, and the call of the loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.graph import increment_version
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_decay, check_non_negative
from gyroscope.geometry import Split, at_least_float32
from gyroscope.model.groups import optimizer_groups
from gyroscope.model.parameters import refuse_flat
from gyroscope.optim._engine.compiled import check_compile
from gyroscope.optim._engine.loading import check_state, expected_shapes, match_groups, restored, saved_and_present
from gyroscope.optim._engine.loop import NO_FACTORS, AngleFactors, StepCache, kind_of, take_step
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim._engine.tensors import Task
from gyroscope.optimizers import spec_of

SPLIT_OPTIONS: Group = {"granularity": "neuron", "axis": 0, "group_size": 1}
# Options of torch's optimizers that select an implementation: ignored when a state is loaded.
TORCH_ONLY = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
# Options of torch's optimizers that would change the step, and that no optimizer here has.
REFUSED = {"amsgrad", "maximize", "dampening"}
# Arguments of constructors that are no options of groups.
NO_OPTIONS = {"self", "params", "inner", "__class__", "gain", "start", "start_from"}
OTHER_NAMES = {"learning_rate": "lr", "wd": "weight_decay", "l2": "weight_decay", "beta1": "betas", "beta2": "betas"}


class EngineOptimizer(torch.optim.Optimizer, ABC):
    """A torch optimizer with checked options and a state in float32 or better.

    A final class checks its own options in `_check`, and describes its update in `_step_for`.
    """

    turns_by_group: ClassVar[bool] = True
    """Whether each tensor rotates as its group's `granularity`, `axis` and `group_size` say."""

    counter: ClassVar[str] = "step"
    """The key of the step count in a parameter's state."""

    follows_base: bool = False
    """Whether `follow` sets the angle factors before each step."""

    _model_order: Sequence[Tensor] = ()
    """The parameters in the order of the model, if this optimizer has sorted them into groups."""

    def __init__(self, params: ParamsT | nn.Module, arguments: Group) -> None:
        # A constructor passes its locals(), so that options are listed in its signature only.
        options = options_of(arguments)
        granularity = options.get("granularity", "neuron")
        # An iterator is read twice, here and by `optimizer_groups`.
        groups: Any = list(params) if isinstance(params, Iterator) else params
        # An optimizer that steps entry by entry makes one group of named parameters, as torch does.
        if self.turns_by_group or isinstance(params, nn.Module):
            self._model_order = in_model_order(groups)
            groups = optimizer_groups(groups, weight_decay=options.get("weight_decay", 0.0), granularity=granularity)
        super().__init__(groups, {**SPLIT_OPTIONS, **options})

    @property
    def angle_factors(self) -> AngleFactors:
        """Factors of the angles by parameter: a number, or a tensor with one value per vector.

        They hold until they are set again. A state_dict does not contain them, so set them after loading too.

        >>> from gyroscope.optim import RotationalAdamW
        >>> w = torch.nn.Parameter(torch.ones(2, 8))
        >>> optimizer = RotationalAdamW([w])
        >>> optimizer.angle_factors = {w: torch.tensor([1.0, 10.0])}
        """
        factors: AngleFactors = self.__dict__.get("_angle_factors", NO_FACTORS)
        return factors

    @angle_factors.setter
    def angle_factors(self, factors: AngleFactors) -> None:
        spec = spec_of(self)
        if spec is None or not spec.keeps_norms:
            raise ValueError(f"{type(self).__name__} sets no angle, so it has no angle_factors: use RotationalAdamW")
        splits = {p: split for group in self.param_groups for split in [Split.of(group)] for p in group["params"]}
        self._angle_factors = {p: checked_factor(factor, p, splits.get(p)) for p, factor in factors.items()}

    @abstractmethod
    def _check(self, group: Group) -> None:
        """Raise a ValueError for an option of this group that the rule cannot use."""

    @abstractmethod
    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        """Return the t-th step, t = 1, 2, …, of tensors of the group of this kind."""

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with their own options. A misspelt option is an error, other keys are ignored."""
        check_spelling(param_group, self.defaults, type(self).__name__)
        # torch fills in the defaults first. A group that is then refused must be removed.
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except ValueError:
            del self.param_groups[-1]
            raise

    def _check_group(self, group: Group) -> None:
        refuse_complex(group, type(self).__name__)
        if self.turns_by_group:  # an optimizer that steps entry by entry takes flat parameters
            refuse_flat(group["params"])
        check_rates(group)
        check_compile(group.get("compile", False))
        check_decay(float(group["lr"]), group["weight_decay"])
        split = Split.of(group)
        for p in group["params"]:
            split.rotates(p.shape)  # raises if the split does not fit the tensor
        self._check(group)

    @_disable_dynamo  # a trace would make its numbers constants, and lose memory that is swapped
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step. A closure recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            check_rates(group)
        tasks = self._tasks()
        for task in tasks:
            # A float32 tensor on the CPU, as in torch: reading it waits for no device.
            if self.counter not in task.state:
                task.state[self.counter] = torch.tensor(0.0)
        if tasks:
            # A tensor, because a number would be made one for each count.
            torch._foreach_add_([task.state[self.counter] for task in tasks], torch.tensor(1.0))
        # Not pickled with the optimizer, so made on first use.
        if "_step_cache" not in self.__dict__:
            self._step_cache = StepCache()
        weights = [task.p for task in tasks]
        take_step(tasks, self._step_for, self._step_cache, self.counter, self.angle_factors)
        increment_version(weights)  # autograd does not see changes by a compiled program
        return loss

    def _tasks(self) -> list[Task]:
        """Return the parameters that have a gradient, with all that their step needs."""
        ready = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(p.grad.layout != torch.strided for p, _ in ready):
            raise RuntimeError(
                f"{type(self).__name__} takes no sparse gradients: set sparse=False in the Embedding that makes them"
            )
        return [Task(p, p.grad, self.state[p], group) for p, group in ready]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this optimizer, or of the torch optimizer whose rule it has.

        - By name, into any groups, if both sides have the same names, from `named_parameters()`, a model or
          `gyro.param_groups`. Prefixes of torch.compile and DDP are ignored.
        - In the order of the model, if the saved state has one group without names, such as that of
          `AdamW(model.parameters())`, and this optimizer was made of a model or of `named_parameters()`.
        - Otherwise group by group, in order, which needs groups of equal sizes.

        Options come from the saved group with the same members. If groups are cut otherwise, an option is loaded only
        if it is the same in all saved groups and in all present groups. A value that is kept although it changes the
        angle gives a warning with both values. Missing options keep their present values.
        torch's optimizers load this state_dict if they have the same groups. Use `gyro.optim.regrouped` otherwise.
        """
        name = type(self).__name__
        # All errors are raised before anything is changed.
        state_dict = match_groups(self.param_groups, state_dict, name, self._model_order)
        pairs_of_groups = zip(state_dict["param_groups"], self.param_groups, strict=True)
        groups = [merged(saved, present, name) for saved, present in pairs_of_groups]
        present = [{**group, "params": now["params"]} for group, now in zip(groups, self.param_groups, strict=True)]
        check_state(state_dict, present, self._step_for, name)
        super().load_state_dict({**state_dict, "param_groups": groups})
        for group in self.param_groups:
            self._check_group(group)
        for saved_id, p, group in saved_and_present(state_dict, self.param_groups):
            self._restore(p, group, state_dict["state"].get(saved_id, {}))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model_order": self._model_order}

    def _restore(self, p: Tensor, group: Group, saved: dict[str, Any]) -> None:
        if not saved:
            return
        state = self.state[p]
        if "step" in saved:
            state["step"] = torch.tensor(float(saved["step"]))
        kind = kind_of(p, group)
        for key in expected_shapes(self._step_for(group, 1, kind), p, kind.split):
            if isinstance(saved.get(key), Tensor):
                state[key] = restored(saved[key], p, kind.split)
            else:
                state.pop(key, None)  # torch's SGD saves None for a buffer before its first step


def in_model_order(params: Any) -> list[Tensor]:
    """Return the parameters of a model, or of a list of (name, parameter), in order. Otherwise nothing."""
    if isinstance(params, nn.Module):
        return list(params.parameters())
    return [each[1] for each in params if isinstance(each, tuple)] if isinstance(params, list) else []


def options_of(arguments: Group) -> Group:
    """Return the arguments of a constructor that are options of groups. `super()` adds a __class__ to locals()."""
    return {name: value for name, value in arguments.items() if name not in NO_OPTIONS}


def merged(saved: Group, present: Group, name: str) -> Group:
    """Return the options of a saved group, and the present ones that it lacks."""
    for option in sorted(option for option in REFUSED if saved.get(option)):
        raise ValueError(f"the saved state was made with {option}={saved[option]!r}, which {name} does not have")
    loaded = {option: value for option, value in saved.items() if option not in TORCH_ONLY | REFUSED}
    return {**{option: value for option, value in present.items() if option != "params"}, **loaded}


def check_spelling(group: Group, options: Group, name: str) -> None:
    """Raise for a key that looks like a misspelt option, or that would change the step.

    Groups may have other keys (timm's lr_scale, a scheduler's values, a user's labels), also if one word of a key is an
    option.
    """
    for key in group.keys() - options.keys():
        # 0.75 is one letter wrong in four: "axes" for axis, "center" for centre.
        close = get_close_matches(key, options, n=1, cutoff=0.75)
        is_compound = any(option in key.split("_") or f"_{option}" in key or f"{option}_" in key for option in options)
        meant = OTHER_NAMES.get(key) if OTHER_NAMES.get(key) in options else None
        if meant is None and close and not is_compound:
            meant = close[0]
        if meant is not None:
            known = ", ".join(sorted(options))
            raise ValueError(f"{name} has no option {key!r}, perhaps you mean {meant!r}: a group may set {known}")
        if key in REFUSED and group[key]:
            raise ValueError(f"{name} has no option {key!r}, and the group sets {key}={group[key]!r}: remove it")


def check_rates(group: Group) -> None:
    """Raise unless lr and weight decay are 0 or above, as far as that is known without asking a device."""
    check_non_negative("weight_decay", group.get("weight_decay", 0.0))
    lr = group["lr"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}: it must have one element")
        if lr.device.type != "cpu":
            return
    if not lr >= 0:
        raise ValueError(f"lr={float(lr)!r} must be a finite number, 0 or above: check the scheduler that set it")


def checked_factor(factor: float | Tensor, p: Tensor, split: Split | None) -> float | Tensor:
    """Return a factor of a parameter's angles, on its device. Raise if it does not fit its vectors."""
    shape = tuple(p.shape)
    if split is None or not split.rotates(p.shape):
        raise ValueError(f"angle_factors has a parameter of shape {shape} that does not rotate here: leave it out")
    count = split.num_vectors(p.shape)
    if isinstance(factor, Tensor):
        if factor.numel() != count:
            raise ValueError(
                f"angle_factors has {factor.numel()} values for a parameter of shape {shape}: give a number, or one "
                f"value for each of its {count} vectors"
            )
        factor = factor.detach().to(p.device, at_least_float32(p.dtype))
    # On the meta device there are no values to check.
    is_known = not isinstance(factor, Tensor) or not factor.is_meta
    if is_known and not (float(factor.min()) if isinstance(factor, Tensor) else factor) >= 0:
        raise ValueError(f"angle_factors of a parameter of shape {shape} are {factor}: each must be 0 or above")
    return factor


def refuse_complex(group: Group, name: str) -> None:
    """Raise for complex weights, which have no sign and no angle of the kind that is meant here."""
    if any(p.is_complex() for p in group["params"]):
        raise ValueError(f"{name} has no complex weights: pass torch.view_as_real(weight) instead")
