"""Simulations from hyper-parameters to trajectories: the ground truth for tests of the theory."""

from gyroscope_lab.simulate.gradient_models import unit_grad_norm
from gyroscope_lab.simulate.moving_averages import (
    adaptive_normalization,
    continuous_moving_average,
    moving_average,
)
from gyroscope_lab.simulate.random_walk import network, random_gammas, random_walk
from gyroscope_lab.simulate.trajectory import Averages, Trajectory

__all__ = [
    "Averages",
    "Trajectory",
    "adaptive_normalization",
    "continuous_moving_average",
    "moving_average",
    "network",
    "random_gammas",
    "random_walk",
    "unit_grad_norm",
]
