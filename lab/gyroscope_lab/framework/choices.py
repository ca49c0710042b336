"""How an experiment chooses between its parts: the best learning rate or arm, by seeds on which nothing is judged.

The best of many arms on the judged seeds is partly luck, and its score is too good. So a config with `choosing_seeds`
has additional seeds that only choose (`seeds.py`). Older records lack them. There each seed is judged with the part
that all other seeds chose. Either way no seed is judged with its own choice. A config with a method `judged_parts` also
skips the trainings of parts that were not chosen. Their judged values are NaN.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.experiment import Result


def candidates(config: Any) -> list[int]:
    """Return the positions of the parts to choose from: those of `candidates`, or all."""
    parts = list(config.parts) if hasattr(config, "parts") else []
    return [parts.index(part) for part in getattr(config, "candidates", parts)]


def judged_parts(config: Any, choosing: Mapping[str, Array]) -> list[int]:
    """Return the positions of the parts that judged seeds measure: those that a config asks for, or all."""
    parts = list(getattr(config, "parts", [None]))
    if not choosing or not hasattr(config, "judged_parts"):
        return list(range(len(parts)))
    return sorted({parts.index(part) for part in config.judged_parts(choosing)})


def best_part(config: Any, choosing: Mapping[str, Array], quantity: str, parts: Sequence[Any]) -> Any:
    """Return the part with the best mean over the choosing seeds. The lowest loss is the best.

    >>> from types import SimpleNamespace
    >>> best_part(SimpleNamespace(parts=["a", "b"]), {"loss": np.array([[0.5, 0.4]])}, "loss", ["a", "b"])
    'b'
    """
    places = [list(config.parts).index(part) for part in parts]
    return parts[(_sign(quantity) * choosing[quantity][:, places]).mean(0).argmax()]


def _sign(quantity: str) -> int:
    return -1 if quantity.endswith("loss") else 1


def choose(result: Result[Any], quantity: str, parts: Sequence[Any]) -> list[Any]:
    """Return the part with the best mean of a quantity, one for each judged seed. The lowest loss is the best.

    >>> from types import SimpleNamespace
    >>> scores = {"accuracy": np.array([[0.1, 0.9], [0.3, 0.2]])}
    >>> chosen_by = {"accuracy": np.array([[0.5, 0.4]])}
    >>> choose(Result(SimpleNamespace(parts=["a", "b"]), scores, choosing=chosen_by), "accuracy", ["a", "b"])
    ['a', 'a']
    >>> choose(Result(SimpleNamespace(parts=["a", "b"]), scores), "accuracy", ["a", "b"])  # by the other seed
    ['a', 'b']
    """
    seeds = len(result[quantity])
    if result.choosing:
        return [best_part(result.config, result.choosing, quantity, parts)] * seeds
    places = [list(result.config.parts).index(part) for part in parts]
    judged = _sign(quantity) * result[quantity][:, places]
    # A single seed has no others that could choose.
    means = judged if seeds == 1 else (judged.sum(0) - judged) / (seeds - 1)
    return [parts[best] for best in means.argmax(1)]


def of_chosen(result: Result[Any], quantity: str, chosen: Sequence[Any]) -> Array:
    """Return the measurements of the chosen part of each seed, (seeds, …)."""
    places = [list(result.config.parts).index(part) for part in chosen]
    return np.asarray(result[quantity][np.arange(len(places)), places])


def scores_at_best(result: Result[Any], quantity: str, parts: Sequence[Any]) -> Array:
    """Return the quantity of the best part, one for each judged seed."""
    return of_chosen(result, quantity, choose(result, quantity, parts))
