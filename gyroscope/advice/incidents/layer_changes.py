"""Layers that freeze, whose weights something else changes, or that are not finite; steps that were skipped."""

from collections import deque
from math import inf, nan
from typing import final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.layer_values import Detected, LayerValues, layer_numbers

# Samples of the early stage: no layer is judged by fewer.
EARLY = limit.EARLY_LEVEL + limit.EARLY_SAMPLES


@final
class Frozen:
    """Layers that took part in every sample, and have no gradient in two in a row while others have."""

    def __init__(self) -> None:
        self._alive: Array | float = 0.0  # samples in a row with a gradient, up to the last but one
        self._last: LayerValues | None = None
        self._before = -1
        self._samples = 0

    def update(self, now: LayerValues) -> Detected | None:
        """Return the layers that had their last gradient before the previous sample."""
        last = self._last
        self._last = now
        if last is None:
            return None
        moves = _has_gradient(last)
        # All samples before, of which there must be some.
        required = min(max(self._samples, EARLY), limit.INCIDENT_LEVEL)
        still = ~moves & ~_has_gradient(now) & (self._alive >= required)
        others = moves & _has_gradient(now)
        self._alive = np.where(moves, self._alive + 1, 0)
        self._samples += 1
        since = self._before + 1
        self._before = last.step
        if not still.any() or not others.any():
            return None
        return Detected(since, last.step, now.step, layer_numbers(still), "the layer")


def _has_gradient(values: LayerValues) -> Mask:
    # A layer whose numbers are not finite has one.
    return np.asarray(values.present & (values["unit_grad_norm"] != 0))


@final
class WeightJumps:
    """Norms and directions that move by more than all updates since the last sample together."""

    def __init__(self) -> None:
        self._last: LayerValues | None = None
        self._moves: deque[Array] = deque(maxlen=limit.INCIDENT_MEMORY)
        self._turns: deque[Array] = deque(maxlen=limit.INCIDENT_MEMORY)

    def update(self, now: LayerValues) -> Detected | None:
        """Return the layers whose weights were modified outside the optimizer since the last sample."""
        last = self._last
        self._last = now
        if last is None:
            return None
        steps = now.step - last.step
        # A rate that was higher for some of the steps between.
        boost = np.fmax(now.highest_lr / np.fmax(now["lr"], last["lr"]), 1)
        move = np.abs(now["norm"] / last["norm"] - 1)
        # ‖w'‖ - ‖w‖ ≤ Σ‖d‖, and angles add up on the sphere: no training goes beyond.
        reach = steps * boost * np.fmax(now["update_norm"], last["update_norm"]) / last["norm"]
        turn = now["accumulated_angle"]
        arc = steps * boost * np.fmax(now["angular_update"], last["angular_update"])
        usual = limit.WEIGHTS_EXTREMES * steps
        moved = move > np.fmax(limit.NORM_JUMP, reach)
        turned = turn > np.fmax(limit.TURN_JUMP, arc)
        # What the past allows takes longer to find than most samples need.
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
        return Detected(last.step + 1, now.step, now.step, layer_numbers(changed), "the weights", evidence)


def _largest(past: deque[Array]) -> Array | float:
    """Return the largest value of each layer over the past samples, infinite if they are too few to judge by."""
    if len(past) < EARLY:
        return inf
    # A layer that was never measured has no past to compare with.
    largest = np.fmax.reduce(list(past))
    return np.where(np.isnan(largest), inf, largest)


@final
class NotFinite:
    """Layers with a NaN or an infinity in weights or gradients."""

    def __init__(self) -> None:
        self._last_step = -1

    def update(self, now: LayerValues) -> Detected | None:
        """Return the layers that are not finite in this sample."""
        since = self._last_step + 1
        self._last_step = now.step
        lost = now.present & np.isnan(now["unit_grad_norm"])
        return Detected(since, now.step, now.step, layer_numbers(lost), "the layer") if lost.any() else None


@final
class Skipped:
    """Steps that a GradScaler skipped, where they are more than it takes to find its scale."""

    def __init__(self) -> None:
        self._count = 0
        self._last_step = -1
        # Of each of the latest samples: steps that were skipped since the one before it, and steps that were taken.
        self._past: deque[tuple[float, int]] = deque(maxlen=limit.INCIDENT_LEVEL)

    def update(self, now: LayerValues) -> Detected | None:
        """Return the skipped steps if they are too many since the last sample, or within the latest samples."""
        taken = now.step - self._last_step
        self._last_step = now.step
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
        return Detected(now.step - taken + 1, now.step, now.step, (), "the gradients", evidence)


def _too_many(skipped: float, taken: int) -> bool:
    """Return whether so many skipped steps among those taken are more than a scaler's search."""
    return skipped > limit.SKIPPED_STEPS + limit.SKIPPED_SHARE * taken
