"""Numbers and names as a sentence has them."""

from collections.abc import Iterable, Sequence

from gyroscope.theory import UpdateRule

NAMED = 3
"""Layers that a sentence names before it says how many more."""


def sig(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, plainly written.

    >>> sig(0.0032444), sig(12345.6), sig(2.0), sig(153.2, 2), sig(float("inf"))
    ('0.00324', '12,300', '2', '150', '∞')
    """
    if value == float("inf"):
        return "∞"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < 1e15 else f"{rounded:.{digits}g}"


def span(values: Iterable[float], digits: int = 3) -> str:
    """The smallest and the largest of some numbers; one number where they are written alike.

    >>> span([9.81, 12.04]), span([2.0, 2.0001])
    ('9.81 to 12', '2')
    """
    shown = list(values)
    low, high = sig(min(shown), digits), sig(max(shown), digits)
    return low if low == high else f"{low} to {high}"


def who(names: Sequence[str], does: str, do: str) -> str:
    """Layers, as `listed`, and what they do.

    >>> who(["a"], "turns", "turn"), who(["a", "b", "c", "d", "e"], "turns", "turn")
    ('a turns', 'a, b, c and 2 more turn')
    """
    return f"{listed(names)} {does if len(names) == 1 else do}"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more.

    >>> listed(["a", "b", "c", "d"]), listed(["a", "b", "c", "d", "e"])
    ('a, b, c and d', 'a, b, c and 2 more')
    """
    if len(names) <= NAMED + 1:
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def settings(rule: UpdateRule) -> str:
    """A rule with its settings, numbers rounded.

    >>> from gyroscope.theory import AdamW
    >>> settings(AdamW(lr=0.1 + 0.2, weight_decay=0.1))
    'AdamW(lr=0.3, weight_decay=0.1, betas=(0.9, 0.999))'
    """
    shown = {name: value for name, value in rule.settings.items() if value is not False}
    values = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items())
    return f"{rule.name}({', '.join(values)})"
