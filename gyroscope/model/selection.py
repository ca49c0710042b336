"""Which vectors rotate: one decision for parameter groups, plans, tracker, initialisation and schedulers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from gyroscope.geometry import Axis, Granularity, Split
from gyroscope.model.optimizer_list import Optimizers, OwnedGroup
from gyroscope.model.parameters import NO_VECTORS, ROWS, ModelParameter, model_parameters
from gyroscope.optimizers import flattens_stacks, rotates_matrices

# One optimizer, a list of them, or a container of several: what `optimizers_of` takes.
AnyOptimizer = Any


@final
@dataclass(frozen=True)
class Invariance:
    """The vectors of a parameter whose scale, and if `centred` whose mean, the loss ignores.

    `granularity` is "none" if the loss depends on the scale however the parameter is split, or if this is `undecided`.
    """

    granularity: Granularity
    axis: Axis = 0
    group_size: int = 1
    centred: bool = False
    evidence: str = ""
    undecided: bool = False

    @property
    def split(self) -> Split:
        """The split into these vectors."""
        return Split(self.granularity, self.axis, self.group_size)


@final
@dataclass(frozen=True, eq=False)
class Decision:
    """The split of one parameter into vectors that rotate, `none` if it has none, and why.

    `group` is the number of its parameter group over all optimizers (`Optimizers`), -1 without an optimizer.
    """

    name: str
    parameter: nn.Parameter
    split: Split
    reason: str
    group: int = -1
    is_embedding: bool = False

    @property
    def turns(self) -> bool:
        """Whether the parameter has vectors that rotate."""
        return self.split.granularity != "none"


def select(
    model: nn.Module | None,
    optimizer: AnyOptimizer = None,
    *,
    probe: Mapping[str, Invariance] | None = None,
    frozen: bool = False,
    embeddings: bool = False,
) -> list[Decision]:
    """Return the weights whose vectors rotate, by the rules of `decide`, in the model's order.

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
    """Return the decision for every parameter of the model that an optimizer trains, in the model's order.

    The first rule that applies counts:

    1. An optimizer of ours that rotates (`turns_by_group`) splits by the group's `granularity`, `axis` and
    `group_size`. By default it rotates every tensor of two or more dimensions along dim 0, also embeddings. 2. Muon
    rotates each matrix as a whole (`matrix_split`). 3. A split in the group that is not the default. `param_groups`
    writes it. 4. The vectors that `probe`, the result of `gyro.probe`, has found. 5. The default split, if it was
    written into the group and is not the optimizer's own default. 6. The type of the layer (`layer_split`).

    Without an optimizer the probe and the type decide. Without a model the groups do, and tensors of two or more
    dimensions rotate along dim 0. Vectors of one entry never rotate, nor do complex weights in an optimizer.

    >>> import torch
    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    >>> adamw = torch.optim.AdamW(model.parameters())
    >>> [(decision.name, decision.split.granularity) for decision in decide(model, adamw)]
    [('0.weight', 'none'), ('1.weight', 'neuron'), ('1.bias', 'none')]
    """
    # A weight that is not invariant still rotates. The other rules then decide its split.
    invariant = {name: invariance for name, invariance in (probe or {}).items() if invariance.granularity != "none"}
    if optimizer is None:
        if model is None:
            raise ValueError("select() needs a model or an optimizer: pass at least one")
        return [_by_model(known, invariant) for known in model_parameters(model)]
    groups = Optimizers.of(optimizer).groups()
    if model is None:
        return [_by_group(default, groups[default.group], measured=False) for default in _bare(groups)]
    numbers = {p: number for number, group in enumerate(groups) for p in group.options["params"]}
    trained = [known for known in model_parameters(model) if known.parameter in numbers]
    defaults = [replace(_by_model(known, invariant), group=numbers[known.parameter]) for known in trained]
    return [_by_group(default, groups[default.group], measured=default.name in invariant) for default in defaults]


def with_tokens(decision: Decision, group: Mapping[str, Any]) -> Decision:
    """Return the decision with one vector per token if it is for an embedding that the group decays.

    No optimizer rotates an embedding by default, because the batch decides which of its rows have a gradient. With
    weight decay its rows still settle, and plan, tracker and autopsy include it.
    """
    decays = float(group.get("weight_decay") or 0.0) > 0
    if decision.turns or not decision.is_embedding or not decays:
        return decision
    return replace(decision, split=ROWS, reason="embedding")


def turned_by_default(model: nn.Module, optimizer: AnyOptimizer) -> list[Decision]:
    """Return what an optimizer of bare tensors rotates against the type of the layer, as decided by type.

    Examples are an embedding, or a Conv1D along its inputs. Groups with names were sorted or chosen on purpose.
    """
    groups = Optimizers.of(optimizer).groups()
    by_type = {known.parameter: _by_model(known, {}) for known in model_parameters(model)}
    turned = []
    for decision in select(model, optimizer):
        group, owner = groups[decision.group]
        default = by_type[decision.parameter]
        is_bare = turns_by_group(owner) and "param_names" not in group and Split.of(group) == Split()
        if is_bare and default.split != decision.split:
            turned.append(replace(default, group=decision.group))
    return turned


def turns_by_group(optimizer: Optimizer) -> bool:
    """Return whether the optimizer splits and rotates each tensor by the options of its parameter group."""
    return bool(getattr(optimizer, "turns_by_group", False))


def matrix_split(shape: Sequence[int], group: Mapping[str, Any]) -> Split:
    """Return the split into the matrices that Muon orthogonalises, one vector each.

    Three dimensions are a stack of matrices. Four are a convolution, which is one matrix. `flatten` in dion's groups
    decides between the two, and `num_heads` divides the rows into a matrix per head.

    >>> matrix_split((8, 64, 32), {}).num_vectors((8, 64, 32))
    8
    >>> matrix_split((64, 32), {"num_heads": 4}).num_vectors((64, 32))
    4
    """
    heads = group.get("num_heads") or 1
    if heads > 1 and len(shape) == 2 and shape[0] % heads == 0:
        return Split("group", group_size=shape[0] // heads)
    flatten = group.get("flatten", len(shape) > 3)
    return Split("tensor") if flatten or len(shape) < 3 else Split(axis=tuple(range(len(shape) - 2)))


def _by_model(known: ModelParameter, invariant: Mapping[str, Invariance]) -> Decision:
    by_type = Decision(known.name, known.parameter, known.split, known.origin, is_embedding=known.is_embedding)
    if known.name not in invariant:
        return by_type
    return replace(by_type, split=invariant[known.name].split, reason="the probe")


def _bare(groups: Sequence[OwnedGroup]) -> Iterator[Decision]:
    """Yield every tensor of the optimizers, as if it rotated along dim 0."""
    for number, (group, _) in enumerate(groups):
        # torch writes param_names if an optimizer was made of named_parameters().
        names = group.get("param_names") or [""] * len(group["params"])
        for name, parameter in zip(names, group["params"], strict=True):
            yield Decision(name, parameter, Split(), "two or more dimensions", number)


def _by_group(default: Decision, owned: OwnedGroup, *, measured: bool) -> Decision:
    """Return the decision by the optimizer or by the parameter's group, or else the default."""
    group, optimizer = owned
    split = Split.of(group)
    name = type(optimizer).__name__
    # Rotational(Muon) takes Muon's direction, but rotates vector by vector.
    if turns_by_group(optimizer):
        return turning(replace(default, split=split, reason=f"rotated by {name}"), group)
    decision = default
    # The default in a group may come from the type of the layer (param_groups), so a measurement takes precedence.
    if _is_written(group, optimizer) and (split != Split() or not measured):
        decision = replace(default, split=split, reason="its parameter group")
    whole_by = name if rotates_matrices(optimizer, group) else ""
    return turning(decision, {"flatten": True, **group} if flattens_stacks(optimizer) else group, whole_by=whole_by)


def turning(decision: Decision, group: Mapping[str, Any], whole_by: str = "") -> Decision:
    """Return the decision without vectors that cannot rotate. `whole_by` names an optimizer that rotates matrices."""
    shape = decision.parameter.shape
    if decision.parameter.is_complex() or not decision.split.rotates(shape):
        return replace(decision, split=NO_VECTORS)
    if whole_by:
        return replace(decision, split=matrix_split(shape, group), reason=f"{whole_by} rotates the matrix as a whole")
    return decision


def _is_written(group: Mapping[str, Any], optimizer: Optimizer) -> bool:
    # Our optimizers that do not rotate write the default into every group.
    return "granularity" in group and (Split.of(group) != Split() or "granularity" not in optimizer.defaults)
