"""Which record belongs to an optimizer, to a name, or to what a group calls its algorithm."""

from gyroscope.optimizers.group_rules import REMEDY
from gyroscope.optimizers.spec import OptimizerSpec
from gyroscope.optimizers.table import SPECS

_BY_NAME = {spec.name: spec for spec in SPECS}
_BY_ALGORITHM = {algorithm: spec for spec in SPECS for algorithm in spec.algorithms}


def spec_of(optimizer: object) -> OptimizerSpec | None:
    """Return the record of an optimizer's class or of its nearest ancestor, or None if there is none.

    The name decides, so that a class of another library with the usual name and options (Lion, Muon, bitsandbytes'
    AdamW) is known too, and nothing is imported to compare with. Lightning and others subclass torch's optimizers.
    """
    names = (cls.__name__ for cls in type(optimizer).__mro__)
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), None)


def spec_by_name(name: str | None) -> OptimizerSpec | None:
    """Return the record of the class with exactly this name, or None.

    >>> spec_by_name("AdamW").command
    'adamw'
    """
    return None if name is None else _BY_NAME.get(name)


def spec_by_algorithm(algorithm: str) -> OptimizerSpec:
    """Return the record of what a parameter group of a mixed optimizer calls its algorithm."""
    if algorithm not in _BY_ALGORITHM:
        raise ValueError(f"{algorithm!r} is not among the known algorithms ({', '.join(_BY_ALGORITHM)}): {REMEDY}")
    return _BY_ALGORITHM[algorithm]
