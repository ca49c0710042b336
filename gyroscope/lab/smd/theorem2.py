"""Under SGD with momentum ‖w‖² closes in on w*² too, 1/(1-α) times faster (SMD Theorem 2)."""

from gyroscope.lab.smd._norm_convergence import Config, claims, measure, plot

__all__ = ["COST", "PAPER", "QUICK", "claims", "measure", "plot"]

COST = {"quick": "20 s", "paper": "5 min"}

# A large decay, so that eight lifetimes 1/a are few steps.
QUICK = Config(momentum=0.9, weight_decay=1e-3, vectors=16, fan_in=1024, seeds=3)
PAPER = Config(momentum=0.9, weight_decay=2.5e-4, vectors=64, fan_in=2048, seeds=5)
