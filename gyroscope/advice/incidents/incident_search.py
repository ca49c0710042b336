"""The search for incidents in a run: what is unusual in its samples and losses, and what explains what."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.changes import EARLY, changes
from gyroscope.advice.incidents.samples import SERIES, Cause, Incident, Samples, previous
from gyroscope.advice.incidents.unusual_values import (
    layer_quantities,
    single_layers,
    unusual_batches,
    unusual_losses,
)
from gyroscope.advice.record import Record

# Samples that are kept to judge the next ones, and losses.
KEPT = limit.INCIDENT_LEVEL + limit.INCIDENT_MEMORY
KEPT_LOSSES = limit.LOSSES_PER_BLOCK * KEPT
# Words in the names of logged losses that are not training losses.
HELD_OUT = ("val", "test", "eval")
# Causes with evidence that rises and falls, so the largest value is kept. For other causes the latest is kept.
PASSING = ("batches", "layer_gradient")
# Causes that a jump of the loss can look like.
MISTAKEN = ("weights", "layer_gradient")


def incidents(record: Record) -> list[Incident]:
    """Return all incidents of a run, in the order of their steps."""
    return search_of(record).read_on(record)


def search_of(record: Record) -> "IncidentSearch":
    """Return a new search, or the search that a partly read run has stored."""
    return record.incident_search if _is_thinned(record) else IncidentSearch()  # type: ignore[attr-defined]


@final
class IncidentSearch:
    """The search in a run that may grow. Samples that were read once are not read again.

    New samples are judged together with the last ones before them.

    after  step after which samples are read
    """

    def __init__(self, after: int = -1) -> None:
        self._after = after
        self._begin([])

    def _begin(self, resumed: list[int]) -> None:
        self.incidents: list[Incident] = []
        """The incidents so far. They are updated while they last."""
        self.losses_judged_from: int | None = None
        """First step whose loss was judged."""
        self.gradients_judged_from: int | None = None
        """First step whose gradients were judged."""
        self._resumed = resumed
        self._samples: Samples | None = None
        self._loss_steps = np.empty(0)
        self._losses = np.empty(0)
        self._first_loss = 0
        self._last_step = self._after
        self._last_loss = float(self._after)

    def read_on(self, record: Record) -> list[Incident]:
        """Return all incidents up to now."""
        layers = list(record.layers)
        if not layers:
            return []
        resumed: list[int] = list(getattr(record, "resumed_at", []))
        if resumed != self._resumed:  # samples may have been replaced by those of a run that was resumed
            self._begin(resumed)
        loss_steps, losses = logged_loss(record)
        for steps, values in _samples(record, self._last_step):
            if len(steps):
                self.read(steps, layers, values, *_between(loss_steps, losses, self._last_loss, steps[-1]))
        if getattr(record, "status", "running") != "running":
            self.finish(*_between(loss_steps, losses, self._last_loss, np.inf))
        return sorted(self.incidents, key=lambda incident: incident.step)

    def read(
        self, steps: Array, layers: Sequence[str], values: Mapping[str, Array], loss_steps: Array, losses: Array
    ) -> list[Incident]:
        """Read samples and the losses since those before them, and return the incidents that begin with them."""
        before = self._samples
        if before is None or list(layers) != before.layers:  # another model, without a past
            self._samples = Samples(list(layers), np.asarray(steps, np.float64), values)
            self._loss_steps = self._losses = np.empty(0)
            self._first_loss = 0
        else:
            joined = {name: np.concatenate([before[name], values[name]]) for name in SERIES}
            self._samples = replace(before, steps=np.concatenate([before.steps, steps]), values=joined)
        return self._read_losses(loss_steps, losses)

    def finish(self, loss_steps: Array, losses: Array) -> list[Incident]:
        """Judge the losses after the last sample of a run that has ended, and return the incidents among them."""
        return self._read_losses(loss_steps, losses) if len(losses) else []

    def _read_losses(self, loss_steps: Array, losses: Array) -> list[Incident]:
        if self._samples is None:
            return []
        # A loss that is not positive has no logarithm, and is not judged.
        judged = np.isfinite(losses) & (losses > 0)
        self._loss_steps = np.concatenate([self._loss_steps, loss_steps[judged]])
        self._losses = np.concatenate([self._losses, losses[judged]])
        if self.losses_judged_from is None and len(self._losses) > limit.EARLY_LOSS_LEVEL + limit.EARLY_LOSSES:
            self.losses_judged_from = int(self._loss_steps[limit.EARLY_LOSS_LEVEL + limit.EARLY_LOSSES])
        if self.gradients_judged_from is None and len(self._samples) > EARLY:
            self.gradients_judged_from = int(self._samples.steps[EARLY])
        found = find(self._samples, self._loss_steps, self._losses, self._first_loss, self._resumed)
        read = min(self._last_step, self._last_loss) if len(self._losses) else self._last_step
        new = [incident for incident in found if not self._is_known(incident) and incident.end > read]
        self.incidents += new
        self._last_step = int(self._samples.steps[-1])
        self._last_loss = float(loss_steps[-1]) if len(loss_steps) else self._last_loss
        self._forget()
        return new

    def _is_known(self, found: Incident) -> bool:
        """Update an incident that was found before, and return whether there is one."""
        for known in self.incidents:
            if known.cause == found.cause and found.step <= known.end and known.step <= found.end:
                _extend(known, found, end=max(known.end, found.end))
                return True
        return False

    def _forget(self) -> None:
        """Keep only the samples and losses that the next ones are judged by."""
        assert self._samples is not None
        samples = self._samples
        old = max(0, len(samples) - KEPT) // 10 * 10
        if old:
            peak = np.fmax(np.fmax.reduce(samples.highest_lr[:old]), samples.peak)
            values = {name: samples[name][old:] for name in SERIES}
            self._samples = Samples(samples.layers, samples.steps[old:], values, samples.first + old, peak)
        old = max(0, len(self._losses) - KEPT_LOSSES) // limit.LOSSES_PER_BLOCK * limit.LOSSES_PER_BLOCK
        self._first_loss += old
        self._loss_steps = self._loss_steps[old:]
        self._losses = self._losses[old:]


@np.errstate(all="ignore")
def find(
    samples: Samples, loss_steps: Array, losses: Array, first_loss: int = 0, resumed: Sequence[int] = ()
) -> list[Incident]:
    """Return the incidents in consecutive samples and losses.

    first_loss  number of losses of the run before these
    resumed     first steps after the run was interrupted
    """
    table = layer_quantities(samples)
    causes = changes(samples)
    causes += [Incident("resumed", step, step, step, (), "the run") for step in resumed if step in samples.steps]
    rose, restarted = _rates(samples, causes)
    rows = np.clip(np.searchsorted(samples.steps, loss_steps), 0, len(samples) - 1)
    of_losses = unusual_losses(loss_steps, losses, rose[rows], restarted[rows], first_loss)
    of_gradients = unusual_batches(samples, table)
    # A logged loss decides, and gradients show by how much.
    first_judged = max(0, limit.EARLY_LOSS_LEVEL + limit.EARLY_LOSSES - first_loss)
    decided = set(samples.steps[rows[first_judged:]].tolist())
    of_batches = [_with_gradients(incident, of_gradients, samples) for incident in of_losses]
    of_batches += [incident for incident in of_gradients if incident.step not in decided]
    return explained(samples, [*causes, *single_layers(samples, table), *of_batches])


def _rates(samples: Samples, causes: Sequence[Incident]) -> tuple[Mask, Mask]:
    """Return the samples whose losses belong to a lower learning rate, and those right after a restart."""
    rate = np.nanmax(samples["lr"], axis=1, initial=0.0)
    window = limit.INCIDENT_LEVEL
    padded = np.concatenate([np.full(window - 1, np.inf), rate])
    rose = rate > limit.MAX_SMOOTH_FACTOR * np.lib.stride_tricks.sliding_window_view(padded, window).min(1)
    restarted = np.zeros(len(samples), bool)
    for row in np.flatnonzero(rate > limit.SETTING_JUMP * previous(rate)).tolist():
        restarted[row : row + window] |= samples.first + row >= limit.MIN_SAMPLES
    for incident in causes:  # a rate that is an incident explains what follows
        row = samples.row(incident.step)
        restarted[row : row + window] = False
    return rose, restarted


def _with_gradients(incident: Incident, of_gradients: Sequence[Incident], samples: Samples) -> Incident:
    """Return an incident of the loss with the layers and numbers of the gradients at its steps."""
    until = samples.steps[samples.row(incident.end)]
    for seen in of_gradients:
        if incident.since <= seen.step <= until:
            _extend(incident, seen, end=incident.end)
    return incident


# Incidents of the same sample in the order in which they explain each other.
ORDER: tuple[Cause, ...] = (
    "resumed",
    "lr",
    "weight_decay",
    "betas",
    "frozen",
    "weights",
    "layer_gradient",
    "not_finite",
    "batches",
)


def explained(samples: Samples, events: Sequence[Incident]) -> list[Incident]:
    """Return the events without those that another one explains. It has their numbers."""
    found: list[Incident] = []
    jumps = [event for event in events if event.loss_lasts]

    def is_recent(earlier: Incident, event: Incident) -> bool:
        since = samples.row(event.step) - samples.row(earlier.end)
        return 0 <= since < limit.INCIDENT_LEVEL or earlier.step <= event.step <= earlier.end

    def cause_of(event: Incident) -> Incident | None:
        """Return the latest incident that explains what gradients and losses do at an event."""
        recent = (each for each in reversed(found) if is_recent(each, event))
        return next((each for each in recent if each.cause != "batches" or each.loss_lasts), None)

    for event in sorted(events, key=lambda event: (samples.row(event.step), ORDER.index(event.cause))):
        cause = cause_of(event)
        if event.cause in MISTAKEN and any(is_recent(jump, event) and _follows(event, jump) for jump in jumps):
            continue
        if cause is not None and event.cause in PASSING and event.cause != cause.cause:
            _add_consequence(cause, event)
        elif event.cause != "weights":
            _record(found, event)
        elif not _was_moved(event, cause) and (rest := _not_by_gradients(event, events)).layers:
            _record(found, rest)
    return found


def _was_moved(weights: Incident, cause: Incident | None) -> bool:
    """Return whether updates can have moved the weights, because the cause of large updates lasted until then."""
    return cause is not None and cause.cause in ("lr", "layer_gradient") and cause.end >= weights.since - 1


def _follows(seen: Incident, jump: Incident) -> bool:
    """Return whether the loss jumped before the weights or a layer's gradient became unusual.

    A loss is computed before its gradient, so a loss that is too large at the same step came first.
    """
    return jump.step < seen.since or ("gradient" in seen.evidence and jump.step <= seen.step)


def _not_by_gradients(weights: Incident, events: Sequence[Incident]) -> Incident:
    """Return moved weights without those of a layer whose update is too large, because its optimizer moved them."""
    large = [event for event in events if event.cause == "layer_gradient" and "update" in event.evidence]
    moved = {layer for event in large if event.step == weights.step for layer in event.layers}
    return replace(weights, layers=tuple(layer for layer in weights.layers if layer not in moved))


def _add_consequence(cause: Incident, unusual: Incident) -> None:
    cause.layers = tuple(dict.fromkeys([*cause.layers, *unusual.layers]))
    for name, value in unusual.evidence.items():
        cause.evidence.setdefault(f"then_{name}", value)
    cause.evidence.setdefault("then_step", unusual.step)


def _record(found: list[Incident], new: Incident) -> None:
    """Add an incident, or extend the one before it with the same cause if that ended right before it."""
    gap = limit.LOSSES_PER_BLOCK if new.cause == "batches" else 0
    latest = next((incident for incident in reversed(found) if incident.cause == new.cause), None)
    if latest is None or new.since > latest.end + 1 + gap:
        found.append(new)
    else:
        _extend(latest, new, end=max(latest.end, new.end))


def _extend(known: Incident, new: Incident, *, end: int) -> None:
    known.end = end
    known.layers = tuple(dict.fromkeys([*known.layers, *new.layers]))
    kept = known.evidence if new.cause in PASSING else {}
    known.evidence |= {name: max(value, kept.get(name, value)) for name, value in new.evidence.items()}


def _is_thinned(record: Record) -> bool:
    return getattr(record, "stride", 1) > 1


def _samples(record: Record, after: int) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield steps and values by name of all samples after a step, NaN if there is no value, in parts.

    If a record contains only some samples of a run, the others are read too, because an incident lasts only a few.
    """
    known = [(name, stat) for name, stat in SERIES.items() if name in record.quantities]
    if _is_thinned(record) or (after >= 0 and hasattr(record, "every_sample")):
        parts = record.every_sample(known, after)  # type: ignore[attr-defined]  # a record with a stride has it
    else:
        table = [[record.series(layer, name, stat) for layer in record.layers] for name, stat in known]
        new = np.asarray(record.steps) > after
        parts = [(np.asarray(record.steps)[new], np.moveaxis(np.array(table), -1, 0)[new])]
    for steps, stored in parts:
        yield steps, named_values([name for name, _ in known], stored)


def named_values(names: Sequence[str], stored: Array) -> dict[str, Array]:
    """Return for each of `SERIES` an array (samples, layers), of values (samples, names, layers)."""
    values = {name: np.full((len(stored), stored.shape[2]), nan) for name in SERIES}
    for number, name in enumerate(names):
        values[name] = np.where(np.isfinite(stored[:, number]), stored[:, number], nan)
    return values


def _between(steps: Array, losses: Array, after: float, until: float) -> tuple[Array, Array]:
    chosen = (steps > after) & (steps <= until)
    return steps[chosen], losses[chosen]


def loss_name(names: Sequence[str]) -> str | None:
    """Return the name of the logged scalar that is the training loss, or None.

    >>> loss_name(["accuracy", "val_loss", "train/loss"])
    'train/loss'
    """
    losses = [name for name in names if "loss" in name.lower() and not any(word in name.lower() for word in HELD_OUT)]
    return "loss" if "loss" in losses else next(iter(losses), None)


def logged_loss(record: Record) -> tuple[Array, Array]:
    """Return steps and values of the loss that training logged, empty if it logged none."""
    name = loss_name(getattr(record, "scalars", ()))
    if name is None:
        return np.empty(0), np.empty(0)
    steps, values = record.scalar(name)  # type: ignore[attr-defined]  # a record with `scalars` has it
    return np.asarray(steps, np.float64), np.asarray(values, np.float64)
