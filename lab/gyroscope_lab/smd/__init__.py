"""Spherical Motion Dynamics (Wan et al. 2020): the norm and rotation of weights under SGD with decay."""

from gyroscope_lab.smd._norm_map import Modes, NormPath, next_norm, sgd_map, sgdm_map, sgdm_modes

__all__ = ["Modes", "NormPath", "next_norm", "sgd_map", "sgdm_map", "sgdm_modes"]
