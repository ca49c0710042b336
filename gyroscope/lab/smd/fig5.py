"""Under SGD with momentum ‖w‖² follows the L of the moment too, 1/(1-α) times faster (SMD Figure 5)."""

from gyroscope.lab.smd._gradient_shapes import Config, claims, measure, plot

__all__ = ["COST", "PAPER", "QUICK", "claims", "measure", "plot"]

COST = {"quick": "10 s", "paper": "30 s"}

# Long enough for every plateau to settle, with the decay of the paper at both sizes.
QUICK = Config(momentum=0.9, weight_decay=0.001, steps=6_000, vectors=4, seeds=3)
PAPER = Config(momentum=0.9, weight_decay=0.001, steps=40_000, vectors=8, seeds=5)
