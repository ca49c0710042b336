"""Learnable gain and weight standardisation as parametrizations of a layer's weight, and folding them into it."""

from gyroscope.nn.fold import fold, folded_state_dict
from gyroscope.nn.gain import Gain, add_gain
from gyroscope.nn.standardise import Standardise, standardise

__all__ = ["Gain", "Standardise", "add_gain", "fold", "folded_state_dict", "standardise"]
