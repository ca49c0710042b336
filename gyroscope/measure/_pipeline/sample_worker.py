"""From the sums of a step to a stored sample: compared with theory, summarised, written, and handed to the sinks.

All of it runs in a thread beside training, one sample after the other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from gyroscope._types import Array
from gyroscope.measure._pipeline.alarm import IncidentAlarm
from gyroscope.measure._pipeline.batches import OLD
from gyroscope.measure._pipeline.host_copy import HostCopy, SentSums, merge_pieces
from gyroscope.measure._pipeline.layers import Ids, Tracked
from gyroscope.measure._pipeline.measurement import RateHistory
from gyroscope.measure._pipeline.optimizers import GroupRule, LayerReading, StepContext
from gyroscope.measure._pipeline.prediction import GroupForecasts, LayerState
from gyroscope.measure._pipeline.scalar_log import ScalarLog
from gyroscope.measure._pipeline.statistics import LayerPart, summarise
from gyroscope.measure.quantities import VectorSums
from gyroscope.measure.sinks import SinkWorker, by_layer, overall
from gyroscope.optim.torch_rules import follows_base, keeps_norms, rule_of
from gyroscope.optimizers import Rules
from gyroscope.store import LayerSample, Sample, Writer

# Layers of one parameter group that were read in the same way: their vectors stand one after the other.
LayerGroup = tuple[VectorSums, list[LayerPart]]
# Steps skipped in a row after which a run is stuck: the scale has fallen 2^30 times, from any start to next to nothing.
STUCK = 30


@final
@dataclass(frozen=True)
class RawSample:
    """A sample as it leaves the training thread.

    step, time: number of the step, and Unix seconds.
    owners, groups: by number of each group the optimizer that stepped it last, and its options then.
    sums, readings: of each layer, and how they were made.
    history: rates of every step since the last sample.
    scaler: whether the step was skipped, the gradients' scale, and the steps skipped so far; None without a GradScaler.
    gap: the sample before this one was lost, so that the last copy of the weights is not that sample's.
    skipped: steps since the last sample of which the host knew that a GradScaler skipped them; `step` counts them not.
    """

    step: int
    time: float
    owners: Sequence[Optimizer]
    groups: Mapping[int, Mapping[str, Any]]
    sums: Sequence[SentSums]
    readings: Mapping[str, LayerReading]
    history: RateHistory
    scaler: HostCopy | None = None
    gap: bool = False
    skipped: int = 0


class GroupSettings(NamedTuple):
    """What a parameter group was stepped with last, and what happened to it since the previous sample."""

    lr: float
    weight_decay: float
    betas: tuple[float, float]
    highest_lr: float
    skipped_steps: int


@final
class SampleProcessor:
    """Processes samples in their order, and follows the predictions from one to the next."""

    def __init__(
        self,
        writer: Writer,
        indices: Mapping[str, int],
        sinks: Sequence[SinkWorker],
        scalars: ScalarLog,
        raw: re.Pattern[str] | None = None,
        sink_layers: re.Pattern[str] | None = None,
        alarm: IncidentAlarm | None = None,
        rules: Rules | None = None,
    ) -> None:
        self.writer = writer
        self.indices = indices
        self.sinks = sinks
        self.scalars = scalars
        self.raw = raw
        self.sink_layers = sink_layers
        self.alarm = alarm
        self._user_rules = rules
        self._forecasts = GroupForecasts()
        self._rules: dict[int, tuple[Mapping[str, Any], GroupRule | None]] = {}
        self._passed: RateHistory = []  # rates of steps that no forecast knows of yet
        self._skipped = 0
        self._skipped_since_sample = 0
        self._skipped_in_a_row = 0
        self._gap = False
        self._first_step: int | None = None  # above 0 in a run that was resumed

    def process(self, samples: list[RawSample | None]) -> None:
        """Take what was logged and one sample from its sums to the store and the sinks; None: only what was logged."""
        (sample,) = samples
        logged = self.scalars.store() if self.scalars.waiting else []
        if self.alarm is not None:
            self.alarm.log(logged)
        if sample is None:
            return
        if self._first_step is None:
            self._first_step = sample.step
        found_inf, scale, skipped = (0.0, 1.0, 0.0) if sample.scaler is None else sample.scaler.wait().tolist()
        newly_skipped = int(skipped) - self._skipped
        history = _without_skipped([*self._passed, *sample.history], newly_skipped, bool(found_inf))
        gap = self._gap or sample.gap
        self._skipped = int(skipped)
        self._skipped_since_sample += sample.skipped + newly_skipped
        none_taken = newly_skipped == sum(steps for _, steps in sample.history)
        self._skipped_in_a_row = self._skipped_in_a_row + newly_skipped if none_taken else 0
        self._gap = bool(found_inf)
        self._passed = history if found_inf else []
        if found_inf:  # the step did nothing: no sample
            if self._skipped_in_a_row >= STUCK:
                self.writer.note(stuck_text(sample.step + 1 - self._skipped))
            return
        rates = [([_numbers(pair) for pair in pairs], steps) for pairs, steps in history]
        rules = {number: self._rule(sample, number) for number in sample.groups}
        skipped_steps = self._skipped_since_sample
        self._skipped_since_sample = 0
        settings = {
            number: _settings(number, options, rates, skipped_steps) for number, options in sample.groups.items()
        }
        groups, states = self._groups(sample, rules, settings, scale, gap)
        predictions = self._forecasts.predict(rules, rates, states, self.writer.note)
        layers: dict[str, LayerSample] = {}
        for vectors, parts in groups:
            layers |= summarise(vectors, parts, predictions)
        stored = {}
        for name, layer in layers.items():
            stored[self.indices[name]] = layer
        step = sample.step - self._skipped
        self.writer.put(Sample(step, sample.time, stored))
        if self.alarm is not None:
            self.alarm.update(step, layers)
        if self.sinks:
            scalars = overall(layers)
            if self.sink_layers is not None:
                scalars |= by_layer(layers, self.sink_layers)
            for sink in self.sinks:
                sink.put(step, dict(scalars))

    def _rule(self, sample: RawSample, number: int) -> GroupRule | None:
        """The theory's rule of a group; the last sample's as long as no option has changed."""
        options = sample.groups[number]
        known = self._rules.get(number)
        # Tensors, as lr may be one, are not compared: `==` on them is no truth value, and may wait for a device.
        comparable = not any(isinstance(value, Tensor) for value in options.values())
        if known is not None and comparable and known[0] == options:
            return known[1]
        group_rule: GroupRule | None = None
        try:
            owner = sample.owners[number]
            rule = rule_of(options, owner, self._user_rules)
            # A forecast counts RAdam's steps from its own start, where those of a resumed run are rectified no more.
            if rule.rectified and self._first_step:
                rule = rule.replace(rectified=False)
            if rule.counts_steps:
                rule = rule.replace(steps_done=sample.step)
            follows = follows_base(owner)
            if follows and self._first_step:
                raise ValueError("how far the base had come that it follows is not known in the middle of a run")
            group_rule = GroupRule.of(rule, options, keeps_norms(owner), follows)
        except ValueError as error:
            self.writer.note(f"No predictions for parameter group {number}: {error}")
        if comparable and not (group_rule is not None and group_rule.rule.counts_steps):
            self._rules[number] = (options, group_rule)
        return group_rule

    def _groups(
        self,
        sample: RawSample,
        rules: Mapping[int, GroupRule | None],
        settings: Mapping[int, GroupSettings],
        scale: float,
        gap: bool,
    ) -> tuple[list[LayerGroup], dict[int, list[LayerState]]]:
        """Wait for the sums, and put those of layers in the same context together; also the states by group."""
        alike: dict[Any, list[tuple[Tracked, Ids, Array]]] = {}
        for sent in sample.sums:
            for layer, piece_ids, pieces in sent.unpack():
                # All that a `StepContext` depends on: layers with the same key share one.
                key = (layer.group, sample.readings[layer.name])
                alike.setdefault(key, []).append((layer, *merge_pieces(piece_ids, pieces)))
        groups = []
        states: dict[int, list[LayerState]] = {}
        for (number, reading), members in alike.items():
            sums = members[0][2] if len(members) == 1 else np.concatenate([sums for _, _, sums in members], axis=1)
            if gap:
                sums[OLD] = 0.0  # the weights were last copied for what did not become a sample
            sign = -1.0 if sample.groups[number].get("maximize") else 1.0
            its_scale = scale if reading.scaled else 1.0
            context = StepContext(*settings[number], rules[number], reading, its_scale, sign)
            parts = []
            fan_in = np.empty(sums.shape[1])
            start = 0
            for layer, ids, _ in members:
                part = slice(start, start + len(ids))
                start = part.stop
                fan_in[part] = layer.fan_in
                keep = self.raw is not None and self.raw.search(layer.name) is not None
                parts.append(LayerPart(layer, ids, part, keep))
            vectors = VectorSums.of(sums, context, fan_in)
            for layer, _, part, _ in parts:
                norms = vectors.rms_norms(part)
                # A momentum that was made and never stepped with is zero.
                had_momentum = reading.had_momentum and bool(np.any(vectors.mm[part] > 0))
                state = LayerState(
                    layer.name, layer.fan_in, layer.vectors, tuple(layer.shape), *norms, had_momentum=had_momentum
                )
                states.setdefault(number, []).append(state)
            groups.append((vectors, parts))
        return groups, states


def stuck_text(step: int) -> str:
    """A note on a run that does not go on."""
    return (
        f"A GradScaler skips every step since step {step:,}, {STUCK} and more: gradients are inf or NaN at any scale. "
        "Look for weights, data or a loss that are not finite."
    )


def _settings(
    number: int, options: Mapping[str, Any], rates: Sequence[tuple[Sequence[Any], int]], skipped_steps: int
) -> GroupSettings:
    # A group that was not stepped has None, or stands beyond the end.
    of_group = [pairs[number] for pairs, _ in rates if number < len(pairs) and pairs[number] is not None]
    lr, weight_decay = of_group[-1] if of_group else (nan, nan)
    highest_lr = max((pair[0] for pair in of_group), default=nan)
    return GroupSettings(lr, weight_decay, _betas_of(options), highest_lr, skipped_steps)


def _numbers(pair: tuple[Any, Any] | None) -> tuple[float, float] | None:
    """Learning rate and weight decay, read from the device where they are on one."""
    return None if pair is None else (float(pair[0]), float(pair[1]))


def _betas_of(group: Mapping[str, Any]) -> tuple[float, float]:
    """Memories of a group's averages: betas, or (momentum, NaN); NaN where there is none.

    >>> _betas_of({"betas": (0.9, 0.999)}), _betas_of({"momentum": 0.9})
    ((0.9, 0.999), (0.9, nan))
    """
    betas = tuple(group.get("betas") or (group.get("momentum"),))[:2]
    first, second = (nan if value is None else float(value) for value in (*betas, None, None)[:2])
    return first, second


def _without_skipped(history: RateHistory, skipped: int, last: bool) -> RateHistory:
    """The rates of the steps that were taken: without the latest ones, and with the last step unless it is `last`."""
    if not skipped:
        return history
    # Which of the earlier steps were skipped is not known, only how many; their rates hardly differ.
    rates, steps = history[-1]
    kept = [*history[:-1], (rates, steps - 1 if not last else steps)]
    while skipped and kept:
        pairs, count = kept.pop()
        if count > skipped:
            kept.append((pairs, count - skipped))
        skipped = max(0, skipped - count)
    return kept if last else [*kept, (rates, 1)]
