"""Hyper-parameters to trajectory: the ground truth that the theory is held against."""

from gyroscope.simulate.gradient_models import unit_grad_norm
from gyroscope.simulate.random_walk import network, random_gammas, random_walk
from gyroscope.simulate.trajectory import Averages, Trajectory

__all__ = [
    "Averages",
    "Trajectory",
    "network",
    "random_gammas",
    "random_walk",
    "unit_grad_norm",
]
