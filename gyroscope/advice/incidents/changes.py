"""What changes from one sample to the next: settings, layers that freeze, and weights."""

from collections.abc import Iterator

import numpy as np

from gyroscope._types import Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.samples import Cause, Incident, Samples, jumped, previous

# Samples that must be known before a sample is judged.
EARLY = limit.EARLY_LEVEL + limit.EARLY_SAMPLES
# Causes and the settings that they are about. 1 - β is what counts of a β.
SETTINGS: tuple[tuple[Cause, str], ...] = (("weight_decay", "weight_decay"), ("betas", "beta1"), ("betas", "beta2"))


def changes(samples: Samples) -> list[Incident]:
    """Return the settings, gradients and weights that changed, each sample for itself."""
    return [*_raised_rates(samples), *_settings(samples), *_frozen(samples), *_weights(samples), *_not_finite(samples)]


def _raised_rates(samples: Samples) -> Iterator[Incident]:
    """Yield rates above all earlier ones or above their neighbours. Restarts of a schedule are neither.

    No milestone of a schedule raises the rate. A linear warmup raises it by at most the ratio of the steps.
    """
    lr = samples["lr"]
    highest = samples.highest_lr
    steps = samples.steps[:, None]
    jump = samples["lr_jump_step"]
    known = np.isfinite(samples["lr_before_jump"])
    before = np.where(known, samples["lr_before_jump"], previous(lr))
    growth = np.where(known, jump + 1, steps + 1) / np.fmax(np.where(known, jump - 1, previous(steps)), 1)
    peak = np.fmax(previous(np.fmax.accumulate(highest)), samples.peak)
    raised = highest > limit.SETTING_JUMP * growth * np.fmax(before, np.minimum(lr, peak))
    after = np.roll(lr, -1, axis=0)
    growth_after = np.roll(steps + 1, -1, axis=0) / np.fmax(steps, 1)
    returned = highest > limit.SETTING_JUMP * np.fmax(growth, growth_after) * np.fmax(before, after)
    returned[-1:] = False  # nothing is known of the next sample
    for row in _rows(samples, raised | returned):
        layer = int((raised | returned)[row].argmax())
        evidence = {
            "before": float(before[row, layer]),
            "highest": float(highest[row, layer]),
            "after": float((after if returned[row, layer] else lr)[row, layer]),
            "factor": float(highest[row, layer] / before[row, layer]),
        }
        since, step = _steps(samples, row, jump[row, layer])
        names = samples.named((raised | returned)[row])
        yield Incident("lr", since, step, int(samples.steps[row]), names, "the learning rate", evidence)


def _settings(samples: Samples) -> Iterator[Incident]:
    """Yield jumps of weight decay and betas. What moves with the learning rate is part of the schedule."""
    for cause, name in SETTINGS:
        now = samples[name]
        before = previous(now)
        if cause == "betas":
            changed = jumped(1 - now, 1 - before)
        else:
            with_rate = limit.MAX_RATE_POWER * np.abs(np.log(samples["lr"] / previous(samples["lr"])))
            changed = jumped(now, before) & ~(np.abs(np.log(now / before)) <= with_rate)
        for row in _rows(samples, changed):
            layer = int(changed[row].argmax())
            evidence = {f"{name}_before": float(before[row, layer]), f"{name}_after": float(now[row, layer])}
            since, step = _steps(samples, row, samples["setting_jump_step"][row, layer])
            end = int(samples.steps[row])
            yield Incident(cause, since, step, end, samples.named(changed[row]), "a setting", evidence)


def _rows(samples: Samples, mask: Mask) -> list[int]:
    """Return the rows in which a setting changed, without the first ones, because those of a warmup jump too."""
    skipped = max(1, limit.MIN_SAMPLES - samples.first)
    return [row for row in np.flatnonzero(mask.any(1)).tolist() if row >= skipped]


def _steps(samples: Samples, row: int, jump_step: float) -> tuple[int, int]:
    """Return the first step at which a jump can have begun, and the step at which it was seen."""
    return (int(jump_step), int(jump_step)) if np.isfinite(jump_step) else (samples.since(row), int(samples.steps[row]))


def _frozen(samples: Samples) -> Iterator[Incident]:
    """Yield layers that took part in every sample, then have no gradient in two in a row while others have one."""
    # A layer whose numbers are not finite has a gradient.
    moves = np.isfinite(samples["lr"]) & (samples["unit_grad_norm"] != 0)
    rows = np.arange(len(samples))
    last_without = np.maximum.accumulate(np.where(moves, -1, rows[:, None]), axis=0)
    alive = rows[:, None] - last_without  # samples in a row with a gradient
    required = np.clip(rows + samples.first, EARLY, limit.INCIDENT_LEVEL)
    for row in range(1, len(samples) - 1):
        still = ~moves[row] & ~moves[row + 1] & (alive[row - 1] >= required[row])
        if still.any() and (moves[row] & moves[row + 1]).any():
            step, end = samples.steps[row : row + 2].astype(int).tolist()
            yield Incident("frozen", samples.since(row), step, end, samples.named(still), "the layer")


def _weights(samples: Samples) -> Iterator[Incident]:
    """Yield layers whose norm or direction moved by more than all updates since the previous sample together."""
    norm, before = samples["norm"], previous(samples["norm"])
    steps = samples.steps[:, None] - previous(samples.steps[:, None])
    # The rate may have been higher at some of the steps in between.
    boost = np.fmax(samples.highest_lr / np.fmax(samples["lr"], previous(samples["lr"])), 1)
    # ‖w'‖ - ‖w‖ ≤ Σ‖d‖, and angles add up on the sphere. Training cannot exceed these bounds.
    reach = steps * boost * np.fmax(samples["update_norm"], previous(samples["update_norm"])) / before
    arc = steps * boost * np.fmax(samples["angular_update"], previous(samples["angular_update"]))
    move = np.abs(norm / before - 1)
    turn = samples["accumulated_angle"]
    moved = move > np.fmax(limit.NORM_JUMP, reach)
    turned = turn > np.fmax(limit.TURN_JUMP, arc)
    for row in np.flatnonzero((moved | turned).any(1)).tolist():
        past = slice(max(0, row - limit.INCIDENT_MEMORY), row)
        if row < EARLY:
            moved[row] = turned[row] = False
            continue
        for values, changed in ((move, moved), (turn, turned)):
            usual = np.where((moved | turned)[past], np.nan, values[past] / steps[past])
            # A layer that was never measured has no past to compare with.
            changed[row] &= values[row] > limit.WEIGHTS_EXTREMES * steps[row] * np.fmax.reduce(usual)
        found = moved[row] | turned[row]
        if not found.any():
            continue
        layer = int(found.argmax())
        evidence = {
            "norm_before": float(before[row, layer]),
            "norm_after": float(norm[row, layer]),
            "explained": float(reach[row, layer]),
            "turn": float(turn[row, layer]),
        }
        step = int(samples.steps[row])
        yield Incident("weights", samples.since(row), step, step, samples.named(found), "the weights", evidence)


def _not_finite(samples: Samples) -> Iterator[Incident]:
    """Yield layers with a NaN or an infinity in weights or gradients."""
    lost = np.isfinite(samples["lr"]) & np.isnan(samples["unit_grad_norm"])
    for row in np.flatnonzero(lost.any(1)).tolist():
        step = int(samples.steps[row])
        yield Incident("not_finite", samples.since(row), step, step, samples.named(lost[row]), "the layer")
