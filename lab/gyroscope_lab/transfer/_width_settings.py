"""Settings for a larger width: a grid of learning rates, and the rules on the grid or beside it."""

from collections.abc import Sequence

# Ratio of widths, and factors of learning rate and weight decay.
WidthSetting = tuple[float, float, float]
# Powers of the ratio of widths in the weight decay, of the rules that divide the learning rate by the ratio.
DECAY_POWERS = {"mup": 0.0, "independent": 1.0, "fan": 0.5}


def setting_of(name: str, ratio: float) -> WidthSetting:
    """Return the settings of a rule.

    >>> setting_of("independent", 4.0), setting_of("copy", 4.0)
    ((4.0, 0.25, 4.0), (4.0, 1.0, 1.0))
    """
    return (ratio, 1.0, 1.0) if name == "copy" else (ratio, 1 / ratio, ratio ** DECAY_POWERS[name])


def grid_parts(ratio: float, lr_factors: Sequence[float]) -> tuple[WidthSetting, ...]:
    """Return the grid with the tuned weight decay, then the rules that change it."""
    grid = [(ratio, factor, 1.0) for factor in lr_factors]
    return (*grid, *(setting_of(name, ratio) for name, power in DECAY_POWERS.items() if power))
