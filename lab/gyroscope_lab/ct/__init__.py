"""Continuous-Time Analysis of Adaptive Optimization and Normalization: Adam's stable region and its flow."""

from gyroscope_lab.ct._annealing import annealed_lr, annealing
from gyroscope_lab.ct._flow import FlowState, flow
from gyroscope_lab.ct._root_betas import root_betas
from gyroscope_lab.ct._sphere_flow import direction_flow, norm_equation, norm_identity

__all__ = [
    "FlowState",
    "annealed_lr",
    "annealing",
    "direction_flow",
    "flow",
    "norm_equation",
    "norm_identity",
    "root_betas",
]
