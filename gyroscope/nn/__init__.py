"""Learnable gain and weight standardisation as parametrizations of a layer's weight, and folding them away."""

from gyroscope.nn.fold import fold
from gyroscope.nn.gain import Gain, add_gain
from gyroscope.nn.standardise import Standardise, standardise

__all__ = ["Gain", "Standardise", "add_gain", "fold", "standardise"]
