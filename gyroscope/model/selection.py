"""Which vectors turn: the one decision behind parameter groups, plans, tracker, initialisation and schedulers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from gyroscope.geometry import Axis, Granularity, Split
from gyroscope.model.optimizer_list import Optimizers, OwnedGroup, algorithm_of
from gyroscope.model.parameters import NO_VECTORS, ROWS, ModelParameter, model_parameters
from gyroscope.optimizers import spec_of

# One optimizer, a list of them, or a container of several: what `optimizers_of` takes.
AnyOptimizer = Any


@final
@dataclass(frozen=True)
class Invariance:
    """What the loss does not notice about a parameter: the scale, and if `centred` the mean, of these vectors.

    `granularity` is "none" where it notices the scale however the parameter is split, and, with `undecided`, where a
    trial could not say.
    """

    granularity: Granularity
    axis: Axis = 0
    group_size: int = 1
    centred: bool = False
    evidence: str = ""
    undecided: bool = False

    @property
    def split(self) -> Split:
        """How the parameter splits into those vectors."""
        return Split(self.granularity, self.axis, self.group_size)


@final
@dataclass(frozen=True, eq=False)
class Decision:
    """Whether and how one parameter splits into vectors that turn, and why.

    `split` is `none` for a parameter without such vectors; `group` is the number of its parameter group, counted over
    all optimizers (`Optimizers`), -1 where none was given. The rows of an embedding turn only where an optimizer turns
    them, but they decay and are measured (`gyroscope.model.measured`).
    """

    name: str
    parameter: nn.Parameter
    split: Split
    reason: str
    group: int = -1
    is_embedding: bool = False

    @property
    def turns(self) -> bool:
        """Whether the parameter has vectors that turn."""
        return self.split.granularity != "none"


def select(
    model: nn.Module | None,
    optimizer: AnyOptimizer = None,
    *,
    probe: Mapping[str, Invariance] | None = None,
    frozen: bool = False,
    embeddings: bool = False,
) -> list[Decision]:
    """Return the weights whose vectors turn, by the rules of `decide`, in the model's order.

    `frozen` adds those without requires_grad, `embeddings` the embeddings that the optimizer decays (`with_tokens`).

    >>> import torch
    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    >>> [weight.name for weight in select(model)]
    ['1.weight']
    """
    decisions = decide(model, optimizer, probe=probe)
    if embeddings:
        groups = Optimizers.of(optimizer).groups()
        decisions = [with_tokens(decision, groups[decision.group].options) for decision in decisions]
    return [decision for decision in decisions if decision.turns and (frozen or decision.parameter.requires_grad)]


def decide(
    model: nn.Module | None, optimizer: AnyOptimizer = None, *, probe: Mapping[str, Invariance] | None = None
) -> list[Decision]:
    """A decision for every parameter of the model that the optimizer, or one of several, trains, in the model's order.

    The first of these that applies:

    1. An optimizer that turns by group (`turns_by_group`: ours but two) does what the group's `granularity`,
       `axis` and `group_size` say: by default every tensor of two or more dimensions along dim 0, embeddings too.
    2. Muon turns each matrix as a whole: that of a weight, or each of a stack of them (`matrix_split`).
    3. A split that is not the default and stands in the group, where `param_groups` writes it.
    4. The vectors that `probe`, the result of `gyro.probe`, has found.
    5. The default split, if it was written into the group and is not the optimizer's own default.
    6. The type of the layer (`layer_split`).

    Without an optimizer the last and the probe decide. Without a model the groups do; a group without a split then has
    the rule of bare tensors: two or more dimensions, along dim 0. Vectors of one entry never turn, nor do complex
    weights in an optimizer.

    >>> import torch
    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    >>> adamw = torch.optim.AdamW(model.parameters())
    >>> [(decision.name, decision.split.granularity) for decision in decide(model, adamw)]
    [('0.weight', 'none'), ('1.weight', 'neuron'), ('1.bias', 'none')]
    """
    # A weight that is not invariant still turns; its split then comes from the other rules.
    invariant = {name: invariance for name, invariance in (probe or {}).items() if invariance.granularity != "none"}
    if optimizer is None:
        if model is None:
            raise ValueError("neither a model nor an optimizer to select weights of: pass at least one")
        return [_by_model(known, invariant) for known in model_parameters(model)]
    groups = Optimizers.of(optimizer).groups()
    if model is None:
        return [_by_group(default, groups[default.group], measured=False) for default in _bare(groups)]
    numbers = {p: number for number, group in enumerate(groups) for p in group.options["params"]}
    defaults = [_by_model(known, invariant) for known in model_parameters(model) if known.parameter in numbers]
    decisions = []
    for default in defaults:
        number = numbers[default.parameter]
        measured = default.name in invariant
        decisions.append(_by_group(replace(default, group=number), groups[number], measured=measured))
    return decisions


def with_tokens(decision: Decision, group: Mapping[str, Any]) -> Decision:
    """Return the decision with one vector per token if it is for an embedding that the group decays.

    No optimizer rotates an embedding by default, because the batch decides which of its rows have a gradient. If it
    decays, its rows settle all the same: plan, tracker and autopsy include it. Without decay they leave it out.
    """
    decays = float(group.get("weight_decay") or 0.0) > 0
    if decision.turns or not decision.is_embedding or not decays:
        return decision
    return replace(decision, split=ROWS, reason="embedding")


def turned_by_default(model: nn.Module, optimizer: AnyOptimizer) -> list[Decision]:
    """What an optimizer turns only because it was given bare tensors, and not as the type of its layer says.

    An embedding, or a Conv1D along its inputs: what they are by type, with their group's number. Groups with names were
    sorted, or say on purpose what they say.
    """
    optimizers = Optimizers.of(optimizer)
    groups = optimizers.groups()
    by_type = {known.parameter: _by_model(known, {}) for known in model_parameters(model)}
    turned = []
    for decision in select(model, optimizers):
        group, owner = groups[decision.group]
        is_bare = turns_by_group(owner) and "param_names" not in group and Split.of(group) == Split()
        default = by_type[decision.parameter]
        if is_bare and default.split != decision.split:
            turned.append(replace(default, group=decision.group))
    return turned


def turns_by_group(optimizer: Optimizer) -> bool:
    """Whether the optimizer splits and turns each tensor as its parameter group says."""
    return bool(getattr(optimizer, "turns_by_group", False))


def _turns_whole_matrices(group: OwnedGroup) -> bool:
    """Whether the matrix turns as one vector, as Muon's does."""
    algorithm = algorithm_of(group.options)
    if algorithm is not None:  # Muon, Dion and their kin
        return "muon" in algorithm or "dion" in algorithm
    spec = spec_of(group.owner)
    return spec is not None and spec.whole_matrix


def matrix_split(shape: Sequence[int], group: Mapping[str, Any]) -> Split:
    """The matrices that Muon orthogonalises in a tensor, one vector each.

    Three dimensions are a stack of matrices, of experts or heads; four are a convolution, which is one matrix of its
    outputs. dion's groups say by `flatten` which of the two more than two dimensions are.

    >>> matrix_split((8, 64, 32), {}).num_vectors((8, 64, 32))
    8
    """
    flatten = group.get("flatten", len(shape) > 3)
    return Split("tensor") if flatten or len(shape) < 3 else Split(axis=tuple(range(len(shape) - 2)))


def _by_model(known: ModelParameter, invariant: Mapping[str, Invariance]) -> Decision:
    by_type = Decision(known.name, known.parameter, known.split, known.origin, is_embedding=known.is_embedding)
    if known.name not in invariant:
        return by_type
    return replace(by_type, split=invariant[known.name].split, reason="the probe")


def _bare(groups: Sequence[OwnedGroup]) -> Iterator[Decision]:
    """Every tensor of the optimizers, as if it turned along dim 0; by name where an optimizer knows names."""
    for number, (group, _) in enumerate(groups):
        # torch writes param_names where an optimizer was made of named_parameters().
        names = group.get("param_names") or [""] * len(group["params"])
        for name, parameter in zip(names, group["params"], strict=True):
            yield Decision(name, parameter, Split(), "two or more dimensions", number)


def _by_group(default: Decision, owned: OwnedGroup, *, measured: bool) -> Decision:
    """The default, which the model alone gives, unless the optimizer or the group of the parameter says otherwise."""
    group, optimizer = owned
    split = Split.of(group)
    name = type(optimizer).__name__
    # Rotational(Muon) takes Muon's direction, but turns it vector by vector.
    if turns_by_group(optimizer):
        return turning(replace(default, split=split, reason=f"turned by {name}"), group)
    decision = default
    # The default in a group may come from the type of the layer (param_groups): a measurement precedes it.
    if _is_written(group, optimizer) and (split != Split() or not measured):
        decision = replace(default, split=split, reason="its parameter group")
    return turning(decision, group, whole_by=name if _turns_whole_matrices(owned) else "")


def turning(decision: Decision, group: Mapping[str, Any], whole_by: str = "") -> Decision:
    """Return the decision without vectors that cannot turn.

    `whole_by` names an optimizer that turns each matrix as one vector.
    """
    shape = decision.parameter.shape
    if decision.parameter.is_complex() or not decision.split.rotates(shape):
        return replace(decision, split=NO_VECTORS)
    if whole_by:
        return replace(decision, split=matrix_split(shape, group), reason=f"{whole_by} turns the matrix as a whole")
    return decision


def _is_written(group: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Whether somebody wrote the group's split: ours that never turn put the default into every group."""
    return "granularity" in group and (Split.of(group) != Split() or "granularity" not in optimizer.defaults)
