"""Weights to measurements: which vectors a model's loss lets turn freely."""

from gyroscope.track.probe import Invariance, Probe, probe

__all__ = ["Invariance", "Probe", "probe"]
