"""The phrase book: numbers and names in sentences, and the sentences and remedies that plans and runs share."""

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.theory import UpdateRule
from gyroscope.theory.convergence import SETTLES

# Layers that a sentence names before it counts the rest.
NAMED = 3

# Remedy where the norm cannot follow a falling learning rate.
FOLLOW_THE_RATE = (
    "End the schedule at a tenth of the peak rather than at 0, or wrap the scheduler in gyro.optim.EquilibriumRescale, "
    "which keeps the norms in equilibrium."
)


def sig(value: float, digits: int = 3) -> str:
    """A number with so many significant digits.

    >>> sig(0.0032444), sig(12345.6), sig(2.0), sig(153.2, 2), sig(float("inf")), sig(float("nan"))
    ('0.00324', '12,300', '2', '150', '∞', '–')
    """
    if not isfinite(value):
        return "–" if value != value else "∞" if value > 0 else "-∞"
    # Beyond 1e15 the digits of a plain number would be those of its rounding error.
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < 1e15 else f"{rounded:.{digits}g}"


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
    shown = {name: value for name, value in rule.settings.items() if value is not False}
    values = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items())
    return f"{rule.name}({', '.join(values)})"


def starts_too_fast(names: Sequence[str], ratios: Sequence[float], worst: str, step: float, happened: bool) -> str:
    """Layers that turn too fast at the start: in a plan, or, where it `happened`, in a run."""
    turns = clause(names, "turned", "turned") if happened else clause(names, "turns", "turn")
    ratio = span(ratios, 2)
    return f"{turns} too fast at the start, {ratio} times the rotation of equilibrium (step {step:,.0f} in {worst})."


def slower_start(
    rule: UpdateRule | None,
    has: int,
    needed: Sequence[int | None],
    needed_at_equilibrium: Sequence[int | None],
    reason: str = "norms begin too small",
) -> str:
    """What slows down a start that is too fast: a warmup if one is enough for every layer, else the initial norms.

    rule                   of the layers, for the call that rescales them
    has                    steps of warmup that the run has
    needed                 warmup that each layer needs; None where no warmup helps
    needed_at_equilibrium  the same if it started at its equilibrium norm
    reason                 why the initial norms are at fault, as a clause
    """
    # A warmup is no remedy where it is long enough already and the start is too fast nevertheless.
    if needed and all(warmup is not None for warmup in needed):
        longest = max(warmup or 0 for warmup in needed)
        if longest > has:
            return f"Use a warmup of about {sig(longest, 2)} steps (now {has:,})."
    left = max((warmup for warmup in needed_at_equilibrium if warmup is not None), default=0)
    warmup = f", and warm up over about {sig(left, 2)} steps (now {has:,})" if left > has else ""
    return f"Start at the equilibrium norm, {to_equilibrium(rule)}{warmup}: {reason}."


def to_equilibrium(rule: UpdateRule | None) -> str:
    """The call that starts every vector at its equilibrium norm."""
    loss = ", loss=…" if rule is not None and "unit_grad_norm" in rule.needs else ""
    return f"gyro.optim.to_equilibrium_(model, optimizer{loss})"


def decays_too_little(names: Sequence[str], totals: Sequence[float], steps: float) -> str:
    """Layers that never settle, with X = Σ a_t of each; 0 where there is no weight decay."""
    if min(totals) == 0:
        return f"{clause(names, 'has', 'have')} no weight decay: norms grow, and the rotation slows, without end."
    return (
        f"{clause(names, 'never settles', 'never settle')}, X = {span(totals)} (below 0.3) in {steps:,.0f} steps: "
        "the initial norm, not lr and weight decay, sets the rotation."
    )


def to_settle(total_decay: float, weight_decay: str) -> str:
    """What lets a layer with this X = Σ a_t settle: a longer run, or a larger weight decay."""
    longer = f"train {sig(SETTLES / total_decay, 2)} times longer" if total_decay > 0 else ""
    return f"To settle, {' or '.join(filter(None, [longer, weight_decay]))}."


def set_weight_decay(needed: float | None, now: float) -> str:
    """The weight decay of `decay_to_settle` as a clause; empty where there is none."""
    return "" if needed is None else f"set weight_decay={needed:g} (now {now:g})"


def decay_to_settle(rule: UpdateRule, lr: Array) -> float | None:
    """The weight decay with which a run with these learning rates settles, Σ a_t = 3.

    None where the decay per step depends on the gradient, or where the run is so short that directions would have
    to be forgotten within 50 steps.

    >>> from gyroscope.theory import AdamW
    >>> decay_to_settle(AdamW(1e-2, 0.0), np.full(1000, 1e-2))
    0.3
    """
    if not rule.has_weight_decay or rule.lr == 0:
        return None
    # a_t follows lr, or its square where the decay is corrected. Two digits: it is advice, not a solution.
    # For a small decay a_t is proportional to it, so that one trial value gives the factor for every rule.
    trial = 1e-6 / rule.lr
    timescale = rule.replace(weight_decay=trial).timescale
    if timescale is None:
        return None
    total = float(np.sum((lr / rule.lr) ** (2 if rule.corrected_decay else 1))) / timescale
    needed = trial * SETTLES / total if total > 0 else np.inf
    return float(f"{needed:.2g}") if needed * rule.lr < limit.LARGEST_DECAY else None


def falls_out(names: Sequence[str], steps: Sequence[float], cause: str, ratios: Sequence[float], verb: str) -> str:
    """Layers whose norm leaves its equilibrium; `cause` ends before the ratio of the norms."""
    return (
        f"{listed(names)} {verb} out of equilibrium at step {step_span(steps)}: {cause} {span(ratios, 2)} times too "
        "large, so the rotation is too slow."
    )


def turns_faster(fastest: str, slowest: str, ratio: float) -> str:
    """The fastest and the slowest of some layers, as the beginning of a sentence."""
    return f"{fastest} turns {sig(ratio, 2)} times as fast as {slowest}"


def balance_layers(rule: UpdateRule | None, keeps_norm: bool) -> str:
    """What makes layers, and the neurons of a layer, turn alike."""
    if keeps_norm:
        return "The optimizer sets these angles itself: look at its imbalance= and at the settings of its groups."
    if rule is not None and rule.adam_betas is not None and not rule.is_decoupled:
        return "Decouple the weight decay: with AdamW the rotation does not depend on the gradient's size."
    twin = rule.rotational_twin if rule is not None else None
    return f"gyro.optim.{twin or 'Rotational(optimizer)'} turns every layer by the same angle."


def unstable_betas(beta1: float, beta2: float, growth_rate: float, grew: str = "") -> str:
    """Adam's betas outside the stable region; `grew` states what was seen of it in a run."""
    can = f"can grow e times every {sig(1 / growth_rate)} steps" if growth_rate > 0 else "can grow without bound"
    return f"Betas ({beta1:g}, {beta2:g}) are outside the stable region: updates {can}{grew}."


def stable_betas(beta1: float) -> str:
    """Betas that are stable, with an example well inside the region.

    >>> stable_betas(0.9)
    'Set beta2 above beta1² = 0.81, for example betas=(0.9, 0.99).'
    """
    # The first usual value above beta1, so that the margin is comfortable.
    beta2 = next(beta2 for beta2 in (0.99, 0.999, 0.9999, (1 + beta1) / 2) if beta2 > beta1)
    return f"Set beta2 above beta1² = {sig(beta1**2)}, for example betas=({beta1:g}, {beta2:g})."
