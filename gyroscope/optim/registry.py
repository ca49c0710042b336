"""Optimizers by name, for trainers that choose one by a string."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from gyroscope.optim._engine.compiled import FALLBACKS as FALLBACKS  # the tracker notes them in a run
from gyroscope.optimizers import COMMANDS
from gyroscope.spelling import one_of

CLASSES: Mapping[str, Callable[..., Optimizer]] = MappingProxyType(
    {command: spec.load() for command, spec in COMMANDS.items() if spec.is_ours}
)


def names() -> list[str]:
    """Return the names that `create` takes.

    >>> names()[:2]
    ['rotational-adamw', 'rotational-sgd']
    """
    return list(CLASSES)


def create(name: str, model: nn.Module | ParamsT, **options: Any) -> Optimizer:
    """Return the optimizer of this name for a model or parameter groups, with the options of its class.

    >>> optimizer = create("rotational-adamw", nn.Linear(8, 4), lr=1e-3, weight_decay=0.1)
    >>> [(group["param_names"], group["granularity"]) for group in optimizer.param_groups]
    [(['weight'], 'neuron'), (['bias'], 'none')]
    """
    return CLASSES[one_of("optimizer", name, CLASSES)](model, **options)
