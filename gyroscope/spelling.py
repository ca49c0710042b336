"""The error for an unknown name in a user's input, with the nearest known names. It imports no NumPy."""

from collections.abc import Iterable
from difflib import get_close_matches

# Names that an error lists if none is similar to the given one.
MAX_LISTED = 30


def one_of(kind: str, name: str, options: Iterable[str], *, given: object = None) -> str:
    """Return `name` if it is among the options. Otherwise raise with the nearest one, or with all of them.

    `kind` is the kind of thing that is named. `given` is the user's spelling if `name` is another one.

    >>> one_of("schedule", "cosin", ("constant", "cosine"))
    Traceback (most recent call last):
    ValueError: unknown schedule 'cosin': did you mean 'cosine'?
    """
    known = list(options)
    if name in known:
        return name
    raise ValueError(f"unknown {kind} {name if given is None else given!r}: {did_you_mean(name, known)}")


def did_you_mean(name: str, options: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return the end of an error: the options nearest to `name`, or a list of them if none is near.

    >>> did_you_mean("x", ("constant", "cosine"))
    'choose one of constant, cosine'
    """
    known = list(options)
    near = get_close_matches(name, known, n=most, cutoff=cutoff)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"choose one of {', '.join(known[:MAX_LISTED])}{' …' * (len(known) > MAX_LISTED)}"
