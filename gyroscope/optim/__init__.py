"""Gradients to steps: optimizers that control how fast each weight vector turns."""

from gyroscope.optim.adamw import RotationalAdamW
from gyroscope.optim.lion import Lion, RotationalLion
from gyroscope.optim.rotational import Rotational
from gyroscope.optim.sgd import RotationalSGD

__all__ = ["Lion", "Rotational", "RotationalAdamW", "RotationalLion", "RotationalSGD"]
