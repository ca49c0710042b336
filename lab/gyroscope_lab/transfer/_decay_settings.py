"""Settings for a run of another length: a grid of weight decays, and the rules on the grid or between its points."""

from gyroscope.theory.transfer_rules import RULES

# Ratio of lengths, and factors of learning rate and weight decay.
LengthSetting = tuple[float, float, float]
# The rules whose settings are on the grid, and the rules that need a separate training.
ON_GRID = ("copy", "tau")
BESIDE_GRID = ("power-lines", "completed", "horizon")
# Lengths that are tried.
RATIOS = (0.25, 1.0, 4.0)
# Factor between two weight decays of the grid.
GRID_STEP = 4.0


def length_setting(name: str, ratio: float) -> LengthSetting:
    """Return the settings of a rule.

    >>> length_setting("tau", 4.0), length_setting("completed", 4.0)
    ((4.0, 1.0, 0.25), (4.0, 0.5, 0.5))
    """
    rule = next(each for each in RULES if each.name == name)
    lr_powers, decay_powers = rule.powers(silent=())
    return (ratio, ratio ** lr_powers["tokens"], ratio ** decay_powers["tokens"])


def rules_of_length(ratio: float) -> tuple[str, ...]:
    """Return the rules that give different settings at a length. At the tuned length all rules equal copy."""
    return ("copy",) if ratio == 1 else (*ON_GRID, *BESIDE_GRID)


def decay_factors(ratio: float) -> tuple[float, ...]:
    """Return the factors of the tuned weight decay that are tried at a length.

    >>> decay_factors(4.0), decay_factors(1.0)
    ((0.0625, 0.25, 1.0, 4.0), (0.25, 1.0, 4.0))
    """
    rules = {length_setting(name, ratio)[2] for name in ON_GRID}
    return tuple(sorted({*rules, min(rules) / GRID_STEP, max(rules) * GRID_STEP}))


def length_parts(ratio: float) -> tuple[LengthSetting, ...]:
    """Return the grid with the tuned learning rate, then the rules that are not on it."""
    grid = [(ratio, 1.0, factor) for factor in decay_factors(ratio)]
    return (*grid, *(length_setting(name, ratio) for name in rules_of_length(ratio) if name in BESIDE_GRID))
