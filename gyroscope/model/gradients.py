"""Gradients of a model on fresh batches, and their cosines with the weights. The model is left exactly as it was."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gyroscope.geometry import Split, gathered
from gyroscope.model.selection import Decision

# loss(model): a scalar, on a fresh batch at each call.
Loss = Callable[[nn.Module], Tensor]

# The gradient on one batch of each parameter that has one.
Gradients = dict[nn.Parameter, Tensor]


# A gradient below this share of the layer's largest counts as 0.
ALIVE = 1e-6


class NonFiniteLossError(ValueError):
    """A loss that is infinite or not a number."""


def gradients(model: nn.Module, loss: Loss, parameters: Sequence[nn.Parameter]) -> Gradients:
    """Return the gradients on one batch, without writing `.grad`. Unused parameters have none."""
    with torch.enable_grad():
        value = loss(model)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(f"loss(model) gave {value!r}. It must be a scalar tensor that depends on the parameters")
        # Not backward(), because a training loop may be accumulating in .grad.
        grads = torch.autograd.grad(value.reshape(()), parameters, allow_unused=True)
    if not torch.isfinite(value):
        raise NonFiniteLossError(f"loss(model) gave {value.item()}: pass a model whose loss is finite")
    return {p: grad for p, grad in zip(parameters, grads, strict=True) if grad is not None}


def unit_grad_norms(model: nn.Module, loss: Loss, weights: Sequence[Decision], batches: int) -> dict[str, Tensor]:
    """Return the RMS over batches of ‖g‖·‖w‖ for each vector of these weights, 0 without a gradient.

    This is the gradient norm that a scale-invariant vector would have at unit norm. The equilibria of SGD and of Adam
    with L2 depend on it (RE Table 1). The model and random states are left as they were.
    """
    norms = {weight.name: gathered(weight.split.norm(weight.parameter.detach())).double() for weight in weights}
    squares = {name: torch.zeros_like(norm) for name, norm in norms.items()}
    with preserved(model):
        for _ in range(batches):
            grads = gradients(model, loss, [weight.parameter for weight in weights])
            for weight in weights:
                if weight.parameter in grads:
                    grad_norm = gathered(weight.split.norm(grads[weight.parameter])).double()
                    squares[weight.name] += (grad_norm * norms[weight.name]).square() / batches
    return {name: square.sqrt() for name, square in squares.items()}


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers, gradients, modes and random states bit for bit at the end."""
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    grads = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    state = random_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in tensors:
                tensor.copy_(before)
            # The same gradient tensors and not copies, because an optimizer or a hook may refer to them.
            for p, grad, values in grads:
                p.grad = grad
                if grad is not None and values is not None:
                    grad.copy_(values)
        for module, training in modes:
            module.training = training
        restore_random_state(state)


def random_state() -> tuple[Any, ...]:
    """Return the states of torch's generators on every device, NumPy's and Python's."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    # A user's loss may draw its batch from NumPy's global generator.
    return torch.get_rng_state(), devices, np.random.get_state(), random.getstate()  # noqa: NPY002


def restore_random_state(state: tuple[Any, ...]) -> None:
    """Restore a state that `random_state` returned."""
    cpu, devices, numpy_state, python_state = state
    torch.set_rng_state(cpu)
    if devices:
        torch.cuda.set_rng_state_all(devices)
    np.random.set_state(numpy_state)  # noqa: NPY002
    random.setstate(python_state)


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
            # Adding up the sums of neurons, instead of computing them again, saves minutes for a transformer.
            if size % part == 0:
                per_group = per_neuron.reshape(*per_neuron.shape[:-1], -1, part).sum(-1)
                yield Split("group", split.axis, part), _largest_cosine(per_group)
    yield Split("tensor"), _largest_cosine(next(iter(sums.values())).sum(-1, keepdim=True))


def _sums(split: Split, w: Tensor, grads: Sequence[Tensor]) -> Tensor:
    """Return ⟨w, g⟩, ‖w‖² and ‖g‖² of each vector: (3, gradients, vectors)."""
    length2 = split.dot(w, w)
    rows = [(split.dot(w, grad), length2, split.dot(grad, grad)) for grad in grads]
    # In float64, because a cosine near 0 is a small difference of sums.
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
