"""Learnable gain and weight standardisation as parametrizations of a layer's weight, and folding them into it."""

from gyroscope.nn.fold import fold, folded_state_dict
from gyroscope.nn.weights import Gain, Standardise, add_gain, standardise

__all__ = ["Gain", "Standardise", "add_gain", "fold", "folded_state_dict", "standardise"]
