"""What theory says of each layer at a sample: where it would settle, and where it should be by now."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import atan, isfinite
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope.measure.quantities import NAN, Prediction
from gyroscope.theory import UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.recursion import Motion

Group = Mapping[str, Any]


class Rates(NamedTuple):
    """A group's learning rate and weight decay in a number of consecutive steps."""

    lr: float
    weight_decay: float
    steps: int = 1


@final
@dataclass(frozen=True)
class Subject:
    """A layer as theory sees it: RMS over its vectors of the norm before the step, and of the gradient at unit norm."""

    name: str
    fan_in: int
    vectors: int
    shape: tuple[int, ...]
    norm: float
    unit_grad_norm: float


@final
@dataclass
class Cohort:
    """Layers whose forecast began together; those in `left` missed a sample, standing still unknown to the motion."""

    rule: UpdateRule
    motion: Motion
    names: list[str]
    left: set[str] = field(default_factory=set)


@final
class Forecaster:
    """Follows the layers of one parameter group from sample to sample.

    A forecast starts at the norm first measured, with an empty momentum, and takes the rates of every step since.
    Where the optimizer holds norms, layers are where they stay from the first step on.
    """

    def __init__(self, norms_kept: bool = False) -> None:
        self.norms_kept = norms_kept
        self._last: dict[str, Subject] = {}
        self._held: dict[str, float] = {}
        self._cohorts: list[Cohort] = []

    def predict(
        self, rule: UpdateRule, group: Group, rates: Sequence[Rates], subjects: Sequence[Subject]
    ) -> dict[str, Prediction]:
        """The predictions of every layer at the last of the steps to which `rates` belong."""
        share = _share(rule, group)
        rates = [rate._replace(lr=share * rate.lr) for rate in rates]
        for subject in subjects:  # without a gradient, the last one stands in
            known = subject.unit_grad_norm > 0 and isfinite(subject.unit_grad_norm)
            last = self._last.get(subject.name, replace(subject, unit_grad_norm=NAN))
            self._last[subject.name] = subject if known else replace(subject, unit_grad_norm=last.unit_grad_norm)
        present = [self._last[subject.name] for subject in subjects]
        with np.errstate(all="ignore"):
            found = dict(self._equilibria(rule, rates[-1].lr, present))
            if self.norms_kept:
                return {subject.name: self._at_rest(subject, found[subject.name]) for subject in present}
            for name, angle, norm in self._forecasts(rule, rates, present):
                found[name] = replace(found[name], forecast_angular_update=angle, forecast_norm=norm)
        return found

    def _equilibria(self, rule: UpdateRule, lr: float, subjects: Sequence[Subject]) -> Iterator[tuple[str, Prediction]]:
        for several in _alike(rule, subjects):
            at = rule.at(lr, _weights(rule, several), leading=self.norms_kept)
            columns = (_values(value, len(several)) for value in (at.angular_update, at.norm, at.timescale))
            for subject, angle, norm, timescale in zip(several, *columns, strict=True):
                # A step of this length along the tangent, brought back to the norm, turns by the arctangent.
                turned = atan(angle) if self.norms_kept else angle
                yield subject.name, Prediction(turned, norm / _parts(rule, subject), timescale)

    def _at_rest(self, subject: Subject, at: Prediction) -> Prediction:
        norm = self._held.setdefault(subject.name, subject.norm)
        return replace(at, norm=norm, forecast_norm=norm, forecast_angular_update=at.angular_update)

    def _forecasts(
        self, rule: UpdateRule, rates: Sequence[Rates], subjects: Sequence[Subject]
    ) -> Iterator[tuple[str, float, float]]:
        """Angle of the last step and norm after it, of every layer."""
        names = {subject.name for subject in subjects}
        for cohort in self._cohorts:
            cohort.left |= {name for name in cohort.names if name not in names}
            if len(cohort.left) < len(cohort.names):
                yield from self._advanced(cohort, rule, rates)
        followed = {name for cohort in self._cohorts for name in cohort.names if name not in cohort.left}
        new = [subject for subject in subjects if subject.name not in followed and subject.norm > 0]
        for several in _alike(rule, new):
            start = np.array([(subject.norm * _parts(rule, subject)) ** 2 for subject in several])
            cohort = Cohort(rule, rule.motion(start), [subject.name for subject in several])
            self._cohorts.append(cohort)
            yield from self._advanced(cohort, rule, [rates[-1]._replace(steps=1)])

    def _advanced(self, cohort: Cohort, rule: UpdateRule, rates: Sequence[Rates]) -> Iterator[tuple[str, float, float]]:
        subjects = [self._last[name] for name in cohort.names]
        weights = _weights(rule, subjects)
        for decay, run in groupby(rates, key=lambda rate: rate.weight_decay):
            _obey(cohort, _decaying(rule, decay))
            before = cohort.motion.norm2
            step = cohort.motion.advance(np.concatenate([np.full(rate.steps, rate.lr) for rate in run]), weights)
        angles, norms = step.angles(before)[-1], np.sqrt(cohort.motion.norm2)
        for subject, angle, norm in zip(subjects, angles, norms, strict=True):
            if subject.name not in cohort.left:
                yield subject.name, float(angle), float(norm) / _parts(rule, subject)


def _obey(cohort: Cohort, rule: UpdateRule) -> None:
    """Let the motion go on by other hyper-parameters: its moments stay, unless the rule is of another kind."""
    if _besides_lr(rule) == _besides_lr(cohort.rule):
        return
    motion = rule.motion(cohort.motion.norm2)
    if rule.name != cohort.rule.name:
        cohort.motion = motion
    for name in {"rule", "inputs"} & vars(motion).keys():
        setattr(cohort.motion, name, getattr(motion, name))
    cohort.rule = rule


def _besides_lr(rule: UpdateRule) -> tuple[object, ...]:
    return rule.name, *(value for name, value in rule.settings.items() if name != "lr")


def _decaying(rule: UpdateRule, weight_decay: float) -> UpdateRule:
    """The rule with the weight decay of an earlier step."""
    if not rule.has_weight_decay or rule.weight_decay == weight_decay:
        return rule
    return rule.replace(weight_decay=weight_decay)


def _share(rule: UpdateRule, group: Group) -> float:
    """What `rule_of` makes of torch's dampening: a smaller learning rate."""
    return 1 - float(group.get("dampening", 0.0)) if rule.momentum_step is not None else 1.0


def _alike(rule: UpdateRule, subjects: Sequence[Subject]) -> list[list[Subject]]:
    """Layers that one `Weights` can describe."""
    if not rule.whole_matrix:
        return [list(subjects)] if subjects else []
    shapes = dict.fromkeys(subject.shape for subject in subjects)
    return [[subject for subject in subjects if subject.shape == shape] for shape in shapes]


def _weights(rule: UpdateRule, subjects: Sequence[Subject]) -> Weights:
    fan_in, gradient = (np.array([getattr(s, name) for s in subjects], float) for name in ("fan_in", "unit_grad_norm"))
    return Weights(fan_in, gradient, subjects[0].shape if rule.whole_matrix else None)


def _parts(rule: UpdateRule, subject: Subject) -> float:
    """Norm of what the rule takes for one vector over the norm of one of ours: Muon's is the whole matrix."""
    return float(subject.vectors**0.5) if rule.whole_matrix else 1.0


def _values(value: Any, count: int) -> list[float]:
    return [NAN] * count if value is None else np.broadcast_to(value, count).tolist()
