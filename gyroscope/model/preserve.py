"""Try things on a model and leave it, and everything random, exactly as it was."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """On the way out parameters, buffers, gradients, modes and random states are bit for bit as before."""
    kept = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    grads = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    state = random_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
            for p, grad, values in grads:
                p.grad = grad
                if grad is not None and values is not None:
                    grad.copy_(values)
        for module, training in modes:
            module.training = training
        restore_random_state(state)


def random_state() -> tuple[Any, ...]:
    """The states of torch's generators on every device, NumPy's and Python's."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), devices, np.random.get_state(), random.getstate()  # noqa: NPY002  # the global one


def restore_random_state(state: tuple[Any, ...]) -> None:
    """Go back to a state taken by `random_state`."""
    cpu, devices, numpy_state, python_state = state
    torch.set_rng_state(cpu)
    if devices:
        torch.cuda.set_rng_state_all(devices)
    np.random.set_state(numpy_state)  # noqa: NPY002
    random.setstate(python_state)
