"""The same training with another optimizer: hyper-parameters that keep norm, memory or rotation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
import numpy.typing as npt

from gyroscope._types import Array
from gyroscope.theory.law import Weights
from gyroscope.theory.rules.base import MEANING, UpdateRule
from gyroscope.theory.rules.rule import Rule
from gyroscope.theory.schedules import Schedule

# The quantities that two rules can have in common, in the order in which they are kept.
QUANTITIES = {"memory": "timescale", "norm": "norm", "rotation": "angular_update"}
# From a rule to its quantities by name, those that the inputs determine.
Measure: TypeAlias = Callable[[UpdateRule], dict[str, float]]


@final
@dataclass(frozen=True)
class Match:
    """The other rule, what it keeps, and by what factor each quantity changes (None if it is not determined).

    If the schedule's multipliers are raised to `schedule_power`, both rules rotate alike during the run. It is ½ from
    AdamW to Hyperball, whose rotation follows lr while AdamW's follows √lr. `schedule` applies it.
    """

    rule: UpdateRule
    kept: tuple[str, ...]
    ratios: Mapping[str, float | None]
    schedule_power: float = 1.0

    @property
    def differs(self) -> dict[str, float]:
        """The quantities that change by more than a thousandth, with the factor."""
        return {name: ratio for name, ratio in self.ratios.items() if ratio is not None and abs(ratio - 1) > 1e-3}

    def schedule(self, source: Schedule) -> Schedule:
        """Return the schedule for the other rule, given the one of the first rule.

        >>> from gyroscope.theory import AdamW, Hyperball, constant
        >>> hyperball = match(AdamW(1e-3, 0.1), Hyperball)
        >>> [f"{multiplier:.2f}" for multiplier in hyperball.schedule(constant(4, warmup=4))(np.arange(4))]
        ['0.50', '0.71', '0.87', '1.00']
        """
        if self.schedule_power == 1:
            return source
        # The ramp of a warmup is raised with the rest, so the new schedule has no ramp of its own.
        name = f"{source.name}^{self.schedule_power:.3g}"
        return Schedule(name, source.steps, 0, lambda t: source(t) ** self.schedule_power)


def match(
    rule: UpdateRule,
    other: type[UpdateRule],
    *,
    fan_in: npt.ArrayLike | None = None,
    unit_grad_norm: npt.ArrayLike | None = None,
    shape: tuple[int, ...] | None = None,
    **fixed: Any,
) -> Match:
    """Find equivalent hyper-parameters of another rule.

    lr and weight decay are free unless fixed. They keep the memory first, then the norm, then the rotation. With both
    free, norm and memory agree and the rotation differs by sqrt(τ1/τ2) (ours: docs/theory.md, "Equal settings for
    another rule"). Between Muon and a rule for neurons, the norm is that of the whole matrix, so the answer holds for
    matrices of one shape.

    rule      the rule with its settings
    other     the class of the rule to find settings for
    fan_in, unit_grad_norm, shape  as in `UpdateRule.equilibrium`, needed if the norms need different inputs
    fixed     settings of `other` that are given, for example momentum=0.9

    >>> from gyroscope.theory import AdamW, Lion
    >>> m = match(AdamW(1e-3, 0.1), Lion)
    >>> f"lr / {1e-3 / m.rule.lr:.2f}, weight decay × {m.rule.weight_decay / 0.1:.2f}", m.kept
    ('lr / 6.75, weight decay × 6.75', ('memory', 'norm'))
    >>> f"rotation × {m.differs['rotation']:.2f}"
    'rotation × 0.65'
    """
    options = _options(other, fixed)
    inputs: dict[str, Any] = {"fan_in": fan_in, "unit_grad_norm": unit_grad_norm, "shape": shape}
    if rule.needs == other.needs and len(rule.needs) == 1 and not rule.whole_matrix:
        name = rule.needs[0]  # both norms scale alike with it, so any value gives the same answer
        inputs[name] = 1.0 if inputs[name] is None else inputs[name]

    free = [name for name in ("lr", "weight_decay") if name in options and name not in fixed]
    # A rule without one of these settings has no value to start from. Newton's method converges from any usual value.
    guess: dict[str, float] = {name: getattr(rule, name) or 0.01 for name in free}
    trial = other(**guess, **fixed)
    measure = _measure(inputs, of_matrix=rule.whole_matrix != trial.whole_matrix)
    target = measure(rule)
    # A trial shows which quantities the other rule can have at all with these inputs.
    possible = measure(trial)
    known = [name for name in QUANTITIES if name in target and name in possible]
    kept = ("memory", "norm") if len(free) == 2 else tuple(known[: len(free)])
    if not set(kept) <= set(known) or len(kept) < len(free):
        _explain_what_is_missing(rule, trial, target, possible, free, inputs)
    solution = _solve(other, guess, fixed, measure, {name: target[name] for name in kept})
    reached = measure(solution)
    ratios: dict[str, float | None] = dict.fromkeys(QUANTITIES)
    ratios |= {name: reached[name] / target[name] for name in known}
    # Another quantity may agree by itself, such as the rotation between rules of one correlation time.
    same = tuple(name for name, ratio in ratios.items() if ratio is not None and abs(ratio - 1) < 1e-6)
    return Match(solution, same, ratios, schedule_power=rule.angle_exponent / solution.angle_exponent)


def _measure(inputs: dict[str, Any], of_matrix: bool) -> Measure:
    """Return the function that measures rules at these inputs. `of_matrix` gives neurons the norm of their matrix."""

    def measure(rule: UpdateRule) -> dict[str, float]:
        eq = rule.equilibrium(**inputs)
        values = {name: getattr(eq, attribute) for name, attribute in QUANTITIES.items()}
        known = {name: float(value) for name, value in values.items() if value is not None}
        if of_matrix and "norm" in known and not rule.whole_matrix and inputs["shape"] is not None:
            known["norm"] *= float(Weights.checked(**inputs).norm_of_matrix)
        return known

    return measure


def _solve(
    other: type[UpdateRule], guess: dict[str, float], fixed: dict[str, Any], measure: Measure, target: dict[str, float]
) -> UpdateRule:
    """Solve by Newton's method in logarithms: every rule is close to a product of powers of lr and weight decay."""

    def rule_at(log_free: Array) -> UpdateRule:
        return other(**dict(zip(guess, np.exp(log_free).tolist(), strict=True)), **fixed)

    def gap(log_free: Array) -> Array:
        reached = measure(rule_at(log_free))
        return np.log([reached[name] / want for name, want in target.items()])

    x = np.log(list(guess.values()))
    try:
        if not all(0 < want < np.inf for want in target.values()):
            raise ValueError("nothing to keep: without lr or decay there is no equilibrium")
        for _ in range(60):  # a dozen are enough from any usual guess
            here = gap(x)
            # Differences of 1e-6 give the slope to about 1e-9, enough for quadratic convergence down to rounding.
            if np.abs(here).max(initial=0.0) < 1e-12:
                break
            jacobian = np.stack([(gap(x + 1e-6 * e) - here) / 1e-6 for e in np.eye(len(guess))], axis=1)
            # At most a factor e³ in one step, so that a guess far off does not overflow.
            x = x - np.clip(np.linalg.solve(jacobian, here), -3, 3)
        if not np.abs(gap(x)).max(initial=0.0) < 1e-8:
            raise ValueError("no convergence")
        return rule_at(x)
    except (ValueError, np.linalg.LinAlgError) as error:
        wanted = " and ".join(target)
        raise ValueError(f"no {' and '.join(guess)} of {other.__name__} gives the same {wanted}") from error


def _explain_what_is_missing(
    rule: UpdateRule,
    other: UpdateRule,
    target: dict[str, float],
    possible: dict[str, float],
    free: Sequence[str],
    inputs: dict[str, Any],
) -> NoReturn:
    remedy = f"Fix one of them: {free[0]}=…"
    missing = next((name for name in rule.needs + other.needs if inputs[name] is None), None)
    has_memories = all("memory" in known or needs for known, needs in ((target, rule.needs), (possible, other.needs)))
    # A rule that keeps any norm has no norm to share, for any inputs.
    if missing is not None and has_memories and not rule.keeps_norm:
        remedy = f"Pass {missing}=… ({MEANING[missing]})"
    raise ValueError(f"{rule.name} and {other.name} share too little to choose {' and '.join(free)}. {remedy}")


def _options(other: type[UpdateRule], fixed: dict[str, Any]) -> list[str]:
    """Return the names of a rule's settings. Raise if `fixed` has an unknown name."""
    if not (isinstance(other, type) and issubclass(other, UpdateRule)) or other is Rule:
        raise ValueError(f"match needs the class of a rule with hyper-parameters, for example Lion, not {other!r}")
    options = [field.name for field in fields(other)]  # type: ignore[arg-type]  # every rule is a dataclass
    unknown = [name for name in fixed if name not in options]
    if unknown:
        raise ValueError(f"{other.__name__} has no {unknown[0]!r}. Its hyper-parameters are {', '.join(options)}")
    return options
