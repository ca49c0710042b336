"""Optimizer states matched with weights: an optimizer numbers its parameters, and a model names them.

Names decide if the optimizer has them (`param_names`, or torch.distributed.checkpoint's own). Otherwise each group is
assumed to have its parameters in the model's order, and each state the shape of its weight. A match is accepted only if
each weight with vectors fits the next parameter of exactly one group.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.optimizers import MOMENTUM_KEYS, SECOND_MOMENT_KEYS

Shape = tuple[int, ...]
Weights = dict[str, StoredTensor]
# State tensors that have the shape of their weight.
FULL_SIZE = MOMENTUM_KEYS + SECOND_MOMENT_KEYS
NOT_OF_ONE_MODEL = "they are not from the same model or in the same order: use model.named_parameters()"


class UnknownOrderError(ValueError):
    """A match of weights and states needs the model's order, which is unknown."""


class Member(NamedTuple):
    """A parameter in an optimizer. `shape` is None without a state."""

    group: int
    shape: Shape | None
    state: Mapping[str, Any]


def match_parameters(
    weights: Weights,
    optimizers: Sequence[Mapping[str, Any]],
    ordered: bool = True,
    names: Sequence[Sequence[str]] | None = None,
) -> dict[str, Member]:
    """Return the optimizer's member for each weight. `names` are the names in each group, if given.

    Raise `UnknownOrderError` if the model's order is needed and the weights are not `ordered` by it.
    """
    shapes = {name: weight.shape for name, weight in weights.items()}
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer["param_groups"]]
    members = [_members(number, *each) for number, each in enumerate(groups)]
    held = list(map(len, members))
    if names is not None and list(map(len, names)) != held:
        given = list(map(len, names))
        raise ValueError(f"the optimizer's groups have {held} parameters, and {given} names were given")
    matched: dict[str, Member] = {}
    unnamed = []
    for number, (_, group) in enumerate(groups):
        group_names = _given_names(group, shapes) if names is None else names[number]
        if group_names is None:
            unnamed.append(members[number])
        else:
            matched |= zip(group_names, members[number], strict=True)
    left = {name: shape for name, shape in shapes.items() if name not in matched}
    count = sum(map(len, unnamed))
    if count > len(left):
        raise ValueError(f"the optimizer has {count} parameters, the weights are {len(left)}: {NOT_OF_ONE_MODEL}")
    matched |= match_by_shape(left, unnamed, ordered)
    for name, member in matched.items():
        if name not in shapes or member.shape not in (None, shapes[name]):
            raise ValueError(
                f"the optimizer's state of {name!r} has the shape {member.shape}, the weight {shapes.get(name)}: "
                f"{NOT_OF_ONE_MODEL}"
            )
    return matched


def _members(number: int, optimizer: Mapping[str, Any], group: Mapping[str, Any]) -> list[Member]:
    # A folder of torch.distributed.checkpoint has numbers as text.
    states = {
        int(key) if isinstance(key, str) and key.isdigit() else key: state for key, state in optimizer["state"].items()
    }
    found = [states.get(key, {}) for key in group["params"]]
    return [Member(number, _shape(state, group), state) for state in found]


def _shape(state: Mapping[str, Any], group: Mapping[str, Any]) -> Shape | None:
    for name in FULL_SIZE:
        value = state.get(name)
        if isinstance(value, StoredTensor):
            # k-Adam has the moments of its k stages in one tensor.
            return value.shape[1:] if "k" in group and "strategy" in group else value.shape
    return None


def _given_names(group: Mapping[str, Any], shapes: Collection[str]) -> list[str] | None:
    names = group.get("param_names") or group["params"]
    known = len(names) == len(group["params"]) and all(isinstance(name, str) and name in shapes for name in names)
    return list(names) if known else None


def match_by_shape(shapes: Mapping[str, Shape], groups: Sequence[Sequence[Member]], ordered: bool) -> dict[str, Member]:
    """Return the member of each weight by shape, and by order if that is known. Raise ValueError if several fit."""
    members = [member for group in groups for member in group]
    if ordered and len(groups) == 1 and len(members) == len(shapes):
        return dict(zip(shapes, members, strict=True))
    held = Counter(member.shape for member in members)
    for shape, count in Counter(shapes.values()).items():
        if len(shape) >= 2 and count > 1 and held[shape] and (held[shape] < count or not ordered):
            raise _ambiguous(f"several weights have the shape {shape}", ordered)
    matched = _in_turn(shapes, groups if ordered else [[member] for member in members])
    stateless = [member for member in members if member.shape is None]
    left = [name for name in shapes if name not in matched]
    if stateless and (len(left) > len(stateless) or len({member.group for member in stateless}) > 1):
        raise _ambiguous("several weights have no optimizer state", ordered)
    return matched | dict(zip(left, stateless, strict=False))


def _in_turn(shapes: Mapping[str, Shape], groups: Sequence[Sequence[Member]]) -> dict[str, Member]:
    """Return the member of each weight, from the only group whose next member has its shape."""
    following: dict[Shape | None, deque[deque[Member]]] = defaultdict(deque)
    for group in groups:
        matrices = deque(member for member in group if len(member.shape or ()) >= 2)
        # Biases and gains have no vectors, so no number of an autopsy depends on how their states are matched.
        others = [deque([member]) for member in group if member.shape is not None and len(member.shape) < 2]
        for rest in filter(None, [matrices, *others]):
            following[rest[0].shape].append(rest)
    matched: dict[str, Member] = {}
    for name, shape in shapes.items():
        fitting = following[shape]
        if len(fitting) > 1 and len(shape) >= 2:
            raise _ambiguous(f"several groups go on with the shape {shape}", ordered=True)
        if fitting:
            rest = fitting.popleft()
            matched[name] = rest.popleft()
            if rest:
                following[rest[0].shape].append(rest)
    unfit = [shape for shape, rests in following.items() if rests]
    if unfit:
        raise ValueError(f"no weight fits an optimizer state of the shape {unfit[0]}: {NOT_OF_ONE_MODEL}")
    return matched


def _ambiguous(why: str, ordered: bool) -> ValueError:
    if ordered:
        return ValueError(
            f"{why}, so states cannot be assigned to weights. Name the parameters of each group "
            "(--model-order FILE, one name per line, a blank line between groups), or make the optimizer from "
            "model.named_parameters(), so that the file has names"
        )
    return UnknownOrderError(
        f"{why}, and the file does not keep the model's order, so states cannot be assigned to weights. "
        "Pass the model, gyro.autopsy(…, model=model), or its parameter names in order, --model-order FILE"
    )
