"""Seeds of a run: those that are judged, and those that only choose between parts."""

from typing import Any

# Far above all seeds that are judged.
FIRST_CHOOSING_SEED = 100_000


def judged_seeds(config: Any, first_seed: int = 0) -> range:
    """Return the seeds by which claims are judged."""
    return range(first_seed, first_seed + config.seeds)


def choosing_seeds(config: Any, first_seed: int = 0) -> range:
    """Return the seeds that choose. They depend on the first seed, so that a repeated run chooses again."""
    first = FIRST_CHOOSING_SEED + first_seed
    return range(first, first + getattr(config, "choosing_seeds", 0))
