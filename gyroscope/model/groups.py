"""Parameter groups for any torch optimizer: what rotates, along which dimension, and with what weight decay."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast, final

import torch
from rich.table import Table
from torch import nn

from gyroscope._checks import check_non_negative
from gyroscope._text import to_text
from gyroscope.geometry import Granularity, Split
from gyroscope.model.by_name import splits_by_name
from gyroscope.model.parameters import NO_VECTORS, ModelParameter, model_parameters
from gyroscope.model.selection import Decision, Invariance, decide
from gyroscope.spelling import did_you_mean

Override = str | Mapping[str, Any] | None
SPLIT = ("granularity", "axis", "group_size")


@final
class ParamGroups(list[dict[str, Any]]):
    """Parameter groups for any torch optimizer. `describe()` prints the group of each parameter, and why."""

    def __init__(self, groups: Iterable[dict[str, Any]], reasons: Mapping[str, str]) -> None:
        super().__init__(groups)
        self._reasons = dict(reasons)
        # Listed now, because an optimizer will write its own defaults into the groups.
        known = {*SPLIT, "params", "param_names", "weight_decay"}
        self._options = sorted({key for group in self for key in group} - known)

    def describe(self) -> str:
        """Return a table with one line per parameter, in the order of the groups."""
        table = Table(box=None, pad_edge=False, header_style="")
        for column in ("group", "parameter", "shape", "rotates as", "weight decay", "other options", "because"):
            table.add_column(column, overflow="fold")
        for number, group in enumerate(self):
            options = ", ".join(f"{key}={group[key]}" for key in self._options if key in group)
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                shape = "×".join(map(str, parameter.shape)) or "scalar"
                reason = self._reasons[name] + ("" if parameter.requires_grad else ", frozen")
                decay = f"{group['weight_decay']:g}"
                table.add_row(str(number), name, shape, _vectors(group, parameter), decay, options, reason)
        return to_text(table, width=160)


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    granularity: str = "neuron",
    overrides: Mapping[str, Override] | None = None,
    probe: Mapping[str, Invariance] | None = None,
    gain_lr: float | None = None,
) -> ParamGroups:
    """Sort the model's parameters into those that rotate and those that take the plain step.

    Weights rotate and decay. Biases, gains, norm layers and embeddings do neither. Every parameter is in exactly one
    group, also a frozen one. A tied one is listed under its first name.

    Args:
        model: the model whose parameters the optimizer gets, compiled, wrapped or sharded as it will be trained.
        weight_decay: for what rotates, in the optimizer's own unit. Everything else gets 0.
        granularity: "neuron" for one vector per output of a layer, "tensor" for one per weight, "none" for weights that
            decay but do not rotate.
        overrides: maps a regular expression, searched for in names, to a granularity, a dict of options of the group,
            or None for neither rotation nor decay. The last match wins. A parameter that rotates by an override also
            decays.
        probe: the result of `gyro.probe`, which takes precedence over the layer's type. A weight that is not
            scale-invariant does not rotate, but decays. If a weight is undecided, its type decides, with a warning.
        gain_lr: the learning rate of the gains of `gyroscope.nn.add_gain` and of weight_norm, which get a group of
            their own. None: the optimizer's.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    >>> groups = param_groups(model, weight_decay=0.1, overrides={"2.weight": "tensor"})
    >>> for group in groups:
    ...     print(group["granularity"], group["weight_decay"], group["param_names"])
    neuron 0.1 ['0.weight']
    none 0.0 ['0.bias', '1.weight', '1.bias', '2.bias']
    tensor 0.1 ['2.weight']
    """
    check_non_negative("weight_decay", weight_decay)
    if granularity not in ("neuron", "tensor", "none"):
        raise ValueError(
            f"granularity={granularity!r} must be 'neuron', 'tensor' or 'none'. Give groups of neurons their size: "
            "overrides={'qk': {'granularity': 'group', 'group_size': 64}}"
        )
    parameters = model_parameters(model)
    gains = {known.name for known in parameters if known.is_gain} if gain_lr is not None else set()
    if gain_lr is not None:
        check_non_negative("gain_lr", gain_lr)
        if not gains:
            raise ValueError(
                f"gain_lr={gain_lr!r}, and the model has no gains: add them by gyroscope.nn.add_gain(model)"
            )
    patterns = _compiled(overrides or {}, parameters)
    probe = _decided(probe or {}, parameters)
    # In order of precedence, lowest first: type of layer, probe, overrides.
    choices = []
    for known, decision in zip(parameters, decide(model, probe=probe), strict=True):
        choice = _by_default(known, decision, probe.get(known.name), weight_decay, granularity)
        if known.name in gains:
            choice = GroupOptions({**choice.options, "lr": gain_lr}, choice.reason)
        for pattern, override in patterns.items():
            if _matches(pattern, known):
                choice = _overridden(choice, pattern.pattern, override, weight_decay)
        choices.append(_settled(choice, known))
    return _merged(parameters, choices)


def optimizer_groups(params: Any, *, weight_decay: float, granularity: str = "neuron") -> Any:
    """Convert an optimizer's first argument to parameter groups if it is a model or named parameters.

    A model is sorted by `param_groups`, `model.named_parameters()` by names and shapes (`splits_by_name`). Bare tensors
    and groups are returned as they are.

    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    >>> [group["param_names"] for group in optimizer_groups(model, weight_decay=0.1)]
    [['0.weight', '1.bias'], ['1.weight']]
    """
    if isinstance(params, nn.Module):
        return param_groups(params, weight_decay=weight_decay, granularity=granularity)
    if isinstance(params, dict | torch.Tensor | str) or not isinstance(params, Iterable):
        return params
    listed = list(params)
    if not listed or not all(_is_named(each) for each in listed):
        return listed
    splits = splits_by_name({name: parameter.shape for name, parameter in listed})
    groups: dict[Split, dict[str, Any]] = {}
    for name, parameter in listed:
        split = splits[name].split
        rotates = split.granularity != "none"
        if rotates and granularity != "neuron":
            split = replace(split, granularity=cast(Granularity, granularity))
        decay = weight_decay if rotates else 0.0
        group = groups.setdefault(split, {"params": [], "weight_decay": decay, **asdict(split)})
        group["params"].append((name, parameter))
    return list(groups.values())


def _is_named(each: Any) -> bool:
    return isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], torch.Tensor)


@dataclass(frozen=True)
class GroupOptions:
    """The options that a parameter's group must have, and why."""

    options: dict[str, Any]
    reason: str


def _by_default(
    known: ModelParameter, decision: Decision, invariance: Invariance | None, weight_decay: float, granularity: str
) -> GroupOptions:
    """Return the options by the selection. A weight that is not scale-invariant decays, but does not rotate."""
    is_weight = decision.turns or known.split.granularity != "none"
    options = {"weight_decay": weight_decay if is_weight else 0.0, **asdict(decision.split)}
    if invariance is None:
        if is_weight and granularity != "neuron":
            options["granularity"] = granularity
        return GroupOptions(options, decision.reason)
    if invariance.granularity == "none":
        return GroupOptions({**options, **asdict(NO_VECTORS)}, "the probe")
    return GroupOptions({**options, "centre": invariance.centred}, decision.reason)


def _overridden(before: GroupOptions, pattern: str, override: Override, weight_decay: float) -> GroupOptions:
    if override is None:
        override = {"granularity": "none", "weight_decay": 0.0}
    elif isinstance(override, str):
        override = {"granularity": override}
    elif not isinstance(override, Mapping):
        raise ValueError(
            f"overrides[{pattern!r}]={override!r} must be a granularity, a dict of options, or None for no rotation "
            "and no decay"
        )
    on_request = before.options["granularity"] == "none" and override.get("granularity", "none") != "none"
    decay = weight_decay if on_request else before.options["weight_decay"]
    return GroupOptions({**before.options, "weight_decay": decay, **override}, f"override {pattern!r}")


def _settled(choice: GroupOptions, known: ModelParameter) -> GroupOptions:
    """Return the options with their split checked. Vectors of one entry have no direction."""
    options = choice.options
    try:
        split = Split.of(options)
        rotates = split.rotates(known.parameter.shape)
    except ValueError as error:
        shape = tuple(known.parameter.shape)
        raise ValueError(f"{choice.reason} does not fit {known.name!r} of shape {shape}: {error}") from error
    if split.granularity != "none" and not rotates:
        reason = f"{choice.reason}, but no direction to rotate"
        return GroupOptions({**options, **asdict(NO_VECTORS), "weight_decay": 0.0}, reason)
    if split.granularity in ("tensor", "none"):  # the same group for any axis of the default
        split = Split(split.granularity)
    return GroupOptions({**options, **asdict(split)}, choice.reason)


def _merged(parameters: list[ModelParameter], choices: list[GroupOptions]) -> ParamGroups:
    # A list and not a dict by options, because options of an override may be unhashable, such as a tensor as lr.
    groups: list[tuple[dict[str, Any], list[ModelParameter]]] = []
    for known, choice in zip(parameters, choices, strict=True):
        for options, members in groups:
            if options == choice.options:
                members.append(known)
                break
        else:
            groups.append((choice.options, [known]))
    made = (
        {"params": [known.parameter for known in members], "param_names": [known.name for known in members], **options}
        for options, members in groups
    )
    reasons = {known.name: choice.reason for known, choice in zip(parameters, choices, strict=True)}
    return ParamGroups(made, reasons)


def _matches(pattern: re.Pattern[str], known: ModelParameter) -> bool:
    return any(pattern.search(place.name) for place in known.places)


def _compiled(overrides: Mapping[str, Override], parameters: list[ModelParameter]) -> dict[re.Pattern[str], Override]:
    compiled = {}
    for text, override in overrides.items():
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ValueError(f"overrides[{text!r}] is not a regular expression: {error}") from None
        if not any(_matches(pattern, known) for known in parameters):
            raise ValueError(f"overrides[{text!r}] matches no parameter: {_near(text, parameters)}")
        compiled[pattern] = override
    return compiled


def _decided(probe: Mapping[str, Invariance], parameters: list[ModelParameter]) -> dict[str, Invariance]:
    """Return the decided answers of the probe, with a warning about undecided weights."""
    for name in probe.keys() - {known.name for known in parameters}:
        raise ValueError(f"the probe has {name!r}, the model does not: probe this model, {_near(name, parameters)}")
    undecided = {name for name, invariance in probe.items() if invariance.undecided}
    weights = [known.name for known in parameters if known.name in undecided and known.split.granularity != "none"]
    if weights:
        shown = ", ".join(weights[:5]) + (", …" if len(weights) > 5 else "")
        warnings.warn(
            f"the probe could not decide for {len(weights)} weights whether they are scale-invariant ({shown}: "
            "no gradient reaches them). They rotate by the type of their layer. To exclude them, pass "
            "overrides={name: None}",
            stacklevel=3,
        )
    return {name: invariance for name, invariance in probe.items() if name not in undecided}


def _near(text: str, parameters: list[ModelParameter]) -> str:
    names = [place.name for known in parameters for place in known.places]
    # 0.4 is tolerant, because a pattern has characters that no name has.
    return did_you_mean(text, names, limit=5, cutoff=0.4)


def _vectors(group: Mapping[str, Any], parameter: nn.Parameter) -> str:
    if group["granularity"] == "none":
        return "–"
    split = Split.of(group)
    size = split.fan_in(parameter.shape)
    if split.granularity == "tensor":
        return f"one tensor of {size}"
    dims = ", ".join(map(str, split.axes(parameter.dim())))
    return f"{split.num_vectors(parameter.shape)} × {split.granularity} of {size}, dim {dims}"
