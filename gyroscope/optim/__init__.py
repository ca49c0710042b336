"""Gradients to steps: optimizers that control how fast each weight vector rotates."""

from gyroscope.model.groups import param_groups
from gyroscope.optim._engine.loading import regrouped
from gyroscope.optim.adam_s import AdamS, AdamSRT
from gyroscope.optim.adamw import RotationalAdamW
from gyroscope.optim.equilibrium_init import to_equilibrium_
from gyroscope.optim.follow_base import follow
from gyroscope.optim.k_adam import KAdam
from gyroscope.optim.lion import Lion, RotationalLion
from gyroscope.optim.registry import create, names
from gyroscope.optim.rotational import Rotational
from gyroscope.optim.schedulers import CorrectedDecay, EquilibriumRescale
from gyroscope.optim.sgd import RotationalSGD
from gyroscope.optim.sgd_mrt import SGDMRT
from gyroscope.optim.spherical_adam import SphericalAdam
from gyroscope.optim.torch_rules import rule_of

__all__ = [
    "SGDMRT",
    "AdamS",
    "AdamSRT",
    "CorrectedDecay",
    "EquilibriumRescale",
    "KAdam",
    "Lion",
    "Rotational",
    "RotationalAdamW",
    "RotationalLion",
    "RotationalSGD",
    "SphericalAdam",
    "create",
    "follow",
    "names",
    "param_groups",
    "regrouped",
    "rule_of",
    "to_equilibrium_",
]
