"""Hyper-parameters to trajectory: the ground truth that the theory is held against."""

from gyroscope.simulate.flow import FlowState, flow
from gyroscope.simulate.gradient_models import unit_grad_norm
from gyroscope.simulate.norm_map import NormPath, sgd_map, sgdm_map
from gyroscope.simulate.random_walk import network, random_gammas, random_walk
from gyroscope.simulate.sphere_flow import direction_flow, norm_equation, norm_identity
from gyroscope.simulate.trajectory import Averages, Trajectory

__all__ = [
    "Averages",
    "FlowState",
    "NormPath",
    "Trajectory",
    "direction_flow",
    "flow",
    "network",
    "norm_equation",
    "norm_identity",
    "random_gammas",
    "random_walk",
    "sgd_map",
    "sgdm_map",
    "unit_grad_norm",
]
