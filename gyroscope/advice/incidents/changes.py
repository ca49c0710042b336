"""What changes from one sample to the next: settings, layers that freeze, weights, and steps that were skipped."""

from collections import deque
from collections.abc import Iterator
from math import inf, nan
from typing import final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.layer_values import Cause, Incident, LayerValues, jumped

# Samples of the early stage. A layer with fewer samples is not judged.
EARLY = limit.EARLY_LEVEL + limit.EARLY_SAMPLES


@final
class Settings:
    """Learning rate, weight decay and betas. A jump from one sample to the next is not part of a schedule."""

    def __init__(self) -> None:
        self._count = 0
        self._peak: Array | float = nan
        self._samples: deque[LayerValues] = deque(maxlen=2)

    def update(self, now: LayerValues) -> Iterator[Incident]:
        """Yield the jumps that this sample shows."""
        if self._count >= limit.MIN_SAMPLES:  # the first steps of a warmup jump too
            before = self._samples[-1]
            yield from self._lr(now, before)
            changed = jumped(now["weight_decay"], before["weight_decay"])
            # A setting that moves with the learning rate, such as the decay of AdamC, is part of the schedule.
            changed &= ~jumped(now["lr"], before["lr"], limit.MAX_SMOOTH_FACTOR)
            if changed.any():
                yield _change("weight_decay", now, before, changed, "weight_decay")
            for name in ("beta1", "beta2"):
                changed = jumped(1 - now[name], 1 - before[name])
                if changed.any():
                    yield _change("betas", now, before, changed, name)
        self._count += 1
        self._peak = np.fmax(self._peak, now.highest_lr)
        self._samples.append(now)

    def _lr(self, now: LayerValues, before: LayerValues) -> Iterator[Incident]:
        """Yield a rate that is above all earlier ones or above its neighbours. Restarts of a schedule are neither.

        No milestone of a schedule raises the rate. A linear warmup raises it by at most the ratio of the steps.
        """
        factor, rate = _expected(now, before)
        highest = now.highest_lr
        raised = highest > factor * np.fmax(rate, now["lr"])
        raised |= highest > factor * np.fmax(rate, self._peak)
        if raised.any():
            yield _raised(now, before, now, raised)
        factor, rate = _expected(before, self._samples[0])
        factor = np.fmax(factor, limit.SETTING_JUMP * (now.step + 1) / max(before.step, 1))
        returned = before.highest_lr > factor * np.fmax(rate, now["lr"])
        if returned.any():
            yield _raised(before, self._samples[0], now, returned)


def _expected(now: LayerValues, before: LayerValues) -> tuple[Array, Array]:
    """Return the factor beyond which a rate has jumped, and the previous rate (of the previous step if known)."""
    first = np.where(np.isfinite(now["lr_jump_step"]), now["lr_jump_step"], now.step)
    last = np.where(np.isfinite(now["lr_jump_step"]), now["lr_jump_step"] - 1, before.step)
    rate = np.where(np.isfinite(now["lr_before_jump"]), now["lr_before_jump"], before["lr"])
    return limit.SETTING_JUMP * (first + 1) / np.fmax(last, 1), rate


def _raised(at: LayerValues, before: LayerValues, after: LayerValues, mask: Mask) -> Incident:
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
    return Incident("lr", since, step, at.step, at.named(mask), "the learning rate", evidence)


def _change(cause: Cause, now: LayerValues, before: LayerValues, mask: Mask, name: str) -> Incident:
    layer = int(mask.argmax())
    evidence = {f"{name}_before": float(before[name][layer]), f"{name}_after": float(now[name][layer])}
    since, step = _steps(before, now, now["setting_jump_step"][layer])
    return Incident(cause, since, step, now.step, now.named(mask), "a setting", evidence)


def _steps(before: LayerValues, now: LayerValues, jump_step: float) -> tuple[int, int]:
    """Return the first step at which a jump can have begun, and the step at which it was seen."""
    return (int(jump_step), int(jump_step)) if np.isfinite(jump_step) else (before.step + 1, now.step)


@final
class Frozen:
    """Layers that took part in every sample, then have no gradient in two in a row while other layers have one."""

    def __init__(self) -> None:
        self._alive: Array | float = 0.0  # samples in a row with a gradient, up to the last but one
        self._samples = 0

    def update(self, now: LayerValues, last: LayerValues) -> Incident | None:
        """Return the layers that had their last gradient before the previous sample."""
        moves = _has_gradient(last)
        # All earlier samples. There must be some.
        required = min(max(self._samples, EARLY), limit.INCIDENT_LEVEL)
        still = ~moves & ~_has_gradient(now) & (self._alive >= required)
        others = moves & _has_gradient(now)
        self._alive = np.where(moves, self._alive + 1, 0)
        self._samples += 1
        if not still.any() or not others.any():
            return None
        return Incident("frozen", last.since, last.step, now.step, now.named(still), "the layer")


def _has_gradient(values: LayerValues) -> Mask:
    # A layer whose numbers are not finite has a gradient.
    return np.asarray(values.present & (values["unit_grad_norm"] != 0))


@final
class WeightJumps:
    """Norms and directions that move by more than all updates since the last sample together."""

    def __init__(self) -> None:
        self._moves: deque[Array] = deque(maxlen=limit.INCIDENT_MEMORY)
        self._turns: deque[Array] = deque(maxlen=limit.INCIDENT_MEMORY)

    def update(self, now: LayerValues, last: LayerValues) -> Incident | None:
        """Return the layers whose weights were modified outside the optimizer since the last sample."""
        steps = now.spacing
        # The rate may have been higher at some of the steps in between.
        boost = np.fmax(now.highest_lr / np.fmax(now["lr"], last["lr"]), 1)
        move = np.abs(now["norm"] / last["norm"] - 1)
        # ‖w'‖ - ‖w‖ ≤ Σ‖d‖, and angles add up on the sphere. Training cannot exceed these bounds.
        reach = steps * boost * np.fmax(now["update_norm"], last["update_norm"]) / last["norm"]
        turn = now["accumulated_angle"]
        arc = steps * boost * np.fmax(now["angular_update"], last["angular_update"])
        usual = limit.WEIGHTS_EXTREMES * steps
        moved = move > np.fmax(limit.NORM_JUMP, reach)
        turned = turn > np.fmax(limit.TURN_JUMP, arc)
        # The threshold takes long to find, and most samples do not need it.
        if moved.any():
            moved &= move > usual * _largest(self._moves)
        if turned.any():
            turned &= turn > usual * _largest(self._turns)
        changed = moved | turned
        self._moves.append(np.where(changed, nan, move / steps))
        self._turns.append(np.where(changed, nan, turn / steps))
        if not changed.any():
            return None
        layer = int(changed.argmax())
        evidence = {
            "norm_before": float(last["norm"][layer]),
            "norm_after": float(now["norm"][layer]),
            "explained": float(reach[layer]),
            "turn": float(turn[layer]),
        }
        return Incident("weights", now.since, now.step, now.step, now.named(changed), "the weights", evidence)


def _largest(past: deque[Array]) -> Array | float:
    """Return the largest value of each layer over the past samples, infinite if there are too few to judge."""
    if len(past) < EARLY:
        return inf
    # A layer that was never measured has no past to compare with.
    largest = np.fmax.reduce(list(past))
    return np.where(np.isnan(largest), inf, largest)


def not_finite(now: LayerValues) -> Incident | None:
    """Return the layers with a NaN or an infinity in weights or gradients."""
    lost = now.present & np.isnan(now["unit_grad_norm"])
    return Incident("not_finite", now.since, now.step, now.step, now.named(lost), "the layer") if lost.any() else None


@final
class Skipped:
    """Steps that a GradScaler skipped, if there are more than its search for a scale needs."""

    def __init__(self) -> None:
        self._count = 0
        # For each of the latest samples: steps skipped and steps taken since the previous sample.
        self._past: deque[tuple[float, int]] = deque(maxlen=limit.INCIDENT_LEVEL)

    def update(self, now: LayerValues) -> Incident | None:
        """Return the skipped steps if there are too many since the last sample or within the latest samples."""
        taken = now.spacing
        known = now["skipped_steps"][np.isfinite(now["skipped_steps"])]
        skipped = float(known.max()) if known.size else 0.0
        self._count += 1
        # The first scale is far too high on purpose.
        if self._count <= limit.MIN_SAMPLES:
            return None
        self._past.append((skipped, taken))
        if not skipped:
            return None
        if not _too_many(skipped, taken):
            first = next(number for number, (before, _) in enumerate(self._past) if before)
            together = list(self._past)[first:]
            skipped = sum(before for before, _ in together)
            taken = sum(steps for _, steps in together)
            if not _too_many(skipped, taken):
                return None
        evidence = {"skipped": skipped, "tried": skipped + taken}
        return Incident("skipped", now.step - taken + 1, now.step, now.step, (), "the gradients", evidence)


def _too_many(skipped: float, taken: int) -> bool:
    """Return whether there are more skipped steps than a scaler's search needs."""
    return skipped > limit.SKIPPED_STEPS + limit.SKIPPED_SHARE * taken
