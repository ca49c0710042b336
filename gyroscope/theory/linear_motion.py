"""Motion under updates that are linear in weight, momentum and gradient, as in most rules.

They share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖² with their own coefficients and step size.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.cautious import plain_equivalent
from gyroscope.theory.law import Weights
from gyroscope.theory.recursion import Guess, Improve, Moments, Motion, Series, Step, filtered

# x in: growth of the squared norm per step ∝ norm^(-2x). Any value gives the same norms, and this one needs few rounds.
RESPONSE = 0.75
# Largest share of the squared norm per step that may decay through the momentum without overshooting.
SMALL_DECAY = 0.01


class Combination(NamedTuple):
    """A vector as a combination of the weight, the momentum before the step and the gradient."""

    weight: Number
    momentum: Number
    gradient: Number


class StepNormaliser(NamedTuple):
    """D in the step size s = scale·sqrt(size/D):  D <- keep·D + weight·E‖w‖² + momentum·E‖m‖² + E‖g‖².

    Adam's v (keep = β2, weight = λ², unit = 1-β2) and Lion's E‖c‖² (keep = 0) are both such a D. D counts gradients in
    full and `unit`·D is the true average, so D is rescaled if the unit changes.
    """

    keep: Number = 0.0
    weight: Number = 0.0
    momentum: Number = 0.0
    unit: Number = 1.0


@dataclass(frozen=True)
class LinearSteps:
    """Steps  w <- (1-a) w - s·update,  m <- momentum,  update and momentum linear in weight, momentum and gradient.

    s = scale, or scale·sqrt(size/D) if D is given. Settings that change during the run
    make coefficients arrays over steps.
    """

    decay: Array  # for each step
    scale: Array  # for each step
    update: Combination
    momentum: Combination
    D: StepNormaliser | None = None
    excess: float = 1.0  # E‖u‖² over E‖s·update‖², above 1 if the update adds its own noise
    coupling: Number = 1.0  # E⟨u, m'⟩ over E⟨s·update, m'⟩, not 1 if that noise is correlated over steps
    unit_grad2: Number = 1.0  # E‖g‖²·E‖w‖², for each layer
    size: Number = 1.0  # for each layer


@final
class LinearMotion(Motion):
    """Motion of a rule whose `linear_steps` give the coefficients at learning rates, steps done and weights.

    y = E‖w‖², p = E⟨w,m⟩, q = E‖m‖², and D as in `StepNormaliser`.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2, **{name: np.zeros_like(norm2) for name in ("p", "q", "D")})
        self._unit: float | None = None  # D's, of the last step

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        rule, lr = plain_equivalent(self.rule, lr, weights)
        steps: LinearSteps = rule.linear_steps(lr, self.done, weights)
        normaliser = steps.D or StepNormaliser()
        unit = np.broadcast_to(normaliser.unit, len(lr))
        before = np.append(unit[0] if self._unit is None else self._unit, unit[:-1])
        self._unit = float(unit[-1])
        aging = (normaliser.keep * (before / unit), normaliser.weight, normaliser.momentum)
        by_step = (steps.decay, steps.scale, steps.coupling, *steps.update, *steps.momentum, *aging)
        columns: list[Any] = [np.asarray(values)[:, None] if np.ndim(values) else values for values in by_step]

        is_coupled = np.any(steps.update.weight) or np.any(steps.momentum.weight)
        self.guessed = ["norm2", "p"] if is_coupled else ["norm2"]
        done = np.arange(self.done, self.done + len(lr))[:, None]

        def improve(part: slice, guess: Guess) -> tuple[Step, Moments]:
            values = (column[part] if isinstance(column, np.ndarray) else column for column in columns)
            a, s, coupling, *coefficients = values
            # Coefficients of w, m and g in the update and in the new momentum, and of D, w and m in the new D.
            uw, um, ug, mw, mm, mg, keep_D, Dw, Dm = coefficients
            y = guess["norm2"]
            p = guess["p"]
            g2 = steps.unit_grad2 / y
            added = mg * mg * g2
            if is_coupled:
                added += mw * (mw * y + 2 * mm * p)
            q = filtered(self.moments["q"], mm * mm, added)
            D = Series(*np.broadcast_to(self.moments["D"], (2, *q.before.shape)))
            if steps.D:
                D = filtered(self.moments["D"], keep_D, g2 + Dm * q.before + (Dw * y if is_coupled else 0.0))
                s = s * np.sqrt(steps.size / D.after)
            # E‖update‖² without the part of w.
            update2 = um * um * q.before + ug * ug * g2
            left = 1 - a
            coupled = s * coupling
            keep = left * mm
            added = -coupled * (um * mm * q.before + ug * mg * g2)
            if is_coupled:
                keep = keep - coupled * (uw * mm + um * mw)
                added = added + (left - coupled * uw) * mw * y
            overlap = filtered(self.moments["p"], keep, added)
            power = steps.excess * (s * s)
            radial = um * overlap.before
            twice = 2 * left * s
            square = power * (update2 + 2 * uw * radial if is_coupled else update2)
            added = square - twice * radial
            keep = left * left
            if is_coupled:
                # Parts proportional to the norm belong to `keep`, because as part of `added` they would converge slowly
                # or not at all. These are the weight's part of the update and, if small, the part of the momentum as
                # far as it has filled.
                own = power * uw * uw
                through = twice * um * mw / (1 - mm)
                through = np.where(through < SMALL_DECAY, through, 0.0)
                keep = left * left - twice * uw + own - through
                added = added + through * y
            # `added` falls as the norm grows. Taking that into account halves the rounds.
            norm2 = filtered(self.norm2, keep - RESPONSE * added / y, (1 + RESPONSE) * added)
            y = norm2.before
            cross = s * radial
            if is_coupled:
                cross = s * (uw * y + radial)
                square = square + own * y
            moments = {"norm2": norm2, "p": overlap, "q": q, "D": D}
            decay = np.broadcast_to(a, cross.shape)
            forgets = decay
            if is_coupled:
                # L2 also acts through the momentum, which fills with mw/(1-mm) of the weights of 1/(1-mm) steps before.
                late = s * um * mw / (1 - mm)
                forgets = decay + (s * uw + late * (1 - mm ** done[part])) * (1 + late / (1 - mm))
            return Step(decay, cross, square, norm2.after, forgets), moments

        return improve
