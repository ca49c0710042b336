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
        """Yield the jumps that this sample shows."""
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
        """Yield a rate above all earlier ones, or above its neighbours. Restarts of a schedule are neither.

        No milestone of a schedule raises the rate, and a linear warmup not by more than the ratio of the steps.
        """
        factor, rate = _expected(now, before)
        highest = now.highest_lr
        raised = highest > factor * np.fmax(rate, now["lr"])
        raised |= highest > factor * np.fmax(rate, self._peak)
        if raised.any():
            yield "lr", _raised(now, before, now, raised)
        factor, rate = _expected(before, self._samples[0])
        factor = np.fmax(factor, limit.SETTING_JUMP * (now.step + 1) / max(before.step, 1))
        returned = before.highest_lr > factor * np.fmax(rate, now["lr"])
        if returned.any():
            yield "lr", _raised(before, self._samples[0], now, returned)


def _expected(now: LayerValues, before: LayerValues) -> tuple[Array, Array]:
    """Return the factor beyond which a rate has jumped, and the rate before: of the step before it if that is known."""
    first = np.where(np.isfinite(now["lr_jump_step"]), now["lr_jump_step"], now.step)
    last = np.where(np.isfinite(now["lr_jump_step"]), now["lr_jump_step"] - 1, before.step)
    rate = np.where(np.isfinite(now["lr_before_jump"]), now["lr_before_jump"], before["lr"])
    return limit.SETTING_JUMP * (first + 1) / np.fmax(last, 1), rate


def _raised(at: LayerValues, before: LayerValues, after: LayerValues, mask: Mask) -> Detected:
    layer = int(mask.argmax())
    known = np.isfinite(at["lr_before_jump"][layer])
    rate = float((at["lr_before_jump"] if known else before["lr"])[layer])
    evidence = {
        "before": rate,
        "highest": float(at.highest_lr[layer]),
        "after": float(after["lr"][layer]),
        "factor": float(at.highest_lr[layer] / rate),
    }
    since, step = _steps(before, at, at["lr_jump_step"][layer])
    return Detected(since, step, at.step, layer_numbers(mask), "the learning rate", evidence)


def _change(now: LayerValues, before: LayerValues, mask: Mask, name: str) -> Detected:
    layer = int(mask.argmax())
    evidence = {f"{name}_before": float(before[name][layer]), f"{name}_after": float(now[name][layer])}
    since, step = _steps(before, now, now["setting_jump_step"][layer])
    return Detected(since, step, now.step, layer_numbers(mask), "a setting", evidence)


def _steps(before: LayerValues, now: LayerValues, jump_step: float) -> tuple[int, int]:
    """Return the first step at which a jump can have begun, and the step at which it was seen: one step if known."""
    return (int(jump_step), int(jump_step)) if np.isfinite(jump_step) else (before.step + 1, now.step)
