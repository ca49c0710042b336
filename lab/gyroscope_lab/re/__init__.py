"""Rotational Equilibrium (Kosson et al. 2024): random walks in the simple system of Appendix J."""

from gyroscope_lab.re._relu_pair import ReluPair

__all__ = ["ReluPair"]
