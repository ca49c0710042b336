"""Whose state is whose: an optimizer numbers its parameters, a model names them.

Names decide where the optimizer has them (`param_names`, or torch.distributed.checkpoint's own). Otherwise order and
shape: each group holds its parameters in the model's order, as every comprehension over model.parameters() leaves
them, and the shape of a state must be the shape of its weight. If that leaves two ways, none is taken.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.optimizers import MOMENTUM_KEYS, SECOND_MOMENT_KEYS

Shape = tuple[int, ...]
# State tensors that have the shape of their weight.
FULL_SIZE = MOMENTUM_KEYS + SECOND_MOMENT_KEYS


class Member(NamedTuple):
    """A parameter as an optimizer knows it: its key, and its shape where it has a state."""

    key: Any
    shape: Shape | None


def match_parameters(
    file: str, shapes: Mapping[str, Shape], optimizers: Sequence[Mapping[str, Any]]
) -> tuple[list[list[str]], list[Mapping[str, Any]]]:
    """Names of the parameters of every group of all optimizers, and the states of each group by name."""
    names: list[list[str]] = []
    states: list[Mapping[str, Any]] = []
    groups = [(group, _states(optimizer)) for optimizer in optimizers for group in optimizer["param_groups"]]
    members = [[Member(key, _shape(state.get(key), group)) for key in group["params"]] for group, state in groups]
    given = [_given_names(group, shapes) for group, _ in groups]
    found = given if all(each is not None for each in given) else _by_order(file, shapes, members)
    for (_, state), group_members, group_names in zip(groups, members, found, strict=True):
        assert group_names is not None
        for member, name in zip(group_members, group_names, strict=True):
            if member.shape is not None and member.shape != shapes[name]:
                raise ValueError(
                    f"{file!r}: the optimizer's state of {name!r} has the shape {member.shape}, the weight "
                    f"{shapes[name]}; they are not of one model"
                )
        keys = {name: member.key for member, name in zip(group_members, group_names, strict=True)}
        names.append(list(group_names))
        states.append({name: state[key] for name, key in keys.items() if key in state})
    return names, states


def _states(optimizer: Mapping[str, Any]) -> dict[Any, Any]:
    """State by key; a folder of torch.distributed.checkpoint has numbers as text."""
    state = optimizer["state"]
    return {int(key) if isinstance(key, str) and key.isdigit() else key: value for key, value in state.items()}


def _shape(state: Any, group: Mapping[str, Any]) -> Shape | None:
    if not isinstance(state, Mapping):
        return None
    for name in FULL_SIZE:
        value = state.get(name)
        if isinstance(value, StoredTensor):
            # k-Adam has the moments of its k stages in one tensor.
            return value.shape[1:] if "k" in group and "strategy" in group else value.shape
    return None


def _given_names(group: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[str] | None:
    names = group.get("param_names") or group["params"]
    known = len(names) == len(group["params"]) and all(isinstance(name, str) and name in shapes for name in names)
    return list(names) if known else None


def _by_order(file: str, shapes: Mapping[str, Shape], groups: Sequence[Sequence[Member]]) -> list[list[str]]:
    """The one way to give each name to a group, or to none, such that orders and shapes agree.

    Names are gone through in the model's order. A partial way is how far each group is filled; ways that are filled
    alike go on alike, so that one of them is kept, with whether there was another.
    """
    total = sum(map(len, groups))
    spare = len(shapes) - total
    if spare < 0:
        raise ValueError(
            f"{file!r}: the optimizer has {total} parameters, the weights are {len(shapes)}; they are not of one model"
        )
    # By how far each group is filled: the way there, as a chain of choices, and whether it is the only one.
    ways: dict[tuple[int, ...], tuple[Any, bool]] = {(0,) * len(groups): (None, True)}
    for done, (name, shape) in enumerate(shapes.items()):
        onward: dict[tuple[int, ...], tuple[Any, bool]] = {}
        for filled, (way, alone) in ways.items():
            options = [-1] if done - sum(filled) < spare else []
            options += [number for number, group in enumerate(groups) if _fits(group, filled[number], shape)]
            for number in options:
                reached = tuple(count + (place == number) for place, count in enumerate(filled))
                onward[reached] = ((number, name, way), alone and reached not in onward)
        ways = onward
    way, alone = ways.get(tuple(map(len, groups)), (None, False))
    if way is None and total:
        raise ValueError(
            f"{file!r}: the shapes of the optimizer's state do not follow those of the weights in the model's order; "
            "they are not of one model, or make the optimizer of model.named_parameters(), so that the file has names"
        )
    if not alone:
        raise ValueError(
            f"{file!r}: weights of equal shape in several groups, or not all in the optimizer, so that whose state is "
            "whose cannot be told; make the optimizer of model.named_parameters(), so that the file has names"
        )
    return _unrolled(way, len(groups))


def _fits(group: Sequence[Member], filled: int, shape: Shape) -> bool:
    return filled < len(group) and group[filled].shape in (None, shape)


def _unrolled(way: Any, groups: int) -> list[list[str]]:
    names: list[list[str]] = [[] for _ in range(groups)]
    while way is not None:
        number, name, way = way
        if number >= 0:
            names[number].insert(0, name)
    return names
