"""How an experiment chooses between its parts: the best learning rate or arm, by seeds on which nothing is judged.

The best of many arms on the judged seeds is partly luck, and its score is too good. So a config with `choosing_seeds`
has more seeds that only choose (`seeds.py`). A record without them was made before there were any:
there each seed is judged with the part that all other seeds chose. Either way no seed is judged with its own choice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.experiment import Result


def candidates(config: Any) -> list[int]:
    """Return the positions of the parts between which is chosen: those of `candidates`, or all."""
    parts = list(config.parts) if hasattr(config, "parts") else []
    return [parts.index(part) for part in getattr(config, "candidates", parts)]


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
    sign = -1 if quantity.endswith("loss") else 1
    places = [list(result.config.parts).index(part) for part in parts]
    judged = sign * result[quantity][:, places]
    seeds = len(judged)
    if result.choosing:
        means = np.tile((sign * result.choosing[quantity][:, places]).mean(0), (seeds, 1))
    elif seeds == 1:  # nobody else can choose
        means = judged
    else:
        means = (judged.sum(0) - judged) / (seeds - 1)
    return [parts[best] for best in means.argmax(1)]


def of_chosen(result: Result[Any], quantity: str, chosen: Sequence[Any]) -> Array:
    """Return what was measured of the chosen part of each seed, (seeds, …)."""
    places = [list(result.config.parts).index(part) for part in chosen]
    return np.asarray(result[quantity][np.arange(len(places)), places])


def scores_at_best(result: Result[Any], quantity: str, parts: Sequence[Any]) -> Array:
    """Return the quantity of the best part, one for each judged seed."""
    return of_chosen(result, quantity, choose(result, quantity, parts))
