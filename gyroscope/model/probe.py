"""Which parameters are scale-invariant, and at which granularity: found by trying, not by the names of layers."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from gyroscope._checks import check_count
from gyroscope.geometry import Split
from gyroscope.model.gradients import Gradients, Loss, gradients, preserved, random_state, restore_random_state
from gyroscope.model.parameters import ModelParameter, model_parameters
from gyroscope.model.selection import Invariance

Batches = list[Gradients]
# Columns of the printed table.
WIDTH = 140

# |cos∠(w, g)| in some split below which a weight may be scale-invariant: a normalisation's eps can show so much.
SUSPECT = 0.1
# Factor by which suspects, with their biases, are enlarged for the proof. An invariant weight's function stays as it
# is, with a normalisation's eps 256 times less visible; anything else shows what it is.
ENLARGED = 16.0
# |cos∠(w, g)| of an enlarged weight below which it is scale-invariant: rounding gives 1e-5, a random vector of a
# thousand entries 3e-2.
COSINE = 1e-3
# Relative change of the loss that an invariant weight, enlarged, may show when its vectors are scaled by ½ to 2.
LOSS_CHANGE = 1e-3


@final
class Probe(dict[str, Invariance]):
    """Parameter name to Invariance; prints as a table, and goes into `param_groups(…, probe=…)`."""

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False, header_style="")
        for column in ("parameter", "invariant per", "axis", "group size", "mean too", "because"):
            table.add_column(column, overflow="fold")
        for name, invariance in self.items():
            where = ["–", "–", "–"]
            if invariance.granularity != "none":
                centred = "yes" if invariance.centred else "no"
                where = [str(invariance.axis), str(invariance.group_size), centred]
            table.add_row(name, invariance.granularity, *where, invariance.evidence)
        text = io.StringIO()
        Console(file=text, width=WIDTH).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def probe(model: nn.Module, loss: Loss, *, batches: int = 4) -> Probe:
    """Find the scale-invariant vectors of every weight of two or more dimensions.

    Where the loss ignores the scale of a vector w, its gradient is orthogonal to it: ⟨w, g⟩ = 0 on every batch. The
    finest split for which that holds is confirmed by rescaling. `loss(model)` gives a scalar on a fresh batch at each
    call. Model, buffers, gradients and random states are left as they were.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    >>> found = probe(model, lambda model: model(torch.randn(64, 8)).square().sum(1).mean())
    >>> {name: invariance.granularity for name, invariance in found.items()}
    {'0.weight': 'neuron', '2.weight': 'none'}
    """
    check_count("batches", batches, at_least=1, meaning="how many fresh batches to try")
    known = model_parameters(model)
    weights = [each for each in known if each.parameter.requires_grad and each.parameter.dim() >= 2]
    trained = [each.parameter for each in known if each.parameter.requires_grad]
    with preserved(model):
        biases = _biases(weights, known)
        with torch.no_grad():
            # Near 0, where most start, a bias hides that it stands before a normalisation.
            for bias in biases.values():
                bias.parameter.add_(torch.randn_like(bias.parameter), alpha=0.3)
        grads = [gradients(model, loss, trained) for _ in range(batches)]
        suspects = [weight for weight in weights if _is_suspect(weight.parameter, grads)]
        reasons = {weight.name: _why_not(weight, grads, biases.get(weight.name)) for weight in weights}
        with torch.no_grad():
            # The bias is part of what a normalisation rescales: enlarged alone, a weight would look sensitive.
            for each in suspects + [biases[weight.name] for weight in suspects if weight.name in biases]:
                each.parameter.mul_(ENLARGED)
        enlarged = [gradients(model, loss, trained) for _ in range(batches)] if suspects else []
        finest = {weight.name: _finest(weight.parameter, enlarged) for weight in suspects}
        candidates = {name: invariance for name, invariance in finest.items() if invariance is not None}
        proven = _confirmed(model, loss, [weight for weight in suspects if weight.name in candidates], candidates)
    return Probe({name: proven.get(name, Invariance("none", evidence=reason)) for name, reason in reasons.items()})


def _biases(weights: Sequence[ModelParameter], known: Sequence[ModelParameter]) -> dict[str, ModelParameter]:
    """The bias beside each weight, by the weight's name."""
    by_name = {each.name: each for each in known}
    layers = {weight.name: weight.name.partition(".parametrizations")[0].removesuffix(".weight") for weight in weights}
    return {name: by_name[f"{layer}.bias"] for name, layer in layers.items() if f"{layer}.bias" in by_name}


def _is_suspect(w: nn.Parameter, batches: Batches) -> bool:
    grads = [batch[w] for batch in batches if w in batch]
    if not bool(w.any()) or not any(bool(grad.any()) for grad in grads):
        return False
    values = w.detach()
    return any(
        max(_largest_cosine(split, values, grad) for grad in grads) < SUSPECT for split in _candidates(values.shape)
    )


def _finest(w: nn.Parameter, batches: Batches) -> Invariance | None:
    """The finest split whose vectors are orthogonal to their gradients on every batch."""
    values = w.detach()
    grads = [batch[w] for batch in batches if w in batch]
    for split in _candidates(values.shape):
        cosine = max(_largest_cosine(split, values, grad) for grad in grads)
        if cosine < COSINE:
            centred = split.granularity == "neuron" and all(_ignores_mean(split, grad) for grad in grads)
            evidence = f"|cos(w, g)| ≤ {cosine:.0e} in {split.num_vectors(w.shape)} vectors, loss unmoved by rescaling"
            return Invariance(split.granularity, split.axis, split.group_size, centred, evidence)
    return None


def _candidates(shape: torch.Size) -> Iterator[Split]:
    """Finest first: neurons along the first two dimensions, groups of them from small to large, the whole tensor."""
    axes = [axis for axis in (0, 1) if Split("neuron", axis).fan_in(shape) > 1]
    yield from (Split("neuron", axis) for axis in axes if shape[axis] > 1)
    for axis in axes:
        size = shape[axis]
        yield from (Split("group", axis, part) for part in range(2, size // 2 + 1) if size % part == 0)
    yield Split("tensor")


def _relative(values: Tensor, norms: Tensor) -> Tensor:
    """|values|/norms of the vectors that have a gradient worth the name: at least 1e-6 of the largest."""
    alive = norms > 1e-6 * norms.max()
    # 1e-45, the smallest float32, keeps 0/0 out of vectors that are left out anyway.
    return (values.abs() / norms.clamp_min(1e-45))[alive]


def _largest_cosine(split: Split, w: Tensor, grad: Tensor) -> float:
    """The largest |cos∠(w, g)| among the vectors."""
    return float(_relative(split.dot(w, grad), split.norm(w) * split.norm(grad)).max())


def _ignores_mean(split: Split, grad: Tensor) -> bool:
    """Whether the gradient has no component along (1, …, 1)."""
    cosines = _relative(split.sum(grad) / split.fan_in(grad.shape) ** 0.5, split.norm(grad))
    return bool((cosines < COSINE).all())


def _why_not(weight: ModelParameter, batches: Batches, bias: ModelParameter | None) -> str:
    """What keeps a weight from being invariant, if it is not: most often a bias before the normalisation."""
    w = weight.parameter
    if not any(w in batch and bool(batch[w].any()) for batch in batches):
        return "no gradient reaches it"
    if not bool(w.any()):
        return "it is zero: a scale says nothing about it"
    if bias is not None and all(_cancel(w, bias.parameter, batch) for batch in batches):
        return f"only together with {bias.name}: a bias before the normalisation; bias=False would do"
    return "the loss depends on its scale, however it is split"


def _cancel(w: nn.Parameter, bias: nn.Parameter, batch: Gradients) -> bool:
    """Whether ⟨w, g⟩ and its like of the bias add up to 0: the loss ignores their common scale."""
    if w not in batch or bias not in batch:
        return False
    total = (w * batch[w]).sum() + (bias * batch[bias]).sum()
    return bool(total.abs() < 10 * COSINE * w.norm() * batch[w].norm())


def _confirmed(
    model: nn.Module, loss: Loss, weights: list[ModelParameter], candidates: Mapping[str, Invariance]
) -> Mapping[str, Invariance]:
    """What survives rescaling: all at once if the loss stays, else one by one."""
    if not weights or _change(model, loss, weights, candidates) < LOSS_CHANGE:
        return candidates
    survivors = [weight for weight in weights if _change(model, loss, [weight], candidates) < LOSS_CHANGE]
    return {weight.name: candidates[weight.name] for weight in survivors}


@torch.no_grad()
def _change(model: nn.Module, loss: Loss, weights: list[ModelParameter], candidates: Mapping[str, Invariance]) -> float:
    """Relative change of the loss on one batch when vectors are scaled, each by its own factor of ½ to 2, none near 1.

    The batch is the same where drawing it again from the same random state gives it again; where it comes from an
    iterator, the spread over batches is what a change must exceed.
    """
    with preserved(model):
        state = random_state()
        before = float(loss(model))
        # The same draws again: what differs now is not due to scale.
        restore_random_state(state)
        again = float(loss(model))
        for weight in weights:
            _rescale_(weight.parameter, candidates[weight.name])
        restore_random_state(state)
        after = float(loss(model))
    return max(abs(after - before) - 3 * abs(again - before), 0.0) / max(abs(before), 1e-12)


def _rescale_(w: nn.Parameter, invariance: Invariance) -> None:
    split = invariance.split
    draws = torch.rand(2, split.num_vectors(w.shape), generator=torch.Generator().manual_seed(0))
    # Factors from 2^-1 to 2^-½ and from 2^½ to 2: none so near 1 that it would prove nothing.
    factors = torch.exp2(torch.where(draws[0] < 0.5, -1, 1) * (0.5 + draws[1] / 2)).to(w)
    mean = split.broadcast(split.mean(w), w.shape).to(w.dtype) if invariance.centred else 0.0
    w.mul_(split.broadcast(factors, w.shape)).add_(mean)  # a mean that the loss ignores may move as well
