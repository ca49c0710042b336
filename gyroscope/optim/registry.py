"""Optimizers by name, for trainers that choose one by a string."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from gyroscope._checks import one_of
from gyroscope.optim.adam_s import AdamS, AdamSRT
from gyroscope.optim.adamw import RotationalAdamW
from gyroscope.optim.k_adam import KAdam
from gyroscope.optim.lion import Lion, RotationalLion
from gyroscope.optim.sgd import RotationalSGD
from gyroscope.optim.sgd_mrt import SGDMRT
from gyroscope.optim.spherical_adam import SphericalAdam

CLASSES: Mapping[str, Callable[..., Optimizer]] = MappingProxyType(
    {
        "rotational-adamw": RotationalAdamW,
        "rotational-sgd": RotationalSGD,
        "rotational-lion": RotationalLion,
        "lion": Lion,
        "adam-s": AdamS,
        "adam-srt": AdamSRT,
        "sgd-mrt": SGDMRT,
        "spherical-adam": SphericalAdam,
        "k-adam": KAdam,
    }
)


def names() -> list[str]:
    """What `create` knows.

    >>> names()[:2]
    ['rotational-adamw', 'rotational-sgd']
    """
    return list(CLASSES)


def create(name: str, model: nn.Module | ParamsT, **options: Any) -> Optimizer:
    """The optimizer of this name, with the options of its class: of a model, sorted into what turns and what does not.

    Parameter groups, as `gyro.param_groups` makes them with overrides, are taken in place of the model.

    >>> optimizer = create("rotational-adamw", nn.Linear(8, 4), lr=1e-3, weight_decay=0.1)
    >>> [(group["param_names"], group["granularity"]) for group in optimizer.param_groups]
    [(['weight'], 'neuron'), (['bias'], 'none')]
    """
    return CLASSES[one_of("optimizer", name, CLASSES)](model, **options)
