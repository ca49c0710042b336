"""Hyper-parameters to prediction: floats and NumPy, never torch."""

from gyroscope.theory import convergence, sensitivity, signal, sphere, stability
from gyroscope.theory.forecast import Forecast, forecast
from gyroscope.theory.law import Equilibrium
from gyroscope.theory.match import Match, match
from gyroscope.theory.rules.adafactor import Adafactor
from gyroscope.theory.rules.adamw import AdamW
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.coupled_adam import AdamL2, AdamS, AdamSRT
from gyroscope.theory.rules.fixed_norm import FixedNorm, Hyperball
from gyroscope.theory.rules.k_adam import KAdam
from gyroscope.theory.rules.lion import Lion
from gyroscope.theory.rules.muon import Muon
from gyroscope.theory.rules.nadam import NAdam, NAdamL2
from gyroscope.theory.rules.rule import Rule
from gyroscope.theory.rules.sgdm import SGDM, SGDMRT
from gyroscope.theory.scaling import Transfer, transfer
from gyroscope.theory.schedules import Schedule, constant, cosine, inverse_sqrt, linear, step, wsd
from gyroscope.theory.transfer_rows import Scale
from gyroscope.theory.transfer_rules import TransferRule

__all__ = [
    "SGDM",
    "SGDMRT",
    "Adafactor",
    "AdamL2",
    "AdamS",
    "AdamSRT",
    "AdamW",
    "Equilibrium",
    "FixedNorm",
    "Forecast",
    "Hyperball",
    "KAdam",
    "Lion",
    "Match",
    "Muon",
    "NAdam",
    "NAdamL2",
    "Rule",
    "Scale",
    "Schedule",
    "Transfer",
    "TransferRule",
    "UpdateRule",
    "constant",
    "convergence",
    "cosine",
    "forecast",
    "inverse_sqrt",
    "linear",
    "match",
    "sensitivity",
    "signal",
    "sphere",
    "stability",
    "step",
    "transfer",
    "wsd",
]
