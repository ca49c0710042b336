"""The sums of a step become a sample: compared with theory and summarised, in a separate thread."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, final

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from gyroscope._types import Array
from gyroscope.advice.judgements.unknown import NO_PREDICTIONS
from gyroscope.advice.thresholds import SETTING_JUMP
from gyroscope.measure._pipeline.host_copy import HostCopy, SentSums, merge_pieces
from gyroscope.measure._pipeline.layer_step import OLD
from gyroscope.measure._pipeline.layers import Ids, Layer
from gyroscope.measure._pipeline.optimizers import GroupRule, LayerReading, StepContext, StepSettings
from gyroscope.measure._pipeline.prediction import Forecaster, LayerState, StepRates
from gyroscope.measure._pipeline.settings_history import GroupSettings, SettingsHistory
from gyroscope.measure._pipeline.statistics import LayerPart, forget_step, summarise
from gyroscope.measure.quantities import StepPrediction, VectorSums
from gyroscope.optim.torch_rules import follows_base, keeps_norms, rule_of
from gyroscope.optimizers import Rules
from gyroscope.store import LayerSample

# Layers of one parameter group that were read in the same way. Their vectors are concatenated.
LayerGroup = tuple[VectorSums, list[LayerPart], list[LayerState]]
# Measured steps skipped in a row after which a run is stuck. The scale has then fallen by a factor of a million.
STUCK_AFTER_SKIPS = 20


@final
@dataclass(frozen=True)
class RawSample:
    """A sample as it leaves the training thread.

    step, time: number of the step, and Unix seconds.
    owners, groups: by number of each group the optimizer that stepped it last, and its options then.
    sums, readings: the sums of each layer, and how they were made.
    history: settings of every step since the last sample.
    scaler: whether the step was skipped, and the gradients' scale. None without a GradScaler.
    gap: the sample before this one was lost, so the last copy of the weights is not that sample's.
    is_end: it measures no step, only the weights at the end of the run.
    """

    step: int
    time: float
    owners: Sequence[Optimizer]
    groups: Mapping[int, Mapping[str, Any]]
    sums: Sequence[SentSums]
    readings: Mapping[str, LayerReading]
    history: SettingsHistory
    scaler: HostCopy | None = None
    gap: bool = False
    is_end: bool = False


@final
class SampleProcessor:
    """Processes samples in their order, and follows the predictions from one to the next."""

    def __init__(self, note: Callable[[str], None], raw: re.Pattern[str] | None, rules: Rules | None) -> None:
        self.note = note
        self.raw = raw
        self._user_rules = rules
        self._forecasters: dict[int, Forecaster] = {}
        self._rules: dict[int, tuple[Mapping[str, Any], GroupRule | None]] = {}
        self._reasons: set[str] = set()
        self._passed: SettingsHistory = []  # settings of steps that no forecast includes yet
        self._last: dict[int, GroupSettings] = {}
        self._skipped = 0  # samples that were dropped since the last one that was not
        self._first_step: int | None = None  # above 0 in a run that was resumed

    def process(self, sample: RawSample) -> dict[str, LayerSample] | None:
        """Return the sample of each layer, or None if a GradScaler skipped the step."""
        if self._first_step is None:
            self._first_step = sample.step
        found_inf, scale = (0.0, 1.0) if sample.scaler is None else sample.scaler.wait().tolist()
        # Weights that were copied for a step without a sample are not those of the previous sample.
        gap = sample.gap or self._skipped > 0
        self._passed = [*self._passed, *sample.history]
        if found_inf:
            self._skip(sample.step)
            return None
        history = _on_host(self._passed)
        self._passed = []
        layers: dict[str, LayerSample] = {}
        contexts = {
            number: (self._settings(number, history, sample.step), self._rule(sample, number))
            for number in sample.groups
        }
        for number, groups in self._groups(sample, contexts, scale, gap).items():
            states = [state for _, _, states in groups for state in states]
            predictions = self._predict(number, contexts[number][1], history, states)
            for vectors, parts, _ in groups:
                layers |= summarise(vectors, parts, predictions)
        self._skipped = 0
        if sample.is_end:
            for layer in layers.values():
                forget_step(layer)
        return layers

    def _skip(self, step: int) -> None:
        # No forecast includes a step that was not taken.
        groups, steps = self._passed.pop()
        self._passed += [(groups, steps - 1)] if steps > 1 else []
        self._skipped += 1
        if self._skipped == STUCK_AFTER_SKIPS:
            self.note(
                f"A GradScaler has skipped {STUCK_AFTER_SKIPS} measured steps in a row, the last one step {step:,}. "
                "Gradients are inf or NaN at any scale. Look for weights, data or a loss that are not finite."
            )

    def _rule(self, sample: RawSample, number: int) -> GroupRule | None:
        """Return the theory's rule of a group, that of the last sample if no option has changed."""
        options = sample.groups[number]
        known = self._rules.get(number)
        # Tensors (lr may be one) are not compared, because `==` on them is not a truth value and may wait for a device.
        comparable = not any(isinstance(value, Tensor) for value in options.values())
        if known is not None and comparable and known[0] == options:
            return known[1]
        group_rule: GroupRule | None = None
        try:
            owner = sample.owners[number]
            rule = rule_of(options, owner, self._user_rules)
            if rule.counts_steps:
                rule = rule.replace(steps_done=sample.step)
            follows = follows_base(owner)
            if follows and self._first_step:
                raise ValueError("the state of the base optimizer that it follows is unknown in the middle of a run")
            group_rule = GroupRule.of(rule, options, keeps_norms(owner), follows)
        except ValueError as error:
            self._note_without_rule(number, error)
        if comparable and not (group_rule is not None and group_rule.rule.counts_steps):
            self._rules[number] = (options, group_rule)
        return group_rule

    def _note_without_rule(self, number: int, error: ValueError) -> None:
        """Note why a group has no predictions, once for all groups with the same reason."""
        if str(error) not in self._reasons:
            self._reasons.add(str(error))
            self.note(f"{NO_PREDICTIONS}{number}: {error}")

    def _settings(self, number: int, history: SettingsHistory, last_step: int) -> StepSettings:
        """Return the last settings of a group, and their changes since the previous sample."""
        # A group that was not stepped has None, or is beyond the end of the list.
        groups = [(groups[number] if number < len(groups) else None, steps) for groups, steps in history]
        stepped = [group for group, _ in groups if group is not None]
        jumps = setting_jumps(groups, self._last.get(number), last_step)
        if stepped:
            self._last[number] = stepped[-1]
        last = self._last.get(number, GroupSettings(nan, nan, nan, nan))
        highest_lr = max((group.lr for group in stepped), default=nan)
        return StepSettings(*last, highest_lr, self._skipped, *jumps)

    def _predict(
        self, number: int, rule: GroupRule | None, history: SettingsHistory, layers: list[LayerState]
    ) -> dict[str, StepPrediction]:
        """Return the predictions of all layers of a group. If theory has none, a note gives the reason."""
        if rule is None:
            return {}
        of_group = [(groups[number], steps) for groups, steps in history if number < len(groups)]
        # Without the steps that only another optimizer took.
        rates = [StepRates(own.lr, own.weight_decay, steps) for own, steps in of_group if own is not None]
        try:
            return self._forecasters.setdefault(number, Forecaster()).predict(rule, rates, layers)
        except ValueError as error:
            self._note_without_rule(number, error)
            return {}

    def _groups(
        self,
        sample: RawSample,
        contexts: Mapping[int, tuple[StepSettings, GroupRule | None]],
        scale: float,
        gap: bool,
    ) -> dict[int, list[LayerGroup]]:
        """Wait for the sums. Concatenate, by group, those of layers that were read in the same way."""
        alike: dict[tuple[int, LayerReading], list[tuple[Layer, Ids, Array]]] = {}
        for sent in sample.sums:
            for layer, piece_ids, pieces in sent.unpack():
                key = (layer.group, sample.readings[layer.name])
                if len(piece_ids):  # none if the only process that has some failed
                    alike.setdefault(key, []).append((layer, *merge_pieces(piece_ids, pieces)))
        groups: dict[int, list[LayerGroup]] = {}
        for (number, reading), members in alike.items():
            sums = members[0][2] if len(members) == 1 else np.concatenate([sums for _, _, sums in members], axis=1)
            if gap:
                sums[OLD] = 0.0  # the weights were last copied for a step that did not become a sample
            sign = -1.0 if sample.groups[number].get("maximize") else 1.0
            context = StepContext(*contexts[number], reading, scale if reading.scaled else 1.0, sign)
            counts = np.array([len(ids) for _, ids, _ in members])
            fan_in = np.array([layer.fan_in for layer, _, _ in members])
            vectors = VectorSums.of(sums, context, counts, fan_in)
            # A momentum that was created but never used in a step is zero.
            had_momentum = (reading.had_momentum & (vectors.by_layer(vectors.mm > 0) > 0)).tolist()
            norms = zip(*(norms.tolist() for norms in vectors.rms_norms()), had_momentum, strict=True)
            parts = []
            states = []
            for (layer, ids, _), stop, state in zip(members, np.cumsum(counts).tolist(), norms, strict=True):
                keep = self.raw is not None and self.raw.search(layer.name) is not None
                parts.append(LayerPart(layer, ids, slice(stop - len(ids), stop), keep))
                states.append(LayerState(layer.name, layer.fan_in, tuple(layer.shape), *state))
            groups.setdefault(number, []).append((vectors, parts, states))
        return groups


def _on_host(history: SettingsHistory) -> SettingsHistory:
    """Return the settings as numbers, read from the device if they are on one."""
    return [
        ([None if group is None else GroupSettings(*map(float, group)) for group in groups], steps)
        for groups, steps in history
    ]


def setting_jumps(
    history: Sequence[tuple[GroupSettings | None, int]], before: GroupSettings | None, last_step: int
) -> tuple[float, float, float]:
    """Return the first step at which the learning rate jumps up, the rate before it, and the first jump of others.

    Arguments:
        history: settings of consecutive steps with their number, None if the group was not stepped
        before: settings of the step before them, None if there was none
        last_step: number of the last of them

    NaN without a jump.

    >>> normal, raised = GroupSettings(0.1, 0.0, 0.9, nan), GroupSettings(1.0, 0.0, 0.9, nan)
    >>> setting_jumps([(normal, 3), (raised, 2), (normal, 5)], normal, last_step=20)
    (14.0, 0.1, nan)
    """
    lr_step = lr_before = other_step = nan
    step = last_step + 1 - sum(steps for _, steps in history)
    for now, steps in history:
        if now is not None and before is not None:
            if lr_step != lr_step and now.lr > SETTING_JUMP * before.lr:
                lr_step = float(step)
                lr_before = before.lr
            if other_step != other_step and _has_jumped(now, before):
                other_step = float(step)
        before = now or before
        step += steps
    return lr_step, lr_before, other_step


def _has_jumped(now: GroupSettings, before: GroupSettings) -> bool:
    """Return whether the weight decay or 1 - β has changed by more than a factor."""
    pairs = (
        (now.weight_decay, before.weight_decay),
        (1 - now.beta1, 1 - before.beta1),
        (1 - now.beta2, 1 - before.beta2),
    )
    return any(a > SETTING_JUMP * b or b > SETTING_JUMP * a for a, b in pairs)
