"""Settings that jump: learning rate, weight decay and betas."""

from collections import deque
from collections.abc import Iterator
from math import nan
from typing import Literal, final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.layer_values import Detected, LayerValues, jumped, layer_numbers


@final
class Settings:
    """Learning rate, weight decay and betas: what jumps from one sample to the next was not the schedule."""

    def __init__(self) -> None:
        self._count = 0
        self._peak: Array | float = nan
        self._samples: deque[LayerValues] = deque(maxlen=2)

    def update(self, now: LayerValues) -> Iterator[tuple[Literal["lr", "weight_decay", "betas"], Detected]]:
        """Jumps that this sample shows."""
        if self._count >= limit.MIN_SAMPLES:  # the first steps of a warmup jump too
            before = self._samples[-1]
            yield from self._lr(now, before)
            changed = jumped(now["weight_decay"], before["weight_decay"])
            # What moves together with the learning rate, as the decay of AdamC, belongs to its schedule.
            changed &= ~jumped(now["lr"], before["lr"], limit.MAX_SMOOTH_FACTOR)
            if changed.any():
                yield "weight_decay", _change(now, before, changed, "weight_decay")
            for name in ("beta1", "beta2"):
                changed = jumped(1 - now[name], 1 - before[name])
                if changed.any():
                    yield "betas", _change(now, before, changed, name)
        self._count += 1
        self._peak = np.fmax(self._peak, now.highest_lr)
        self._samples.append(now)

    def _lr(self, now: LayerValues, before: LayerValues) -> Iterator[tuple[Literal["lr"], Detected]]:
        """A rate above all earlier ones, or above both that before and that after it: restarts of a schedule are not.

        No milestone of a schedule raises the rate, and a linear warmup not by more than the ratio of the steps.
        """
        factor = limit.SETTING_JUMP * (now.step + 1) / max(before.step, 1)
        highest = now.highest_lr
        raised = highest > factor * np.fmax(before["lr"], now["lr"])
        raised |= highest > factor * self._peak
        if raised.any():
            yield "lr", _raised(now, before, now, raised)
        earlier = self._samples[0]
        returned = before.highest_lr > factor * np.fmax(earlier["lr"], now["lr"])
        if returned.any():
            yield "lr", _raised(before, earlier, now, returned)


def _raised(at: LayerValues, before: LayerValues, after: LayerValues, mask: Mask) -> Detected:
    layer = int(mask.argmax())
    evidence = {
        "before": float(before["lr"][layer]),
        "highest": float(at.highest_lr[layer]),
        "after": float(after["lr"][layer]),
        "factor": float(at.highest_lr[layer] / before["lr"][layer]),
    }
    return Detected(before.step + 1, at.step, at.step, layer_numbers(mask), "the learning rate", evidence)


def _change(now: LayerValues, before: LayerValues, mask: Mask, name: str) -> Detected:
    layer = int(mask.argmax())
    evidence = {f"{name}_before": float(before[name][layer]), f"{name}_after": float(now[name][layer])}
    return Detected(before.step + 1, now.step, now.step, layer_numbers(mask), "a setting", evidence)
