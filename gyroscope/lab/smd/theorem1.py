"""Under SGD ‖w‖² closes in on sqrt(L·lr/(2·wd)) at a linear rate, down to a noise floor (SMD Theorem 1)."""

from gyroscope.lab.smd._norm_convergence import Config, claims, measure, plot

__all__ = ["COST", "PAPER", "QUICK", "claims", "measure", "plot"]

COST = {"quick": "15 s", "paper": "5 min"}

# A large decay, so that eight lifetimes 1/a are few steps.
QUICK = Config(momentum=0.0, weight_decay=0.01, vectors=100, fan_in=16, seeds=3)
PAPER = Config(momentum=0.0, weight_decay=0.001, vectors=1000, fan_in=16, seeds=5)
