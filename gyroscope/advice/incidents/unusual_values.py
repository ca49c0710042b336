"""Losses, gradients and updates beyond what their own past allows."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, nan
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.baseline import LOSS_STAGES, SAMPLE_STAGES, Baseline, LayerBaselines
from gyroscope.advice.incidents.layer_values import Incident, LayerValues, jumped
from gyroscope.advice.layer_families import FUSED_PART

# Logarithms of the quantities that a too large gradient changes in a layer, and the smallest deviation of each that
# counts, over most layers.
FLOORS = {
    "gradient": limit.INCIDENT_FLOOR,
    "update": limit.INCIDENT_FLOOR,
    "denominator": limit.DENOMINATOR_FLOOR,
}
# The same for one layer alone: from its past, and from the other layers. Momentum keeps only part of a gradient between
# samples, and small updates of all layers can hide that part, so updates need less distance from their past.
LAYER_FLOORS = {
    "gradient": (limit.LAYER_FLOOR, limit.LAYER_FLOOR),
    "update": (limit.INCIDENT_FLOOR, limit.LAYER_FLOOR),
    "denominator": (limit.LAYER_DENOMINATOR_FLOOR, limit.LAYER_DENOMINATOR_FLOOR),
}
# Deviations of one layer that must be known. In the first steps denominators grow fast, in some layers more than in
# others.
NEEDED = {
    "gradient": limit.EARLY_SAMPLES,
    "update": limit.EARLY_SAMPLES,
    "denominator": limit.INCIDENT_LEVEL,
}
# Growth of the spacing between samples from which they count as rarer than before.
WIDER = 2


@final
@dataclass(frozen=True)
class Loss:
    """A logged loss in logarithms: the first one from step `since` on, and its deviation from the usual."""

    since: int
    step: int
    value: float
    deviation: float
    is_usual: bool


@final
class Losses:
    """Logged losses beyond what their own past allows: single ones, and jumps that last.

    Losses are known for every step, so they show an unusual batch best. A jump lasts if it raises most losses of a
    block. Single spikes do not, and they do not hide a jump. A loss becomes part of the past one block later, unless a
    jump has begun by then, because a jump must not raise the threshold for the next one.
    """

    def __init__(self) -> None:
        self.judged_from: int | None = None
        """First step whose loss was judged."""
        self._last_step = -1
        self._begin()

    def _begin(self) -> None:
        self._baseline = Baseline(LOSS_STAGES, limit.LOSS_FLOOR, fall=log(limit.MIN_FALL))
        self._block: list[Loss] = []
        self._block_before: list[Loss] = []
        self._blocks_of_jump = 0
        # The largest deviation from which training is still recovering, and the usual blocks until it has recovered.
        self._peak = 0.0
        self._recovery = 0

    @property
    def is_judging(self) -> bool:
        """Whether enough losses were logged to judge others by."""
        return self._baseline.is_judging

    @property
    def has_jumped(self) -> bool:
        """Whether the losses have not come down from a jump yet."""
        return self._blocks_of_jump > 0

    def update(
        self, steps: Array, losses: Array, *, lr_rose: bool = False, is_restart: bool = False
    ) -> Incident | None:
        """Return what is unusual among the losses since the last sample.

        lr_rose     the learning rate explains a jump
        is_restart  the schedule was restarted, so the losses that follow count as usual
        """
        single: list[Loss] = []
        lasting: list[Loss] = []
        for step, loss in zip(steps.astype(int).tolist(), losses.tolist(), strict=True):
            # A loss that is not positive has no logarithm, and is not judged.
            value = log(loss) if 0 < loss < inf else nan
            if self.judged_from is None and self.is_judging:
                self.judged_from = step
            excess = self._baseline.judge(value)
            is_usual = excess == 0 or is_restart
            logged = Loss(self._last_step + 1, step, value, value - self._baseline.level, is_usual)
            self._last_step = step
            if excess > 0:
                single.append(logged)
                self._peak = max(self._peak, excess)
                self._recovery = max(self._recovery, limit.RECOVERED_BLOCKS)
            if isfinite(value):
                self._block.append(logged)
            if len(self._block) == limit.LOSSES_PER_BLOCK:
                lasting += self._finish_block(lr_rose)
        unusual = sorted([*single, *lasting], key=lambda each: each.step)
        if not unusual:
            return None
        evidence = {"loss": exp(max(each.deviation for each in unusual))}
        if lasting:
            evidence["lasting"] = exp(float(np.median([each.deviation for each in lasting])))
        first, last = unusual[0], unusual[-1]
        return Incident("batches", first.since, first.step, last.step, (), "the loss", evidence)

    def _finish_block(self, lr_rose: bool) -> list[Loss]:
        """Return the losses of a lasting jump, or none if there is no such jump."""
        before, block = self._block_before, self._block
        self._block_before, self._block = block, []
        low = sorted(block, key=lambda each: each.value)[limit.LOSSES_BELOW_JUMP]
        if lr_rose or not self._baseline.is_jump(low.value):
            self._recover(before)
            return []
        # Neither this block nor the beginning of the jump in the one before it becomes part of the past.
        self._block_before = []
        self._recovery = limit.INCIDENT_LEVEL
        self._blocks_of_jump += 1
        if self._blocks_of_jump == limit.INCIDENT_LEVEL:  # a jump that lasts this long is the new level
            self._begin()
            return []
        if low.deviation <= limit.MIN_LASTING_SHARE * self._peak:
            return []
        self._peak = max(self._peak, low.deviation)
        # A jump begins where the sum of all later losses, relative to half its height, is largest.
        recent = [*before, *block]
        above = np.array([each.deviation - low.deviation / 2 for each in recent])
        begin = int(np.argmin(np.cumsum([0.0, *above])))
        end = int(np.flatnonzero(above > 0)[-1])
        return recent[begin : end + 1]

    def _recover(self, learned: list[Loss]) -> None:
        """End a block without a jump, and make the one before it part of the past."""
        for each in learned:
            if each.is_usual:
                self._baseline.learn(each.value)
        self._blocks_of_jump = 0
        self._recovery -= 1
        if self._recovery <= 0:
            self._peak = 0.0


@final
class Gradients:
    """Gradients, updates and Adam's denominators that are unusual for their past, in most layers at once or in one."""

    def __init__(self, layers: Sequence[str]) -> None:
        self._baselines = {name: Baseline(SAMPLE_STAGES, floor) for name, floor in FLOORS.items()}
        parameters = [FUSED_PART.sub("", name) for name in layers]
        self._of_layers = LayerBaselines(parameters, list(LAYER_FLOORS.values()), list(NEEDED.values()))
        self._spacing = 0
        self._past: deque[Array] = deque(maxlen=limit.INCIDENT_LEVEL)
        self._denominators: Array | float = nan
        self._lr: Array | float = nan

    @property
    def is_judging(self) -> bool:
        """Whether enough samples were taken to judge others by."""
        return self._baselines["gradient"].is_judging

    def update(self, now: LayerValues, *, is_first: bool) -> tuple[Incident | None, Incident | None]:
        """Return what is unusual in a sample: in most layers, and in a layer alone."""
        # η_e = lr/(‖w‖²·B). B grows between samples if one of the gradients between them was large.
        denominators = np.log(now["lr"] / (now["effective_lr"] * now["norm"] ** 2))
        series = {
            "gradient": np.log(now["unit_grad_norm"]),
            "update": np.log(now["tangential_update"] / now["lr"]),
            "denominator": denominators - self._denominators,
        }
        table = np.array(list(series.values()))
        table[~np.isfinite(table)] = nan
        series = dict(zip(series, table, strict=True))
        if jumped(now["lr"], self._lr, limit.MAX_SMOOTH_FACTOR).any():
            # The updates of some optimizers scale with another power of the learning rate.
            self._baselines["update"] = Baseline(SAMPLE_STAGES, FLOORS["update"])
        self._lr = now["lr"]
        self._denominators = denominators
        if not is_first:
            self._begin_at_wider_spacing(now.spacing)
        return self._of_most(now, series), self._of_one(now, table)

    def _begin_at_wider_spacing(self, steps: int) -> None:
        """Restart the early stage when samples become rarer, because more happens between them."""
        is_wider = 0 < WIDER * self._spacing <= steps
        if is_wider or not self._spacing:
            self._spacing = steps
        if not is_wider:
            return
        for baseline in self._baselines.values():
            baseline.begin_early()
        # The gradient of one layer is measured against those of the others, which change with it.
        self._of_layers.forget([name != "gradient" for name in LAYER_FLOORS])

    def _of_most(self, now: LayerValues, series: Mapping[str, Array]) -> Incident | None:
        """Return the layers that differ from their own past, the most unusual first."""
        excesses = {name: self._baselines[name].excess(_middle(values)) for name, values in series.items()}
        evidence = {name: exp(excess) for name, excess in excesses.items() if excess > 0}
        gradient = series["gradient"]
        if not evidence:
            self._past.append(gradient)
            return None
        deviations = gradient - np.array([_middle(layer) for layer in np.array(self._past).T])
        worst = np.argsort(-deviations)
        reached = tuple(now.layers[number] for number in worst if deviations[number] > limit.INCIDENT_FLOOR)
        return Incident("batches", now.since, now.step, now.step, reached, "the gradients", evidence)

    def _of_one(self, now: LayerValues, table: Array) -> Incident | None:
        """Return the layer that differs most from its own past, and from what the other layers do."""
        excesses = self._of_layers.excess(table)
        if not excesses.any():
            return None
        first = excesses[excesses.any(1).argmax()]
        layer = int(first.argmax())
        found = zip(LAYER_FLOORS, excesses[:, layer].tolist(), strict=True)
        evidence = {name: exp(excess) for name, excess in found if excess > 0}
        evidence["beta2"] = float(now["beta2"][layer])
        return Incident("layer_gradient", now.since, now.step, now.step, (now.layers[layer],), "the layer", evidence)


def _middle(values: Array) -> float:
    """Return the median over the layers that have a number."""
    known = np.sort(values[~np.isnan(values)])
    # NumPy's own median spends most of its time on checking its arguments.
    return float(known[(known.size - 1) // 2] + known[known.size // 2]) / 2 if known.size else nan
