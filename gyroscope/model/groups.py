"""Which parameters of a model rotate, along which dimension, and with what weight decay."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Protocol, final

from rich.console import Console
from rich.table import Table
from torch import nn

from gyroscope._checks import check_non_negative
from gyroscope.geometry import Split
from gyroscope.model.parameters import Entry, entries

Override = str | Mapping[str, Any] | None
SPLIT = ("granularity", "axis", "group_size")


class Invariance(Protocol):
    """What a probe says of one parameter: the vectors whose scale, and if `centred` whose mean, does not matter."""

    @property
    def granularity(self) -> str: ...  # noqa: D102
    @property
    def axis(self) -> int: ...  # noqa: D102
    @property
    def group_size(self) -> int: ...  # noqa: D102
    @property
    def centred(self) -> bool: ...  # noqa: D102


@final
class ParamGroups(list[dict[str, Any]]):
    """Parameter groups for any torch optimizer. `describe()` says where each parameter went, and why."""

    def __init__(self, groups: Iterable[dict[str, Any]], reasons: Mapping[str, str]) -> None:
        super().__init__(groups)
        self._reasons = dict(reasons)
        # Named now: an optimizer writes its own defaults into the groups.
        known = {*SPLIT, "params", "param_names", "weight_decay"}
        self._options = sorted({key for group in self for key in group} - known)

    def describe(self) -> str:
        """A table with one line per parameter, in the order of the groups."""
        table = Table(box=None, pad_edge=False, header_style="")
        for column in ("group", "parameter", "shape", "rotates as", "weight decay", "other options", "because"):
            table.add_column(column, overflow="fold")
        for number, group in enumerate(self):
            options = ", ".join(f"{key}={group[key]}" for key in self._options if key in group)
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                shape, vectors = "×".join(map(str, parameter.shape)) or "scalar", _vectors(group, parameter)
                reason = self._reasons[name] + ("" if parameter.requires_grad else ", frozen")
                table.add_row(str(number), name, shape, vectors, f"{group['weight_decay']:g}", options, reason)
        text = io.StringIO()
        Console(file=text, width=160).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    granularity: str = "neuron",
    overrides: Mapping[str, Override] | None = None,
    probe: Mapping[str, Invariance] | None = None,
) -> ParamGroups:
    """The model's parameters, sorted into those that rotate and those that take the plain step.

    Weights rotate and decay. Biases, gains, norm layers and embeddings do neither. Every parameter lands in exactly one
    group, a tied one under its first name, a frozen one like any other: no optimizer touches what has no gradient.

    `overrides` maps a regular expression, searched for in names, to a granularity ("neuron", "tensor", "none"), to a
    dict of the group's options, or to None: neither rotation nor decay. Later ones win. What rotates on request decays.
    `probe`, the result of `gyro.probe`, replaces the granularity that the type of a layer suggests.

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
            f"granularity={granularity!r} must be 'neuron', 'tensor' or 'none'; give groups of neurons their size: "
            "overrides={'qk': {'granularity': 'group', 'group_size': 64}}"
        )
    found = entries(model)
    patterns = _compiled(overrides or {}, found)
    _check_probe(probe or {}, found)
    decisions = []
    for entry in found:
        decision = _by_default(entry, weight_decay, granularity)
        if probe and entry.name in probe:
            decision = _probed(decision, probe[entry.name], weight_decay)
        for pattern, override in patterns.items():
            if _matches(pattern, entry):
                decision = _overridden(decision, pattern.pattern, override, weight_decay)
        decisions.append(_settled(decision, entry))
    return _merged(found, decisions)


def rotating(group: Mapping[str, Any]) -> Iterator[tuple[nn.Parameter, Split]]:
    """The weights of an optimizer's group that rotate, each with its split into vectors.

    Those with a direction that trains: two or more dimensions, vectors of two or more entries, not frozen. A group that
    does not say otherwise rotates by neurons along dim 0.
    """
    split = Split.of(group)
    for parameter in group["params"]:
        if parameter.requires_grad and split.rotates(parameter.shape):
            yield parameter, split


@dataclass(frozen=True)
class Decision:
    """The options a parameter's group must have, and why."""

    options: dict[str, Any]
    reason: str

    @property
    def rotates(self) -> bool:
        """Whether the parameter is among the weights that turn."""
        return bool(self.options["granularity"] != "none")


def _by_default(entry: Entry, weight_decay: float, granularity: str) -> Decision:
    split, (_, module, tensor) = entry.split, entry.places[0]
    reason = f"{tensor} of {type(module).__name__.removeprefix('Parametrized')}"
    if len(entry.places) > 1:
        reason += f", tied to {', '.join(name for name, _, _ in entry.places[1:])}"
    is_weight = split.granularity != "none"
    options = {"weight_decay": weight_decay if is_weight else 0.0, **asdict(split)}
    if is_weight and granularity != "neuron":
        options["granularity"] = granularity
    return Decision(options, reason)


def _probed(default: Decision, found: Invariance, weight_decay: float) -> Decision:
    """A weight without invariance still decays: it is a weight all the same."""
    options = {**default.options, **{key: getattr(found, key) for key in SPLIT}}
    if found.granularity != "none":
        options |= {"weight_decay": weight_decay, "centre": found.centred}
    return Decision(options, "the probe")


def _overridden(before: Decision, pattern: str, override: Override, weight_decay: float) -> Decision:
    if override is None:
        override = {"granularity": "none", "weight_decay": 0.0}
    elif isinstance(override, str):
        override = {"granularity": override}
    elif not isinstance(override, Mapping):
        raise ValueError(
            f"overrides[{pattern!r}]={override!r} must be a granularity, a dict of options, or None for no rotation "
            "and no decay"
        )
    on_request = not before.rotates and override.get("granularity", "none") != "none"
    decay = weight_decay if on_request else before.options["weight_decay"]
    return Decision({**before.options, "weight_decay": decay, **override}, f"override {pattern!r}")


def _settled(decision: Decision, entry: Entry) -> Decision:
    """The decision with its split checked; a bias, and vectors of one entry, have no direction to turn."""
    options = decision.options
    try:
        split = Split.of(options)
        turns = split.rotates(entry.parameter.shape)
    except ValueError as error:
        shape = tuple(entry.parameter.shape)
        raise ValueError(f"{decision.reason} does not fit {entry.name!r} of shape {shape}: {error}") from error
    if decision.rotates and not turns:
        reason = f"{decision.reason}, but no direction to turn"
        return Decision({**options, **asdict(Split("none")), "weight_decay": 0.0}, reason)
    if split.granularity in ("tensor", "none"):  # the same group whatever axis the default had
        split = Split(split.granularity)
    return Decision({**options, **asdict(split)}, decision.reason)


def _merged(found: list[Entry], decisions: list[Decision]) -> ParamGroups:
    groups: list[tuple[dict[str, Any], list[Entry]]] = []
    for entry, decision in zip(found, decisions, strict=True):
        for options, members in groups:
            if options == decision.options:
                members.append(entry)
                break
        else:
            groups.append((decision.options, [entry]))
    made = (
        {"params": [entry.parameter for entry in members], "param_names": [entry.name for entry in members], **options}
        for options, members in groups
    )
    return ParamGroups(made, {entry.name: d.reason for entry, d in zip(found, decisions, strict=True)})


def _matches(pattern: re.Pattern[str], entry: Entry) -> bool:
    return any(pattern.search(name) for name, _, _ in entry.places)


def _compiled(overrides: Mapping[str, Override], found: list[Entry]) -> dict[re.Pattern[str], Override]:
    compiled = {}
    for text, override in overrides.items():
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ValueError(f"overrides[{text!r}] is not a regular expression: {error}") from None
        if not any(_matches(pattern, entry) for entry in found):
            raise ValueError(f"overrides[{text!r}] matches no parameter; {_near(text, found)}")
        compiled[pattern] = override
    return compiled


def _check_probe(probe: Mapping[str, Invariance], found: list[Entry]) -> None:
    for name in probe.keys() - {entry.name for entry in found}:
        raise ValueError(f"the probe knows {name!r}, the model does not: probe this model; {_near(name, found)}")


def _near(text: str, found: list[Entry]) -> str:
    names = [name for entry in found for name, _, _ in entry.places]
    near = get_close_matches(text, names, n=5, cutoff=0.4) or names[:5]
    return f"names like it: {', '.join(near)}"


def _vectors(group: Mapping[str, Any], parameter: nn.Parameter) -> str:
    if group["granularity"] == "none":
        return "–"
    split = Split.of(group)
    size, count = split.fan_in(parameter.shape), split.num_vectors(parameter.shape)
    if split.granularity == "tensor":
        return f"one tensor of {size}"
    return f"{count} × {split.granularity} of {size}, dim {split.axis}"
