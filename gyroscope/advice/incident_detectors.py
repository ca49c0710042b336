"""One detector for each kind of incident: what it remembers of past samples, and what the next one must not do."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, inf, log, nan
from typing import Literal, final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.baseline import Baseline, LayerBaselines

# What is read of each layer in a sample, as quantity and statistic.
SERIES = {
    "lr": "mean",
    "highest_lr": "mean",
    "weight_decay": "mean",
    "beta1": "mean",
    "beta2": "mean",
    "unit_grad_norm": "rms",
    "tangential_update": "rms",
    "effective_lr": "q50",
    "norm": "rms",
    "update_norm": "rms",
    "angular_update": "rms",
    "accumulated_angle": "rms",
    "skipped_steps": "mean",
}
# Learning rates of two samples within this factor are those of a smooth schedule.
ALIKE = 1.2


@final
@dataclass(frozen=True)
class Detected:
    """What a detector saw: `since`, `step` and `end` as an `Incident` has them, layers by their numbers."""

    since: int
    step: int
    end: int
    layers: tuple[int, ...]
    first: str
    evidence: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class LayerValues:
    """One sample: by the names of `SERIES` a number for each layer, NaN where there is none."""

    step: int
    values: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    @property
    def present(self) -> Mask:
        """Layers that took part in the step."""
        return np.isfinite(self["lr"])

    @property
    def highest_lr(self) -> Array:
        """Of the steps since the last sample; of this step where a run did not record it."""
        return np.fmax(self["highest_lr"], self["lr"])


def _numbers(mask: Mask) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def _largest(past: deque[Array]) -> Array | float:
    """Of each layer, over the past samples; infinite while they are too few to judge by."""
    if len(past) < limit.INCIDENT_LEVEL:
        return inf
    # A layer that was never measured has no past to compare with.
    largest = np.fmax.reduce(list(past))
    return np.where(np.isnan(largest), inf, largest)


@final
class Settings:
    """Learning rate, weight decay and betas: what jumps from one sample to the next was not the schedule."""

    def __init__(self) -> None:
        self._count = 0
        self._peak: Array | float = nan
        self._samples: deque[LayerValues] = deque(maxlen=2)

    def update(self, now: LayerValues) -> Iterator[tuple[Literal["lr", "weight_decay", "betas"], Detected]]:
        """Jumps that this sample shows."""
        if self._count >= limit.SAMPLES:  # the first steps of a warmup jump too
            before = self._samples[-1]
            yield from self._lr(now, before)
            changed = _jumped(now["weight_decay"], before["weight_decay"])
            # What moves together with the learning rate, as the decay of AdamC, belongs to its schedule.
            changed &= ~_jumped(now["lr"], before["lr"], ALIKE)
            if changed.any():
                yield "weight_decay", _change(now, before, changed, "weight_decay")
            for name in ("beta1", "beta2"):
                changed = _jumped(1 - now[name], 1 - before[name])
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
    return Detected(before.step + 1, at.step, at.step, _numbers(mask), "the learning rate", evidence)


def _change(now: LayerValues, before: LayerValues, mask: Mask, name: str) -> Detected:
    layer = int(mask.argmax())
    evidence = {f"{name}_before": float(before[name][layer]), f"{name}_after": float(now[name][layer])}
    return Detected(before.step + 1, now.step, now.step, _numbers(mask), "a setting", evidence)


def _jumped(now: Array, before: Array | float, factor: float = limit.SETTING_JUMP) -> Mask:
    return np.asarray((now > factor * before) | (before > factor * now))


@final
class Frozen:
    """Layers that took part in every sample, and have no gradient in two in a row while others have."""

    def __init__(self) -> None:
        self._alive: Array | float = 0.0  # samples in a row with a gradient, up to the last but one
        self._last: LayerValues | None = None
        self._before = -1

    def update(self, now: LayerValues) -> Detected | None:
        """Those that had their last gradient before the previous sample."""
        last = self._last
        self._last = now
        if last is None:
            return None
        moves = _has_gradient(last)
        still = ~moves & ~_has_gradient(now) & (self._alive >= limit.INCIDENT_LEVEL)
        others = moves & _has_gradient(now)
        self._alive = np.where(moves, self._alive + 1, 0)
        since = self._before + 1
        self._before = last.step
        if not still.any() or not others.any():
            return None
        return Detected(since, last.step, now.step, _numbers(still), "the layer")


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
        """Layers whose weights were changed between the samples by something else than the optimizer."""
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
        return Detected(last.step + 1, now.step, now.step, _numbers(changed), "the weights", evidence)


@final
class NotFinite:
    """Layers with a NaN or an infinity in weights or gradients."""

    def __init__(self) -> None:
        self._last_step = -1

    def update(self, now: LayerValues) -> Detected | None:
        """Those of this sample."""
        since = self._last_step + 1
        self._last_step = now.step
        lost = now.present & np.isnan(now["unit_grad_norm"])
        return Detected(since, now.step, now.step, _numbers(lost), "the layer") if lost.any() else None


@final
class Skipped:
    """Steps that a GradScaler skipped, where they are more than it takes to find its scale."""

    def __init__(self) -> None:
        self._count = 0
        self._last_step = -1
        # Of each of the latest samples: steps that were skipped since the one before it, and steps that were taken.
        self._past: deque[tuple[float, int]] = deque(maxlen=limit.INCIDENT_LEVEL)

    def update(self, now: LayerValues) -> Detected | None:
        """Too many since the last sample, or within the latest ones."""
        taken = now.step - self._last_step
        self._last_step = now.step
        known = now["skipped_steps"][np.isfinite(now["skipped_steps"])]
        skipped = float(known.max()) if known.size else 0.0
        self._count += 1
        # The first scale is far too high on purpose.
        if self._count <= limit.SAMPLES:
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
    """Whether so many skipped steps among those taken are more than a scaler's search."""
    return skipped > limit.SKIPPED_STEPS + limit.SKIPPED_SHARE * taken


@final
class Losses:
    """Logged losses beyond what their own past allows: known of every step, the best that tells a batch from others."""

    def __init__(self) -> None:
        per_sample = limit.LOSSES_PER_SAMPLE
        level = per_sample * limit.INCIDENT_LEVEL
        self._baseline = Baseline(level, per_sample * limit.INCIDENT_MEMORY, limit.INCIDENT_FLOOR)
        self._last_step = -1

    @property
    def is_judging(self) -> bool:
        """Whether enough losses were logged to judge others by."""
        return self._baseline.is_judging

    def update(self, steps: Array, losses: Array) -> Detected | None:
        """What is unusual among the losses since the last sample."""
        unusual: list[tuple[int, int, float]] = []
        for step, loss in zip(steps.astype(int).tolist(), losses.tolist(), strict=True):
            # A loss that is not positive has no logarithm, and is not judged.
            excess = self._baseline.excess(log(loss) if 0 < loss < inf else nan)
            if excess > 0:
                unusual.append((self._last_step + 1, step, excess))
            self._last_step = step
        if not unusual:
            return None
        evidence = {"loss": exp(max(excess for _, _, excess in unusual))}
        return Detected(unusual[0][0], unusual[0][1], unusual[-1][1], (), "the loss", evidence)


# Logarithms of what a gradient that is too large leaves in a layer, and the deviation of each that counts at least:
# over most layers, and of one layer alone.
FLOORS = {
    "gradient": limit.INCIDENT_FLOOR,
    "update": limit.INCIDENT_FLOOR,
    "denominator": limit.DENOMINATOR_FLOOR,
}
LAYER_FLOORS = {
    "gradient": limit.LAYER_FLOOR,
    "update": limit.LAYER_FLOOR,
    "denominator": limit.LAYER_DENOMINATOR_FLOOR,
}


@final
class Gradients:
    """Gradients, updates and Adam's denominators that go beyond their own past, in most layers at once or in one."""

    def __init__(self) -> None:
        self._baselines = {name: self._new_baseline(floor) for name, floor in FLOORS.items()}
        self._of_layers = LayerBaselines(list(LAYER_FLOORS.values()))
        self._past: deque[Array] = deque(maxlen=limit.INCIDENT_LEVEL)
        self._denominators: Array | float = nan
        self._lr: Array | float = nan
        self._last_step = -1

    def update(self, now: LayerValues) -> tuple[Detected | None, Detected | None]:
        """What is unusual in a sample: in most layers, and in a layer alone."""
        # η_e = lr/(‖w‖²·B): B grows between samples where one of the gradients between them was large.
        denominators = np.log(now["lr"] / (now["effective_lr"] * now["norm"] ** 2))
        series = {
            "gradient": np.log(now["unit_grad_norm"]),
            "update": np.log(now["tangential_update"] / now["lr"]),
            "denominator": denominators - self._denominators,
        }
        table = np.array(list(series.values()))
        table[~np.isfinite(table)] = nan
        series = dict(zip(series, table, strict=True))
        if _jumped(now["lr"], self._lr, ALIKE).any():
            # Some optimizers' updates follow another power of the learning rate.
            self._baselines["update"] = self._new_baseline(FLOORS["update"])
        self._lr = now["lr"]
        self._denominators = denominators
        since = self._last_step + 1
        self._last_step = now.step
        return self._of_most(since, now.step, series), self._of_one(since, now, table)

    def _of_most(self, since: int, step: int, series: Mapping[str, Array]) -> Detected | None:
        """Layers in the order in which they differ from their own past."""
        excesses = {name: self._baselines[name].excess(_middle(values)) for name, values in series.items()}
        evidence = {name: exp(excess) for name, excess in excesses.items() if excess > 0}
        gradient = series["gradient"]
        if not evidence:
            self._past.append(gradient)
            return None
        deviations = gradient - np.array([_middle(layer) for layer in np.array(self._past).T])
        reached = [number for number in np.argsort(-deviations).tolist() if deviations[number] > limit.INCIDENT_FLOOR]
        return Detected(since, step, step, tuple(reached), "the gradients", evidence)

    def _of_one(self, since: int, now: LayerValues, table: Array) -> Detected | None:
        """The layer that differs most from its own past, and from what the other layers do."""
        excesses = self._of_layers.excess(table)
        if not excesses.any():
            return None
        first = excesses[excesses.any(1).argmax()]
        layer = int(first.argmax())
        found = zip(LAYER_FLOORS, excesses[:, layer].tolist(), strict=True)
        evidence = {name: exp(excess) for name, excess in found if excess > 0}
        evidence["beta2"] = float(now["beta2"][layer])
        return Detected(since, now.step, now.step, (layer,), "the layer", evidence)

    @staticmethod
    def _new_baseline(floor: float) -> Baseline:
        return Baseline(limit.INCIDENT_LEVEL, limit.INCIDENT_MEMORY, floor)


def _middle(values: Array) -> float:
    """Median over the layers that have a number."""
    known = np.sort(values[~np.isnan(values)])
    # NumPy's own median checks its arguments for longer than it takes.
    return float(known[(known.size - 1) // 2] + known[known.size // 2]) / 2 if known.size else nan
