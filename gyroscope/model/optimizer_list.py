"""The optimizers of a run: one, several or a container of them, as torch optimizers with numbered groups."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

from torch.optim import Optimizer

from gyroscope.optimizers import Rules

# Where Lightning, Fabric, Accelerate and Megatron keep the optimizer that they wrap.
WRAPPED = ("optimizer", "_optimizer")
# Attributes in which containers keep several: torchtitan's OptimizersContainer, Lightning's Trainer, and Megatron's
# ChainedOptimizer.
CONTAINED = ("optimizers", "chained_optimizers")


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Lightning, Fabric and Accelerate, or the argument itself.

    Our own Rotational takes its own step, keeps its optimizer in `inner`, and does not count as a wrapper.
    """
    for name in WRAPPED:
        inner = getattr(optimizer, name, None)
        if inner is not None and isinstance(stepping := unwrapped(inner), Optimizer):
            return stepping
    return optimizer


def optimizers_of(passed: Any) -> list[Optimizer]:
    """Return the torch optimizers in an optimizer, a wrapper, a list, tuple or dict, or a container of them.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(2, 2)])
    >>> adamw = torch.optim.AdamW([torch.ones(2, 2)])
    >>> container = type("OptimizersContainer", (), {"optimizers": [sgd, adamw]})()
    >>> optimizers_of(container) == optimizers_of([sgd, adamw]) == [sgd, adamw]
    True
    """
    members = list(dict.fromkeys(_members(passed)))
    for member in members:
        if not isinstance(member, Optimizer) or not hasattr(member, "register_step_pre_hook"):
            raise ValueError(
                f"optimizer={member!r} is not a torch optimizer, nor a wrapper around one: pass the "
                "torch.optim.Optimizer whose step() changes the weights, or a list of them"
            )
    if not members:
        raise ValueError(f"optimizer={passed!r} contains no optimizer: pass at least one")
    return members


def _members(passed: Any) -> Iterator[Any]:
    contained = (getattr(passed, name, None) for name in CONTAINED)
    inside = next((each for each in contained if isinstance(each, list | tuple | Mapping) and each), passed)
    if isinstance(inside, Mapping):
        inside = list(inside.values())
    if isinstance(inside, list | tuple):
        for each in inside:
            yield from _members(each)
        return
    inner = unwrapped(passed)
    if inner is passed:
        yield passed
    else:
        yield from _members(inner)


class OwnedGroup(NamedTuple):
    """A parameter group, and the optimizer that steps it."""

    options: dict[str, Any]
    owner: Optimizer


@final
class Optimizers:
    """The optimizers of one run, and all their parameter groups under one numbering.

    Groups are numbered optimizer by optimizer. A group that is added later gets the next number, so that others do not
    change. `owners` has the optimizer of each number, `numbers` the numbers of each optimizer's groups in its own
    order. Both are updated by `groups`. `rules` are the user's rules for classes of their own, as `rule_of` takes them.
    """

    def __init__(self, passed: Any, rules: Rules | None = None) -> None:
        self.members = tuple(optimizers_of(passed))
        self.rules = rules
        self.owners: list[Optimizer] = []
        self.numbers: dict[Optimizer, list[int]] = {member: [] for member in self.members}
        seen: dict[Any, Optimizer] = {}
        for options, owner in self.groups():
            for parameter in options["params"]:
                if seen.setdefault(parameter, owner) is not owner:
                    raise ValueError(
                        f"a parameter of shape {tuple(parameter.shape)} is in two of the optimizers ({self.name}): "
                        "pass optimizers that divide the parameters among them"
                    )

    @classmethod
    def of(cls, passed: Any, rules: Rules | None = None) -> "Optimizers":
        """Return the argument if it is an `Optimizers` already, else make one."""
        return passed if isinstance(passed, cls) else cls(passed, rules)

    @property
    def name(self) -> str:
        """The names of the classes: Muon + AdamW."""
        return " + ".join(dict.fromkeys(type(member).__name__ for member in self.members))

    def groups(self) -> list[OwnedGroup]:
        """Return every group as it is now, in the order of the numbers."""
        if any(len(member.param_groups) < len(numbers) for member, numbers in self.numbers.items()):
            # An optimizer got new groups, so the old numbers are invalid.
            self.owners = []
            self.numbers = {member: [] for member in self.members}
        for member, numbers in self.numbers.items():
            new = len(member.param_groups) - len(numbers)
            numbers += range(len(self.owners), len(self.owners) + new)
            self.owners += [member] * new
        options: dict[int, dict[str, Any]] = {}
        for member, numbers in self.numbers.items():
            options |= dict(zip(numbers, member.param_groups, strict=True))
        return [OwnedGroup(options[number], owner) for number, owner in enumerate(self.owners)]


def owner_of(group: Mapping[str, Any], passed: Any) -> Any:
    """Return the optimizer that steps this group, or a copy of it with other options."""
    members = list(dict.fromkeys(_members(passed)))
    if len(members) == 1:
        return members[0]
    params = group.get("params")
    for member in members:
        if any(own["params"] is params for own in member.param_groups):
            return member
    raise ValueError(
        f"the group belongs to none of {len(members)} optimizers: pass a group of their param_groups, with its 'params'"
    )
