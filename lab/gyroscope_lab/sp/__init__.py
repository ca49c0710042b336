"""Spherical Perspective on Learning with Batch Norm (Roburin et al. 2020): optimizer steps on the sphere."""

from gyroscope_lab.sp._effective_step import EffectiveStep, SchemeComparison, compare_schemes, effective_step
from gyroscope_lab.sp._sphere import exponential_map, parallel_transport, rescale, rescale_transport, transport

__all__ = [
    "EffectiveStep",
    "SchemeComparison",
    "compare_schemes",
    "effective_step",
    "exponential_map",
    "parallel_transport",
    "rescale",
    "rescale_transport",
    "transport",
]
