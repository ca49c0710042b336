"""Predictions of the theory for each layer at a sample: its equilibrium, and its forecast for this step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope.measure._pipeline.optimizers import GroupRule
from gyroscope.measure.quantities import NAN, StepPrediction
from gyroscope.theory import FixedNorm, UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.recursion import Motion


class StepRates(NamedTuple):
    """A group's learning rate and weight decay over consecutive steps."""

    lr: float
    weight_decay: float
    steps: int = 1


@final
@dataclass(frozen=True)
class LayerState:
    """The inputs of the theory for a layer: RMS over its vectors of the norm before the step and of the unit gradient.

    `had_momentum`: steps before this one have filled a momentum.
    """

    name: str
    fan_in: int
    shape: tuple[int, ...]
    norm: float
    unit_grad_norm: float
    had_momentum: bool = False


@final
@dataclass
class JointForecast:
    """Layers whose forecasts began together. Layers in `left` missed a sample, so the motion lacks their norm."""

    motion: Motion
    names: list[str]
    left: set[str] = field(default_factory=set)

    def set_rule(self, rule: UpdateRule) -> None:
        """Continue the motion with other hyper-parameters. Its moments are kept unless the rule is of another kind."""
        if rule is not self.motion.rule and rule.name != self.motion.rule.name:
            self.motion = rule.motion(self.motion.norm2)
        self.motion.rule = rule


@final
class Forecaster:
    """Follows the layers of one parameter group from sample to sample.

    A forecast starts at the first measured norm and uses the rates of every step since. The momentum starts empty, or
    full if training was already under way. If the optimizer keeps norms fixed, layers are in equilibrium from the first
    step.
    """

    def __init__(self) -> None:
        self._last: dict[str, LayerState] = {}
        self._held: dict[str, float] = {}
        self._forecasts: list[JointForecast] = []
        self._settled: tuple[Any, dict[str, StepPrediction]] = (None, {})

    def predict(
        self, group_rule: GroupRule, rates: Sequence[StepRates], layers: Sequence[LayerState]
    ) -> dict[str, StepPrediction]:
        """Return the predictions of every layer at the last step of `rates`."""
        factors = (group_rule.lr_factor, group_rule.decay_factor)
        rates = [rate._replace(lr=factors[0] * rate.lr, weight_decay=factors[1] * rate.weight_decay) for rate in rates]
        for layer in layers:
            known = layer.unit_grad_norm > 0 and isfinite(layer.unit_grad_norm)
            last = self._last.get(layer.name)
            # Without a gradient, the last known one is used.
            gradient = layer.unit_grad_norm if known else NAN if last is None else last.unit_grad_norm
            self._last[layer.name] = layer if known else replace(layer, unit_grad_norm=gradient)
        present = [self._last[layer.name] for layer in layers]
        with np.errstate(all="ignore"):
            predictions = dict(self._equilibria(group_rule, rates[-1].lr, present))
            if (group_rule.norms_kept and not group_rule.follows_base) or "update_rms" in group_rule.rule.needs:
                return predictions
            if group_rule.norms_kept:
                # The base's decay is that of the rule. The group may have another one if a rule sets the angle.
                rates = [rate._replace(weight_decay=group_rule.rule.weight_decay) for rate in rates]
            for name, angle, norm in self._advance_all(group_rule, rates, present):
                moved = {"forecast_angular_update": angle, "forecast_norm": norm}
                if group_rule.norms_kept:
                    moved = {"predicted_angular_update": angle, "forecast_angular_update": angle}
                predictions[name] = predictions[name]._replace(**moved)
        return predictions

    def _equilibria(self, group_rule: GroupRule, lr: float, layers: Sequence[LayerState]) -> dict[str, StepPrediction]:
        """Return the equilibrium of each layer. If norms are fixed, layers are in equilibrium from the first step."""
        rule = group_rule.rule
        held = group_rule.norms_kept
        # The learning rate is passed separately, because it may be that of an earlier step of a schedule.
        key = (rule, lr, [(layer.name, layer.fan_in) for layer in layers])
        if key == self._settled[0]:
            return self._settled[1]
        settled = FixedNorm(rule) if held and not rule.keeps_norm else rule
        predictions = {}
        for several in _alike(group_rule, layers):
            at = settled.at(lr, _weights(group_rule, several))
            columns = (_values(value, len(several)) for value in (at.angular_update, at.norm, at.timescale))
            for layer, angle, norm, timescale in zip(several, *columns, strict=True):
                predictions[layer.name] = StepPrediction(angle, norm / _parts(group_rule, layer), timescale)
                if held:
                    norm = self._held.setdefault(layer.name, layer.norm)
                    predictions[layer.name] = StepPrediction(angle, norm, timescale, angle, norm)
        if rule.needs == ("fan_in",):  # independent of gradients, so it changes only with lr or a setting
            self._settled = (key, predictions)
        return predictions

    def _advance_all(
        self, group_rule: GroupRule, rates: Sequence[StepRates], layers: Sequence[LayerState]
    ) -> Iterator[tuple[str, float, float]]:
        """Return the angle of the last step and the norm after it, of every layer."""
        names = {layer.name for layer in layers}
        followed = set()
        for forecast in self._forecasts:
            forecast.left |= {name for name in forecast.names if name not in names}
            if len(forecast.left) < len(forecast.names):
                yield from self._advance(forecast, group_rule, rates)
            followed |= {name for name in forecast.names if name not in forecast.left}
        new = [layer for layer in layers if layer.name not in followed and layer.norm > 0]
        for several in _alike(group_rule, new):
            start = np.array([(layer.norm * _parts(group_rule, layer)) ** 2 for layer in several])
            forecast = JointForecast(group_rule.rule.motion(start), [layer.name for layer in several])
            if several[0].had_momentum:
                forecast.motion.fill(rates[-1].lr, _weights(group_rule, several))
            self._forecasts.append(forecast)
            # The norm and the momentum contain everything about the steps before.
            yield from self._advance(forecast, group_rule, [rates[-1]._replace(steps=1)])

    def _advance(
        self, forecast: JointForecast, group_rule: GroupRule, rates: Sequence[StepRates]
    ) -> Iterator[tuple[str, float, float]]:
        layers = [self._last[name] for name in forecast.names]
        weights = _weights(group_rule, layers)
        for decay, equal in groupby(rates, key=lambda rate: rate.weight_decay):
            forecast.set_rule(_with_decay(group_rule.rule, decay))
            before = forecast.motion.norm2
            step = forecast.motion.advance(np.concatenate([np.full(rate.steps, rate.lr) for rate in equal]), weights)
        angles = step.angles(before)[-1]
        norms = np.sqrt(forecast.motion.norm2)
        for layer, angle, norm in zip(layers, angles, norms, strict=True):
            if layer.name not in forecast.left:
                yield layer.name, float(angle), float(norm) / _parts(group_rule, layer)


def _with_decay(rule: UpdateRule, weight_decay: float) -> UpdateRule:
    """Return the rule with the weight decay of an earlier step."""
    if not rule.has_weight_decay or rule.weight_decay == weight_decay:
        return rule
    return rule.replace(weight_decay=weight_decay)


def _alike(group_rule: GroupRule, layers: Sequence[LayerState]) -> list[list[LayerState]]:
    """Return groups of layers that one `Weights` can describe, and that start alike."""
    kinds: dict[Any, list[LayerState]] = {}
    for layer in layers:
        shape = (layer.shape, layer.fan_in) if group_rule.whole_matrix else None
        kinds.setdefault((shape, layer.had_momentum), []).append(layer)
    return list(kinds.values())


def _weights(group_rule: GroupRule, layers: Sequence[LayerState]) -> Weights:
    fan_in = np.array([layer.fan_in for layer in layers], float)
    gradient = np.array([layer.unit_grad_norm for layer in layers], float)
    return Weights(fan_in, gradient, layers[0].shape if group_rule.whole_matrix else None)


def _parts(group_rule: GroupRule, layer: LayerState) -> float:
    """Return the norm of a vector of the rule over that of one of ours. Muon's vector is the whole matrix."""
    return float(Weights(layer.fan_in, shape=layer.shape).norm_of_matrix) if group_rule.whole_matrix else 1.0


def _values(value: Any, count: int) -> list[float]:
    return [NAN] * count if value is None else np.broadcast_to(value, count).tolist()
