"""Under SGD ‖w‖² follows sqrt(L·lr/(2·wd)) whatever shape L_t = ‖g̃‖² has, if it changes slowly (SMD Figure 4)."""

from gyroscope.lab.smd._gradient_shapes import Config, claims, measure, plot

__all__ = ["COST", "PAPER", "QUICK", "claims", "measure", "plot"]

COST = {"quick": "15 s", "paper": "3 min"}

# Five times the decay of the paper, to settle in a fifth of the steps.
QUICK = Config(momentum=0.0, weight_decay=0.005, start=4.5, steps=12_000, vectors=2, seeds=3)
PAPER = Config(momentum=0.0, weight_decay=0.001, steps=100_000, vectors=4, seeds=5)
