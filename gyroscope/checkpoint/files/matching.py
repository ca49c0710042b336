"""Optimizer states matched with weights: an optimizer numbers its parameters, and a model names them.

Names decide if the optimizer has them (`param_names`, or torch.distributed.checkpoint's own). Otherwise each group has
its parameters in the model's order, as a comprehension over model.parameters() does, and a state has the shape of its
weight. A match is accepted only if all orders that fit give each weight with vectors the same state.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gyroscope.checkpoint.files.group_interleaving import AmbiguousGroupsError, Shape, interleave
from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.optimizers import MOMENTUM_KEYS, SECOND_MOMENT_KEYS

Weights = dict[str, StoredTensor]
# State tensors that have the shape of their weight.
FULL_SIZE = MOMENTUM_KEYS + SECOND_MOMENT_KEYS


class UnknownOrderError(ValueError):
    """A match of weights and states needs the model's order, which is unknown."""


class Member(NamedTuple):
    """A parameter in an optimizer. `shape` is None without a state. `follow` multiplied its last angle."""

    group: int
    shape: Shape | None
    state: Mapping[str, Any]
    angle_factor: float = 1.0


def match_parameters(
    file: str,
    weights: Weights,
    optimizers: Sequence[Mapping[str, Any]],
    *,
    ordered: bool = True,
    names: Sequence[Sequence[str]] | None = None,
) -> dict[str, Member]:
    """Return the optimizer's member for each weight that it has.

    Args:
        file: its name, for errors.
        weights: in the model's order if `ordered`.
        optimizers: their state dicts.
        ordered: whether the order of the weights is known to be the model's. Raises `UnknownOrderError` if that is
            needed.
        names: of the parameters of each group, if the user has given them.
    """
    shapes = {name: weight.shape for name, weight in weights.items()}
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer["param_groups"]]
    members = [_members(number, *each) for number, each in enumerate(groups)]
    held = list(map(len, members))
    if names is not None and list(map(len, names)) != held:
        given = list(map(len, names))
        raise ValueError(f"{file!r}: the optimizer's groups have {held} parameters, and {given} names were given")
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
        raise ValueError(
            f"{file!r}: the optimizer has {count} parameters, the weights are {len(left)}: they are not of one model"
        )
    matched |= _by_order(file, left, unnamed) if ordered else _by_shape(file, left, unnamed)
    for name, member in matched.items():
        if name not in shapes or member.shape not in (None, shapes[name]):
            raise ValueError(
                f"{file!r}: the optimizer's state of {name!r} has the shape {member.shape}, the weight "
                f"{shapes.get(name)}: they are not of one model"
            )
    return matched


def _members(number: int, optimizer: Mapping[str, Any], group: Mapping[str, Any]) -> list[Member]:
    states = _by_number(optimizer["state"])
    factors = optimizer.get("angle_factors")
    factors = _by_number(factors) if isinstance(factors, Mapping) else {}
    members = []
    for key in group["params"]:
        state = states.get(key, {})
        members.append(Member(number, _shape(state, group), state, float(factors.get(key, 1.0))))
    return members


def _by_number(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return values by parameter; a folder of torch.distributed.checkpoint has numbers as text."""
    return {int(key) if isinstance(key, str) and key.isdigit() else key: value for key, value in values.items()}


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


def _by_order(file: str, shapes: Mapping[str, Shape], groups: Sequence[Sequence[Member]]) -> dict[str, Member]:
    try:
        places = interleave(list(shapes.values()), [[member.shape for member in group] for group in groups])
    except AmbiguousGroupsError:
        raise ValueError(
            f"{file!r}: weights of equal shape in several groups, or not all in the optimizer, so whose state is "
            "whose cannot be told. Name the parameters of each group (--model-order FILE, one name per line, a blank "
            "line between groups), or make the optimizer of model.named_parameters(), so that the file has names"
        ) from None
    if places is None:
        raise ValueError(
            f"{file!r}: the shapes of the optimizer's state do not follow those of the weights in the model's order. "
            "They are not of one model, or the optimizer has another order: make it of model.named_parameters()"
        )
    return {name: groups[place[0]][place[1]] for name, place in zip(shapes, places, strict=True) if place is not None}


def _by_shape(file: str, shapes: Mapping[str, Shape], groups: Sequence[Sequence[Member]]) -> dict[str, Member]:
    """Return the one match by shape, whatever the order; raise `UnknownOrderError` if there are several."""
    members = [member for group in groups for member in group]
    matched: dict[str, Member] = {}
    for shape in dict.fromkeys(member.shape for member in members if member.shape is not None):
        names = [name for name, each in shapes.items() if each == shape]
        same = [member for member in members if member.shape == shape]
        if len(names) > 1 and len(shape) >= 2:
            raise _unknown_order(file, f"several weights have the shape {shape}")
        if len(same) > len(names):
            raise ValueError(
                f"{file!r}: no weight has the shape {shape} of an optimizer state: they are not of one model"
            )
        # Biases and gains have no vectors: no number of an autopsy depends on which of them has which state.
        matched |= zip(names, same, strict=False)
    stateless = [member for member in members if member.shape is None]
    left = [name for name in shapes if name not in matched]
    if stateless and (len(left) > len(stateless) or len({member.group for member in stateless}) > 1):
        raise _unknown_order(file, "several weights have no optimizer state")
    return matched | dict(zip(left, stateless, strict=False))


def _unknown_order(file: str, why: str) -> UnknownOrderError:
    return UnknownOrderError(
        f"{file!r}: {why}, and the file does not keep the model's order, so whose state is whose cannot be told. "
        "Pass the model, gyro.autopsy(…, model=model), or its parameter names in order, --model-order FILE"
    )
