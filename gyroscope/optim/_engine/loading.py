"""Loading a saved state: matched by name or order, checked, and restored in float32 or better."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gyroscope._dtensor import placed_like, row_like
from gyroscope.geometry import Split, at_least_float32
from gyroscope.model.parameters import clean_name
from gyroscope.optim._engine.loop import kind_of
from gyroscope.optim._engine.steps import Group, Step

Saved = Mapping[str, Any]
# Keys of a group that list its members. All others are options.
MEMBERS = ("params", "param_names")
# Options that change the angle of a rotation.
SETS_ANGLE = ("lr", "weight_decay", "betas", "momentum")
BY_NAME = (
    "To load by parameter name, make both optimizers of named_parameters(), or save with "
    "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(model, optimizer) and load with "
    "set_optimizer_state_dict(model, optimizer, state)"
)


def regrouped(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a saved state with the groups of `optimizer`, so that torch's optimizers load it.

    Parameters are matched by name, so both sides need the names that `named_parameters()` gives. The optimizers of
    this package do this when they load. For torch's own it is a hook: a state of RotationalAdamW goes back into AdamW.

    >>> from gyroscope.optim import RotationalAdamW
    >>> model = torch.nn.Linear(4, 2)
    >>> ours = RotationalAdamW(model)
    >>> adamw = torch.optim.AdamW(model.named_parameters(), weight_decay=0.1)
    >>> hook = adamw.register_load_state_dict_pre_hook(regrouped)
    >>> adamw.load_state_dict(ours.state_dict())
    >>> len(ours.param_groups), len(adamw.param_groups)
    (2, 1)
    """
    return match_groups(optimizer.param_groups, state_dict, type(optimizer).__name__)


def match_groups(
    groups: Sequence[Saved], saved: Saved, name: str, model_order: Sequence[Tensor] = ()
) -> dict[str, Any]:
    """Return the saved state with its groups cut as the present ones are.

    Parameters are matched by name if both sides know the same names. torch keeps the names of named_parameters(), and
    `gyro.param_groups` writes them. A single saved group without names is matched with `model_order`, the parameters in
    the order of the model. In all other cases both sides must have groups of equal sizes, matched in order.
    """
    saved_groups = saved["param_groups"]
    places = _places(saved_groups)
    if places and places.keys() == _places(groups).keys():
        keys: list[list[Any]] = [[clean_name(each) for each in group["param_names"]] for group in groups]
    elif _is_cut(saved_groups, groups, model_order):
        numbers = {id(p): number for number, p in enumerate(model_order)}
        keys = [[numbers[id(p)] for p in group["params"]] for group in groups]
        places = dict(enumerate((number, saved_groups[0]) for number in saved_groups[0]["params"]))
    else:
        _check_fits(saved, groups, name)
        return dict(saved)
    members = [[places[key] for key in of_group] for of_group in keys]
    pairs_of_groups = zip(groups, members, strict=True)
    return {**saved, "param_groups": [_regrouped(*pair, saved_groups, groups) for pair in pairs_of_groups]}


def _places(groups: Sequence[Saved]) -> dict[Any, tuple[Any, Saved]]:
    """Return the id and the group of each parameter by its name. Empty unless every parameter has its own name."""
    named = [(group.get("param_names") or [], group) for group in groups]
    if any(len(names) != len(group["params"]) for names, group in named):
        return {}
    places = {
        clean_name(name): (number, group)
        for names, group in named
        for name, number in zip(names, group["params"], strict=True)
    }
    return places if len(places) == sum(len(names) for names, _ in named) else {}


def _is_cut(saved: Sequence[Saved], groups: Sequence[Saved], model_order: Sequence[Tensor]) -> bool:
    """Return whether the present groups are parts of the one saved group, judged by numbers of parameters."""
    present = {id(p) for group in groups for p in group["params"]}
    same = len(saved) == 1 and len(saved[0]["params"]) == len(model_order)
    return same and len(groups) > 1 and present == {id(p) for p in model_order}


def _regrouped(
    group: Saved, members: Sequence[tuple[Any, Saved]], saved: Sequence[Saved], present: Sequence[Saved]
) -> dict[str, Any]:
    """Return a saved group with the members of a present one.

    Options come from the saved group with the same members. Otherwise an option is loaded only if it is the same in all
    saved groups and in all present groups: a lower lr is loaded, a weight decay for some parameters is not.
    """
    sources = {id(source): source for _, source in members}
    options: Mapping[str, Any] = next(iter(sources.values()), {})
    if len(sources) != 1 or len(options["params"]) != len(members):
        agreed = {key for key in saved[0] if key not in MEMBERS and _agree(key, saved) and _agree(key, present)}
        _warn_of_kept(group, [key for key in SETS_ANGLE if key not in agreed], list(sources.values()))
        options = {**group, **{key: saved[0][key] for key in agreed}}
    names = {"param_names": group["param_names"]} if "param_names" in group else {}
    return {**options, "params": [number for number, _ in members], **names}


def _warn_of_kept(group: Saved, kept: Sequence[str], sources: Sequence[Saved]) -> None:
    """Warn of values that stay, and that no saved group of the same members has. 0 may be that of biases and gains."""
    for key in kept:
        values = [source[key] for source in sources if key in source]
        if values and group.get(key) and group[key] not in values:
            others = " or ".join(map(str, values))
            warnings.warn(
                f"{key}={group[key]} is kept and the saved {key}={others} is not loaded, because the saved parameter "
                f"groups are cut otherwise. The rotation depends on it: set group[{key!r}] after loading if you want "
                "the saved one",
                stacklevel=5,
            )


def _agree(key: str, groups: Sequence[Saved]) -> bool:
    return all(key in group and group[key] == groups[0][key] for group in groups) or not any(key in g for g in groups)


def _check_fits(saved: Saved, groups: Sequence[Saved], name: str) -> None:
    """Raise a ValueError that names the group that differs in size."""
    saved_sizes = [len(group["params"]) for group in saved["param_groups"]]
    sizes = [len(group["params"]) for group in groups]
    if saved_sizes == sizes:
        return
    if len(saved_sizes) != len(sizes):
        raise ValueError(
            f"the saved state has {len(saved_sizes)} parameter groups (of {_joined(saved_sizes)} parameters) and this "
            f"{name} has {len(sizes)} (of {_joined(sizes)}): build it with the same groups. {BY_NAME}"
        )
    number = next(i for i, (a, b) in enumerate(zip(saved_sizes, sizes, strict=True)) if a != b)
    raise ValueError(
        f"group {number} of the saved state has {saved_sizes[number]} parameters and group {number} of this {name} has "
        f"{sizes[number]}: build it with the same parameters in the same order. {BY_NAME}"
    )


def saved_and_present(saved: Saved, groups: list[Group]) -> Iterator[tuple[Any, Tensor, Group]]:
    """Yield (saved id, parameter, its group) of every parameter, in order."""
    saved_ids = chain.from_iterable(group["params"] for group in saved["param_groups"])
    present = ((p, group) for group in groups for p in group["params"])
    for saved_id, (p, group) in zip(saved_ids, present, strict=True):
        yield saved_id, p, group


def check_state(saved: Saved, groups: list[Group], step_for: Callable[..., Step], name: str) -> None:
    """Raise a ValueError for a saved state of another rule or another shape."""
    for number, (saved_id, p, group) in enumerate(saved_and_present(saved, groups)):
        state = saved["state"].get(saved_id, {})
        kept = {key: value for key, value in state.items() if isinstance(value, Tensor) and key != "step"}
        if not kept:
            continue
        kind = kind_of(p, group)
        # Names and shapes of a state do not depend on the step count.
        step = step_for(group, 1, kind)
        shapes = expected_shapes(step, p, kind.split)
        # A rotational variant loads the moments of its rule, and starts its values per vector anew.
        required = set(shapes) if step.turn is None or step.turn.angle is None else set(step.moments)
        missing = sorted(required - kept.keys())
        if missing:
            raise ValueError(
                f"the saved state of parameter {number}, of shape {tuple(p.shape)}, has no {missing[0]!r}, only "
                f"{sorted(kept)}: another optimizer made it. Begin with a fresh {name}, or load into the one that did"
            )
        for key in shapes.keys() & kept.keys():
            if kept[key].shape != shapes[key]:
                raise ValueError(
                    f"{key!r} of parameter {number} has shape {tuple(kept[key].shape)} in the saved state and "
                    f"{tuple(shapes[key])} in this {name}: the parameters are of another model, in another order, or "
                    f"split into vectors in another way. {BY_NAME}"
                )


def expected_shapes(step: Step, p: Tensor, split: Split) -> dict[str, torch.Size]:
    """Return the shape of each tensor that a step keeps in a parameter's state."""
    stacked = (step.stacked,) if step.stacked else ()
    shapes = {key: torch.Size((*stacked, *p.shape)) for key in step.moments}
    if step.turn is not None:
        shapes |= {key: torch.Size(split.values_shape(p.shape)) for key in step.turn.rows}
    return shapes


def restored(value: Tensor, like: Tensor, split: Split) -> Tensor:
    """Return a saved tensor on the parameter's device, float32 or better, in its layout and sharded as it is."""
    value = value.to(device=like.device, dtype=at_least_float32(like.dtype), copy=True)
    if hasattr(value, "placements"):
        return value
    if hasattr(like, "placements"):
        if value.dim() < like.dim():
            return row_like(like, split, value)
        # Moments, or several of them stacked.
        stacked = value.dim() > like.dim()
        return torch.stack([placed_like(each, like) for each in value]) if stacked else placed_like(value, like)
    return torch.empty_like(like, dtype=value.dtype).copy_(value) if value.shape == like.shape else value


def _joined(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"
