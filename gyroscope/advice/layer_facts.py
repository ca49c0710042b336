"""The facts about a layer that judgements use, for a plan, a run or a checkpoint, and layers judged together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any, Literal, Self, final

import numpy as np

from gyroscope.advice import run_layer
from gyroscope.advice import thresholds as limit
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.layer_families import describe_layers, short_labels
from gyroscope.theory import UpdateRule
from gyroscope.theory.convergence import MEMORY_PASSED
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.law import safe_divide
from gyroscope.theory.layer_prediction import LayerPrediction

# The state of a layer's norm and rotation, as a table and the summary show it.
State = Literal[
    "in equilibrium",  # within 10 % of it
    "falls out",  # had settled, and became too large for its learning rate
    "at its angle",  # the optimizer keeps the norm and sets the angle
    "short",  # near its initial norm, in a run shorter than its memory
    "off equilibrium",  # further off
    "grows",  # no decay limits the norm, because steps are relative to it
    "no decay",  # never forgets its start
    "unknown",  # without a prediction to compare with
]
# States of a last step in which a layer rotates as its settings say, so that it can be compared with others.
COMPARABLE: tuple[State, ...] = ("in equilibrium", "at its angle")


@final
@dataclass(frozen=True, eq=False)
class LayerFacts:
    """The facts about a layer that judgements use. Unknown numbers are NaN. Angles are radians per step.

    name                of the parameter
    rule                of the optimizer, at the peak learning rate or at that of the last step. None if unknown
    state               of its norm and rotation
    memory              1/a in steps, with the decay per step a at the peak learning rate
    run_length          Σ a_t over the run, in memories
    settled_at          step at which the norm came within 10 % of equilibrium
    predicted_rotation  in equilibrium
    rotation            RMS as planned in the middle of the run, or as measured
    rotation_ratio      measured over predicted rotation
    late_ratio          the same at the end of a run
    norm_ratio          measured over predicted norm
    is_comparable       whether its speed is that of its settings, and not of its start or of the schedule's end
    group               number of its parameter group
    start_rotation      fastest rotation at the start. NaN if the optimizer sets the angle
    start_step          its step
    start_norm          initial norm over the equilibrium norm of the plain rule, if the optimizer keeps it
    warmup              steps of warmup that the run has
    final_rate          last learning rate over the highest
    stopped_at          step since which the layer does not move. NaN if it moves
    vectors             number of vectors that were measured
    dead                those among them that never had a gradient
    frozen_share        share of the entries with a gradient that a step does not change
    neuron_ratio        95th over 5th percentile of the vectors' rotation
    noise_ratio         the same if only noise rotates them
    lambda_u            weight decay that the gradient along the weights amounts to
    decay_error         effective over given weight decay. NaN if the difference may be noise
    options             of its parameter group
    """

    name: str
    rule: UpdateRule | None = None
    state: State = "unknown"
    memory: float = nan
    run_length: float = nan
    settled_at: float = nan
    predicted_rotation: float = nan
    rotation: float = nan
    rotation_ratio: float = nan
    late_ratio: float = nan
    norm_ratio: float = nan
    is_comparable: bool = False
    group: int = -1
    start_rotation: float = nan
    start_step: float = nan
    start_norm: float = nan
    warmup: int = 0
    final_rate: float = 1.0
    stopped_at: float = nan
    vectors: float = nan
    dead: int = 0
    frozen_share: float = 0.0
    neuron_ratio: float = nan
    noise_ratio: float = nan
    lambda_u: float = nan
    decay_error: float = nan
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, prediction: LayerPrediction) -> Self:
        """Return the facts about a layer of a plan."""
        course = prediction.forecast
        start_rotation, start_step = (nan, 0) if course is None else run_layer.fastest(course.angular_update)
        settled_at = nan
        if course is not None and prediction.settled_at is not None:
            # During a warmup the equilibrium norm moves, and may pass the norm.
            settled_at = float(max(prediction.settled_at, int(np.argmax(course.lr))))
        return cls(
            prediction.name,
            prediction.rule,
            _planned_state(prediction),
            memory=_number(prediction.equilibrium.timescale),
            run_length=prediction.total_decay,
            settled_at=settled_at,
            predicted_rotation=_number(prediction.equilibrium.angular_update),
            rotation=nan if course is None else float(course.angular_update[len(course.angular_update) // 2]),
            start_rotation=nan if prediction.rule.keeps_norm else start_rotation,
            start_step=float(start_step),
            start_norm=run_layer.start_norm(prediction.rule, prediction.layer),
            warmup=prediction.schedule.warmup,
        )

    @classmethod
    def of_run(cls, layer: LayerHistory) -> Self:
        """Return the facts about a layer of a run that was measured."""
        state = state_of_run(layer)
        start_rotation, start_step = run_layer.fastest_start(layer)
        initial = run_layer.initial_layer(layer)
        lambda_u, decay_error = run_layer.radial_decay(layer)
        neuron_ratio, noise_ratio = run_layer.neuron_spread(layer)
        return cls(
            layer.name,
            layer.rule,
            state,
            memory=layer.memory,
            run_length=layer.run_length,
            settled_at=layer.settled_at,
            predicted_rotation=float(layer.predicted_angle[layer.peak]),
            rotation=layer.rms(layer.rms_angle),
            rotation_ratio=layer.rotation_ratio,
            late_ratio=run_layer.late_ratio(layer),
            norm_ratio=layer.mean(layer.norm_ratio),
            is_comparable=state not in ("short", "no decay") and not run_layer.is_transient(layer),
            group=layer.layer.group,
            start_rotation=start_rotation,
            start_step=start_step,
            start_norm=nan if layer.rule is None or initial is None else run_layer.start_norm(layer.rule, initial),
            # The first sample at the peak rate ends the warmup.
            warmup=int(layer.steps[layer.peak]),
            final_rate=run_layer.final_rate(layer),
            stopped_at=run_layer.stopped_at(layer),
            vectors=run_layer.vectors(layer),
            dead=run_layer.dead_vectors(layer),
            frozen_share=run_layer.frozen_share(layer),
            neuron_ratio=neuron_ratio,
            noise_ratio=noise_ratio,
            lambda_u=lambda_u,
            decay_error=decay_error,
            options=layer.options,
        )

    @classmethod
    def of_checkpoint(
        cls,
        name: str,
        rule: UpdateRule | None,
        *,
        steps: float | None,
        peak_lr: float,
        memory: float,
        run_length: float,
        norm_ratio: float,
        rotation_ratio: float,
        **numbers: Any,
    ) -> Self:
        """Return the facts about a layer in the last step of a checkpoint.

        steps    that were taken, None if unknown
        peak_lr  of the run, of which `norm_ratio` is over the equilibrium norm. NaN if unknown
        numbers  other fields
        """
        if not isfinite(run_length) and steps is not None and memory > 0:
            run_length = steps / memory
        sets_angle = rule is not None and rule.keeps_norm
        state: State
        if rule is None:
            state = "unknown"
        elif sets_angle:
            state = "at its angle"
        elif rule.weight_decay == 0:
            state = "no decay"
        elif run_length < MEMORY_PASSED:
            # The learning rate may have fallen since its peak, by any factor.
            state = "short" if isfinite(peak_lr) else "unknown"
        else:
            state = _last_state(rule, peak_lr, norm_ratio, rotation_ratio)
        return cls(
            name,
            rule,
            state,
            memory=memory,
            run_length=run_length,
            norm_ratio=norm_ratio,
            rotation_ratio=rotation_ratio,
            is_comparable=state in COMPARABLE,
            **numbers,
        )

    @property
    def sets_angle(self) -> bool:
        """Whether the optimizer keeps the norm and sets the angle."""
        return self.state == "at its angle"

    @property
    def sets_imbalance(self) -> bool:
        """Whether the optimizer was set to rotate neurons at different speeds."""
        return bool(self.options.get("angle_factors"))

    @property
    def reference(self) -> str:
        """What a layer of a run is compared with, in a word."""
        return "forecast" if self.state in ("short", "no decay") else "equilibrium"


def state_of_run(layer: LayerHistory) -> State:
    """Return the state of a layer of a run, from its norm over that of equilibrium."""
    if layer.keeps_norm:
        return "at its angle"
    # This comes first, because a layer that has not forgotten its start has neither settled nor fallen out.
    if layer.rule is not None and layer.rule.has_weight_decay and layer.weight_decay == 0:
        return "no decay"
    if layer.run_length > 0 and not layer.is_longer_than_memory:
        return "short"
    ratio = layer.mean(layer.distance)
    if not np.isfinite(layer.distance).any():
        return "unknown"
    if isfinite(layer.settled_at):
        return "falls out" if run_layer.has_fallen_out(layer) else "in equilibrium"
    if not isfinite(ratio):
        return "unknown"
    return "in equilibrium" if abs(ratio - 1) <= SETTLED else "off equilibrium"


def _planned_state(prediction: LayerPrediction) -> State:
    if prediction.rule.keeps_norm:
        return "at its angle"
    length = prediction.total_decay
    if not isfinite(length):
        return "unknown"
    if length == 0:
        return "no decay"
    if prediction.grows_without_end:
        return "grows"
    if not prediction.is_longer_than_memory:
        return "short"
    if prediction.settled_at is None:
        return "off equilibrium"
    return "in equilibrium" if prediction.falls_out_at is None else "falls out"


def _last_state(rule: UpdateRule, peak_lr: float, norm_ratio: float, rotation_ratio: float) -> State:
    """Return the state after a last step. A norm that follows its schedule is between two equilibrium norms."""
    if not isfinite(norm_ratio):
        return "unknown"
    fallen = float(safe_divide(rule.lr, peak_lr)) if isfinite(peak_lr) else 1.0
    over_last = float(safe_divide(norm_ratio, fallen**rule.norm_exponent))
    # One step shows no average, so the norm may be as far off as that of a layer of a run that has not fallen out.
    if norm_ratio > rule.falls_out_ratio or over_last < 1 / rule.falls_out_ratio:
        return "off equilibrium"
    # A norm above its equilibrium counts only if it slows the layer. Otherwise the prediction is off.
    slow = not rotation_ratio >= limit.MAX_SLOWED_ROTATION
    return "falls out" if over_last > rule.falls_out_ratio and slow else "in equilibrium"


def _number(value: float | None) -> float:
    return nan if value is None else float(value)


@final
class Layers(tuple[LayerFacts, ...]):
    """Some layers of a model. `among` lists the names of all its layers, so that a sentence can name a family."""

    among: Sequence[str]

    def __new__(cls, facts: Iterable[LayerFacts], among: Sequence[str] | None = None) -> Self:
        """Keep the facts, and the names of all layers."""
        layers = super().__new__(cls, facts)
        layers.among = among or layers.names
        return layers

    @property
    def names(self) -> list[str]:
        """Full names of the layers."""
        return [layer.name for layer in self]

    def where(self, keep: Callable[[LayerFacts], bool]) -> "Layers":
        """Return the layers for which `keep` holds."""
        return Layers(filter(keep, self), self.among)

    def in_state(self, *states: State) -> "Layers":
        """Return the layers in one of these states."""
        return self.where(lambda layer: layer.state in states)

    def worst_first(self, badness: Callable[[LayerFacts], float]) -> "Layers":
        """Return the layers, sorted so that the largest number comes first."""
        return Layers(sorted(self, key=badness, reverse=True), self.among)

    def label(self, member: LayerFacts | str) -> str:
        """Return the short name of a layer."""
        return short_labels(self.among)[member if isinstance(member, str) else member.name]

    def describe(self, *, worst: bool = False) -> str:
        """Return the name of these layers in a sentence. If they are all layers, `worst` names the first."""
        return describe_layers(self.names, self.among, worst=worst)

    def clause(self, singular: str, plural: str, *, worst: bool = False) -> str:
        """Return the beginning of a sentence: these layers, and a verb that agrees."""
        return begin_sentence(self.describe(worst=worst), singular if len(self) == 1 else plural)


def begin_sentence(layers: str, verb: str) -> str:
    """Return a subject and a verb. The name of a layer keeps its first letter."""
    return f"A{layers[1:]} {verb}" if layers.startswith("all ") else f"{layers} {verb}"
