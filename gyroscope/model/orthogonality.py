"""Cosines between a weight and its gradients, for every way to split the weight into vectors."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gyroscope.geometry import Split, gathered

# A gradient below this share of the layer's largest counts as none.
ALIVE = 1e-6


def cosines_by_split(own: Split, w: Tensor, grads: Sequence[Tensor]) -> Iterator[tuple[Split, float]]:
    """Yield splits, finest first, with the largest |cos∠(w, g)| of their vectors over all gradients.

    These are neurons along each of the first two dimensions, or those of experts (`own`, the split by type), groups of
    them from small to large, and the whole tensor.
    """
    grads = [grad for grad in grads if bool(grad.any())]
    if not grads:
        return
    shape = w.shape
    neurons = [Split("neuron", axis) for axis in (0, 1)]
    if isinstance(own.axis, tuple):
        neurons.insert(0, own)
    sums = {split: _sums(split, w, grads) for split in neurons if split.fan_in(shape) > 1}
    for split, per_neuron in sums.items():
        if split.num_vectors(shape) > 1:
            yield split, _largest_cosine(per_neuron)
    for split, per_neuron in sums.items():
        size = shape[split.axes(w.dim())[-1]]
        for part in range(2, size // 2 + 1):
            # Adding up the sums of neurons saves minutes for a transformer.
            if size % part == 0:
                per_group = per_neuron.reshape(*per_neuron.shape[:-1], -1, part).sum(-1)
                yield Split("group", split.axis, part), _largest_cosine(per_group)
    yield Split("tensor"), _largest_cosine(next(iter(sums.values())).sum(-1, keepdim=True))


def _sums(split: Split, w: Tensor, grads: Sequence[Tensor]) -> Tensor:
    """Return ⟨w, g⟩, ‖w‖² and ‖g‖² of each vector: (3, gradients, vectors)."""
    length2 = split.dot(w, w)
    rows = [(split.dot(w, grad), length2, split.dot(grad, grad)) for grad in grads]
    # In float64, because a cosine of nearly nothing is a difference of sums.
    return torch.stack([torch.stack([gathered(value).double() for value in row]) for row in rows], dim=1)


def _largest_cosine(sums: Tensor) -> float:
    dots, lengths2, grads2 = sums
    norms = (lengths2 * grads2).sqrt()
    alive = norms > ALIVE * norms.amax(-1, keepdim=True)
    cosines = torch.where(alive, dots.abs() / norms, torch.zeros_like(norms))
    return float(cosines.max())


def ignores_mean(split: Split, grad: Tensor, tolerance: float) -> bool:
    """Return whether the gradient of each vector has no component along (1, …, 1)."""
    norms = gathered(split.norm(grad))
    along = gathered(split.sum(grad)).abs() / split.fan_in(grad.shape) ** 0.5
    return bool((along <= tolerance * norms + ALIVE * norms.max()).all())
