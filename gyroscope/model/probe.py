"""Which parameters are scale-invariant, and at which granularity: found by trying, not by the names of layers."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from gyroscope.geometry import Granularity, Split
from gyroscope.model.parameters import Entry, entries
from gyroscope.model.preserve import random_state, restore_random_state, untouched

Loss = Callable[[nn.Module], Tensor]

Gradients = list[dict[nn.Parameter, Tensor]]
"""Batch by batch, the gradient of each parameter that has one."""

SUSPECT = 0.1
"""|cos∠(w, g)| in some split below which a weight may be scale-invariant: a normalisation's eps can show so much."""
ENLARGED = 16.0
"""Factor by which suspects, with their biases, are enlarged for the proof. An invariant weight's function stays as it
is, with a normalisation's eps 256 times less visible; anything else shows what it is."""
COSINE = 1e-3
"""|cos∠(w, g)| of an enlarged weight below which it is scale-invariant: rounding gives 1e-5, a random vector of a
thousand entries 3e-2."""
LOSS_CHANGE = 1e-3
"""Relative change of the loss that an invariant weight, enlarged, may show when its vectors are scaled by ½ to 2."""


@final
@dataclass(frozen=True)
class Invariance:
    """What the loss does not notice about a parameter: the scale, and if `centred` the mean, of these vectors."""

    granularity: Granularity
    axis: int = 0
    group_size: int = 1
    centred: bool = False
    evidence: str = ""

    @property
    def split(self) -> Split:
        """How the parameter splits into those vectors."""
        return Split(self.granularity, self.axis, self.group_size)


@final
class Probe(dict[str, Invariance]):
    """Parameter name to Invariance; prints as a table, and goes into `param_groups(…, probe=…)`."""

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False, header_style="")
        for column in ("parameter", "invariant per", "axis", "group size", "mean too", "because"):
            table.add_column(column, overflow="fold")
        for name, found in self.items():
            none = found.granularity == "none"
            where = (
                ["–", "–", "–"] if none else [str(found.axis), str(found.group_size), "yes" if found.centred else "no"]
            )
            table.add_row(name, found.granularity, *where, found.evidence)
        text = io.StringIO()
        Console(file=text, width=140).print(table)
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
    if not isinstance(batches, int) or batches < 1:
        raise ValueError(f"batches={batches!r} must be a whole number, 1 or above: how many fresh batches to try")
    known = entries(model)
    weights = [entry for entry in known if entry.parameter.requires_grad and entry.parameter.dim() >= 2]
    with untouched(model):
        biases = _biases(weights, known)
        with torch.no_grad():
            # Near 0, where most start, a bias hides that it stands before a normalisation.
            for bias in biases.values():
                bias.parameter.add_(torch.randn_like(bias.parameter), alpha=0.3)
        grads = _gradients(model, loss, known, batches)
        suspects = [entry for entry in weights if _is_suspect(entry, grads)]
        reasons = {entry.name: _why_not(entry, grads, biases.get(entry.name)) for entry in weights}
        with torch.no_grad():
            for entry in suspects + [biases[entry.name] for entry in suspects if entry.name in biases]:
                entry.parameter.mul_(ENLARGED)
        enlarged = _gradients(model, loss, known, batches) if suspects else []
        found = {entry.name: _finest(entry, enlarged) for entry in suspects}
        proven = _confirmed(model, loss, suspects, {name: split for name, split in found.items() if split is not None})
    return Probe({name: proven.get(name, Invariance("none", evidence=reason)) for name, reason in reasons.items()})


def _biases(weights: list[Entry], known: list[Entry]) -> dict[str, Entry]:
    """The bias beside each weight, by the weight's name."""
    by_name = {entry.name: entry for entry in known}
    beside = {
        entry.name: f"{entry.name.partition('.parametrizations')[0].removesuffix('.weight')}.bias" for entry in weights
    }
    return {name: by_name[bias] for name, bias in beside.items() if bias in by_name}


def _gradients(model: nn.Module, loss: Loss, known: list[Entry], batches: int) -> Gradients:
    """The gradient of every parameter that has one, batch by batch, without touching `.grad`."""
    trained = [entry.parameter for entry in known if entry.parameter.requires_grad]
    found = []
    for _ in range(batches):
        with torch.enable_grad():
            value = loss(model)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
                raise ValueError(
                    f"loss(model) gave {value!r}; it must be a scalar tensor that depends on the parameters"
                )
            grads = torch.autograd.grad(value.reshape(()), trained, allow_unused=True)
        if not torch.isfinite(value):
            raise ValueError(f"loss(model) gave {value.item()}: probe a model whose loss is finite")
        found.append({p: grad for p, grad in zip(trained, grads, strict=True) if grad is not None})
    return found


def _is_suspect(entry: Entry, grads: Gradients) -> bool:
    w, seen = entry.parameter.detach(), [grad[entry.parameter] for grad in grads if entry.parameter in grad]
    if not bool(w.any()) or not any(bool(grad.any()) for grad in seen):
        return False
    return any(max(_largest_cosine(split, w, grad) for grad in seen) < SUSPECT for split in _candidates(w))


def _finest(entry: Entry, grads: Gradients) -> Invariance | None:
    """The finest split whose vectors are orthogonal to their gradients on every batch."""
    w, seen = entry.parameter.detach(), [grad[entry.parameter] for grad in grads if entry.parameter in grad]
    for split in _candidates(w):
        cosine = max(_largest_cosine(split, w, grad) for grad in seen)
        if cosine < COSINE:
            centred = split.granularity == "neuron" and all(_ignores_mean(split, grad) for grad in seen)
            evidence = f"|cos(w, g)| ≤ {cosine:.0e} in {split.num_vectors(w.shape)} vectors, loss unmoved by rescaling"
            return Invariance(split.granularity, split.axis, split.group_size, centred, evidence)
    return None


def _candidates(w: Tensor) -> Iterator[Split]:
    """Finest first: neurons along the first two dimensions, groups of them from small to large, the whole tensor."""
    axes = [axis for axis in (0, 1) if Split("neuron", axis).fan_in(w.shape) > 1]
    yield from (Split("neuron", axis) for axis in axes if w.shape[axis] > 1)
    for axis in axes:
        size = w.shape[axis]
        yield from (Split("group", axis, part) for part in range(2, size // 2 + 1) if size % part == 0)
    yield Split("tensor")


def _largest_cosine(split: Split, w: Tensor, grad: Tensor) -> float:
    """The largest |cos∠(w, g)| among vectors that have a gradient worth the name."""
    norms = split.norm(w) * split.norm(grad)
    alive = norms > 1e-6 * norms.max()
    return float((split.dot(w, grad).abs() / norms.clamp_min(1e-45))[alive].max())


def _ignores_mean(split: Split, grad: Tensor) -> bool:
    """Whether the gradient has no component along (1, …, 1)."""
    size = split.fan_in(grad.shape) ** 0.5
    norms = split.norm(grad)
    alive = norms > 1e-6 * norms.max()
    return bool(((split.sum(grad).abs() / (size * norms.clamp_min(1e-45)))[alive] < COSINE).all())


def _why_not(entry: Entry, grads: Gradients, bias: Entry | None) -> str:
    """What keeps a weight from being invariant, if it is not: most often a bias before the normalisation."""
    if not any(entry.parameter in grad and bool(grad[entry.parameter].any()) for grad in grads):
        return "no gradient reaches it"
    if not bool(entry.parameter.any()):
        return "it is zero: a scale says nothing about it"
    if bias is not None:
        pairs = [(grad.get(entry.parameter), grad.get(bias.parameter)) for grad in grads]
        if all(a is not None and b is not None and _cancel(entry, a, bias, b) for a, b in pairs):
            return f"only together with {bias.name}: a bias before the normalisation; bias=False would do"
    return "the loss depends on its scale, however it is split"


def _cancel(entry: Entry, grad: Tensor, bias: Entry, bias_grad: Tensor) -> bool:
    total = (entry.parameter * grad).sum() + (bias.parameter * bias_grad).sum()
    return bool(total.abs() < 10 * COSINE * entry.parameter.norm() * grad.norm())


def _confirmed(
    model: nn.Module, loss: Loss, suspects: list[Entry], found: dict[str, Invariance]
) -> dict[str, Invariance]:
    """What survives rescaling: all at once if the loss stays, else one by one."""
    invariant = [entry for entry in suspects if entry.name in found]
    if not invariant or _change(model, loss, invariant, found) < LOSS_CHANGE:
        return found
    return {e.name: found[e.name] for e in invariant if _change(model, loss, [e], found) < LOSS_CHANGE}


@torch.no_grad()
def _change(model: nn.Module, loss: Loss, scaled: list[Entry], found: dict[str, Invariance]) -> float:
    """Relative change of the loss on one batch when vectors are scaled, each by its own factor of ½ to 2, none near 1.

    The batch is the same where drawing it again from the same random state gives it again; where it comes from an
    iterator, the spread over batches is what a change must exceed.
    """
    with untouched(model):
        state = random_state()
        before = float(loss(model))
        restore_random_state(state)
        again = float(loss(model))
        for entry in scaled:
            split, w = found[entry.name].split, entry.parameter
            draws = torch.rand(2, split.num_vectors(w.shape), generator=torch.Generator().manual_seed(0))
            factors = torch.exp2(torch.where(draws[0] < 0.5, -1, 1) * (0.5 + draws[1] / 2)).to(w)
            mean = split.broadcast(split.mean(w), w.shape).to(w.dtype) if found[entry.name].centred else 0.0
            w.mul_(split.broadcast(factors, w.shape)).add_(mean)  # a mean that the loss ignores may move as well
        restore_random_state(state)
        after = float(loss(model))
    return max(abs(after - before) - 3 * abs(again - before), 0.0) / max(abs(before), 1e-12)
