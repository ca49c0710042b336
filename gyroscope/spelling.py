"""The error for an unknown name in a user's input, with the nearest known names. It imports no NumPy."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


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


def did_you_mean(name: str, options: Iterable[str], *, limit: int = 1, cutoff: float = 0.6, listed: int = 30) -> str:
    """Return the end of an error: the options nearest to `name`, or the first `listed` ones if none is near.

    >>> did_you_mean("x", ("constant", "cosine"))
    'choose one of constant, cosine'
    """
    known = list(options)

    def distance(option: str) -> tuple[int, ...]:
        # By difflib's ratio the shorter of two options that are one letter away is nearer: adam for adamv, not adamw.
        matched = sum(block.size for block in SequenceMatcher(None, option, name).get_matching_blocks())
        return max(len(name), len(option)) - matched, -matched, abs(len(name) - len(option)), known.index(option)

    if close := sorted(get_close_matches(name, known, n=max(len(known), 1), cutoff=cutoff), key=distance):
        return f"did you mean {' or '.join(map(repr, close[:limit]))}?"
    return f"choose one of {', '.join(known[:listed])}{' …' * (len(known) > listed)}"
