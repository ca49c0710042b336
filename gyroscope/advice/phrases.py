"""The phrase book: numbers and names in sentences, and the sentences that plans and runs share."""

from collections.abc import Iterable, Sequence
from math import isfinite

from gyroscope.advice.thresholds import MAX_EXACT_NUMBER
from gyroscope.theory import UpdateRule

RECURSION = "mean-field recursion of E‖w‖², E⟨w,m⟩, E‖m‖² under the schedule (`gyroscope.theory.forecast`)"
TOTAL_DECAY = "X = Σ a_t: what was there at the start shrinks by e^-X"
# Layers that a sentence names before it counts the rest.
NAMED = 3


def sig(value: float, digits: int = 3) -> str:
    """A number with so many significant digits.

    >>> sig(0.0032444), sig(12345.6), sig(2.0), sig(153.2, 2), sig(float("inf")), sig(float("nan"))
    ('0.00324', '12,300', '2', '150', '∞', '–')
    """
    if not isfinite(value):
        return "–" if value != value else "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < MAX_EXACT_NUMBER else f"{rounded:.{digits}g}"


def span(values: Iterable[float], digits: int = 3) -> str:
    """The smallest and the largest of some numbers; one number where both are written alike.

    >>> span([9.81, 12.04]), span([2.0, 2.0001])
    ('9.81 to 12', '2')
    """
    numbers = list(values)
    low = sig(min(numbers), digits)
    high = sig(max(numbers), digits)
    return low if low == high else f"{low} to {high}"


def step_span(steps: Iterable[float]) -> str:
    """The first and the last of some steps, or counts of steps, to the last digit.

    >>> step_span([1272, 1280]), step_span([7])
    ('1,272 to 1,280', '7')
    """
    numbers = list(steps)
    first = f"{min(numbers):,.0f}"
    last = f"{max(numbers):,.0f}"
    return first if first == last else f"{first} to {last}"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more.

    >>> listed(["a", "b", "c", "d"]), listed(["a", "b", "c", "d", "e"])
    ('a, b, c and d', 'a, b, c and 2 more')
    """
    if len(names) <= NAMED + 1:
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def clause(names: Sequence[str], singular: str, plural: str) -> str:
    """Layers, as `listed`, with a verb that agrees.

    >>> clause(["a"], "turns", "turn"), clause(["a", "b", "c", "d", "e"], "turns", "turn")
    ('a turns', 'a, b, c and 2 more turn')
    """
    return f"{listed(names)} {singular if len(names) == 1 else plural}"


def rule_text(rule: UpdateRule) -> str:
    """A rule with its settings, numbers rounded.

    >>> from gyroscope.theory import AdamW
    >>> rule_text(AdamW(lr=0.1 + 0.2, weight_decay=0.1))
    'AdamW(lr=0.3, weight_decay=0.1, betas=(0.9, 0.999))'
    """
    shown = {name: value for name, value in rule.settings.items() if value is not None and value is not False}
    values = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items())
    return f"{rule.name}({', '.join(values)})"


def starts_faster(names: Sequence[str], ratios: Sequence[float], step: float, happened: bool) -> str:
    """Layers whose start is faster than equilibrium, the fastest first: in a plan, or in a run, where it `happened`."""
    turns = clause(names, "turned", "turned") if happened else clause(names, "turns", "turn")
    ratio = span(ratios, 2)
    where = f"step {step:,.0f}" if len(names) == 1 else f"step {step:,.0f} in {names[0]}"
    return f"{turns} {ratio} times as fast at the start as in equilibrium at full rate ({where})."


def no_decay(names: Sequence[str]) -> str:
    """Layers that never forget their start."""
    return f"{clause(names, 'has', 'have')} no weight decay: norms only grow, and the rotation slows down."


def shorter_than_memory(names: Sequence[str], totals: Sequence[float], steps: float, *, so_far: bool = False) -> str:
    """Layers that do not forget their start within the run, with X = Σ a_t of each, above 0."""
    memory = span([steps / total for total in totals], 2)
    subject = "So far the run" if so_far else "The run"
    return (
        f"{subject} is shorter than the memory of {listed(names)}: X = {span(totals, 2)} (below 1), {steps:,.0f} steps "
        f"of a memory of {memory}. Norms stay near their start and set the rotation."
    )


def falls_out(names: Sequence[str], steps: Sequence[float], cause: str, ratios: Sequence[float], verb: str) -> str:
    """Layers whose norm leaves its equilibrium; `cause` ends before the ratio of the norms."""
    return (
        f"{listed(names)} {verb} out of equilibrium at step {step_span(steps)}: {cause} {span(ratios, 2)} times "
        "that of equilibrium, so the rotation is slower."
    )


def turns_faster(fastest: str, slowest: str, ratio: float) -> str:
    """The fastest and the slowest of some layers, as the beginning of a sentence."""
    return f"{fastest} turns {sig(ratio, 2)} times as fast as {slowest}"


def unstable_betas(beta1: float, beta2: float, growth_rate: float, grew: str = "") -> str:
    """Adam's betas outside the stable region; `grew` states what was seen of it in a run."""
    can = f"can grow e times every {sig(1 / growth_rate)} steps" if growth_rate > 0 else "can grow without bound"
    return f"Betas ({beta1:g}, {beta2:g}) are outside the stable region: updates {can}{grew}."
