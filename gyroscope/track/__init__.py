"""Weights to measurements: how fast every weight vector turns, and which vectors a model's loss lets turn freely."""

from gyroscope.track.probe import Invariance, Probe, probe
from gyroscope.track.quantities import QUANTITIES
from gyroscope.track.tracker import Tracker

__all__ = ["QUANTITIES", "Invariance", "Probe", "Tracker", "probe"]
