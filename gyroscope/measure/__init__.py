"""Steps to samples: how fast every weight vector rotates, and what theory predicts."""

from gyroscope.measure.quantities import QUANTITIES
from gyroscope.measure.tracker import Tracker

__all__ = ["QUANTITIES", "Tracker"]
