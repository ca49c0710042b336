"""Hyper-parameters to prediction: floats and NumPy, never torch."""

from gyroscope.theory import convergence, sensitivity, sphere, stability, transient
from gyroscope.theory.adam_l2 import AdamL2
from gyroscope.theory.adam_s import AdamS
from gyroscope.theory.adam_srt import AdamSRT
from gyroscope.theory.adamw import AdamW
from gyroscope.theory.forecast import Forecast, forecast
from gyroscope.theory.hyperball import Hyperball
from gyroscope.theory.lion import Lion
from gyroscope.theory.match import Match, match
from gyroscope.theory.muon import Muon
from gyroscope.theory.nadam import NAdam
from gyroscope.theory.nadam_l2 import NAdamL2
from gyroscope.theory.rule import Equilibrium, Rule, UpdateRule
from gyroscope.theory.schedules import Schedule, constant, cosine, inverse_sqrt, linear, step, with_warmup
from gyroscope.theory.sgd_mrt import SGDMRT
from gyroscope.theory.sgdm import SGDM

__all__ = [
    "SGDM",
    "SGDMRT",
    "AdamL2",
    "AdamS",
    "AdamSRT",
    "AdamW",
    "Equilibrium",
    "Forecast",
    "Hyperball",
    "Lion",
    "Match",
    "Muon",
    "NAdam",
    "NAdamL2",
    "Rule",
    "Schedule",
    "UpdateRule",
    "constant",
    "convergence",
    "cosine",
    "forecast",
    "inverse_sqrt",
    "linear",
    "match",
    "sensitivity",
    "sphere",
    "stability",
    "step",
    "transient",
    "with_warmup",
]
