"""Rotational Equilibrium (Kosson et al. 2024): random walks in the simple system of Appendix J."""
