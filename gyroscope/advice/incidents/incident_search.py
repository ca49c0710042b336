"""The search for incidents in a stored run."""

from collections.abc import Iterator, Sequence
from math import nan
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.incidents.incident_detector import IncidentDetector
from gyroscope.advice.incidents.layer_values import SERIES, Incident
from gyroscope.advice.record import Record

# Words in the names of logged losses that are not training losses.
HELD_OUT = ("val", "test", "eval")


def incidents(record: Record) -> list[Incident]:
    """Return all incidents of a run, in the order of their steps."""
    return search_of(record).read_on(record)


def search_of(record: Record) -> "IncidentSearch":
    """Return a new search, or the search that a partly read run has stored."""
    return record.incident_search if _is_thinned(record) else IncidentSearch()  # type: ignore[attr-defined]


@final
class IncidentSearch:
    """The search in a run that may grow. Samples that were read once are not read again."""

    def __init__(self) -> None:
        self._begin([])

    def _begin(self, resumed: list[int]) -> None:
        self._detector = IncidentDetector()
        self._resumed = resumed
        self._last_step = -1
        self._losses_read = 0

    @property
    def losses_judged_from(self) -> int | None:
        """First step whose loss was judged, None if too few are logged."""
        return self._detector.losses_judged_from

    @property
    def gradients_judged_from(self) -> int | None:
        """First step whose gradients were judged, None if there are too few samples."""
        return self._detector.gradients_judged_from

    def read_on(self, record: Record) -> list[Incident]:
        """Return all incidents up to now."""
        layers = list(record.layers)
        if not layers:
            return []
        resumed: list[int] = getattr(record, "resumed_at", [])
        if resumed != self._resumed:  # samples may have been replaced by those of a run that was resumed
            self._begin(resumed)
        loss_steps, losses = logged_loss(record)
        for steps, values in _samples(record, self._last_step):
            ends = np.searchsorted(loss_steps, steps, side="right").tolist()
            for step, of_step, end in zip(steps.tolist(), values, ends, strict=True):
                if step in resumed:
                    self._detector.resumed(step)
                new = slice(self._losses_read, end)
                self._detector.update(step, layers, of_step, loss_steps[new], losses[new])
                self._losses_read = end
                self._last_step = step
        if getattr(record, "status", "running") != "running":
            self._detector.finish(loss_steps[self._losses_read :], losses[self._losses_read :])
            self._losses_read = len(losses)
        return sorted(self._detector.incidents, key=lambda incident: incident.step)


def _is_thinned(record: Record) -> bool:
    return getattr(record, "stride", 1) > 1


def _samples(record: Record, after: int) -> Iterator[tuple[Array, Array]]:
    """Yield steps and values (samples, SERIES, layers) of all samples after a step, NaN if there is no value, in parts.

    If a record contains only some samples of a run, the others are read too, because an incident lasts only a few.
    """
    known = [(name, stat) for name, stat in SERIES.items() if name in record.quantities]
    places = [list(SERIES).index(name) for name, _ in known]
    if _is_thinned(record):
        parts = record.every_sample(known, after)  # type: ignore[attr-defined]  # a record with a stride has it
    else:
        table = [[record.series(layer, name, stat) for layer in record.layers] for name, stat in known]
        new = np.asarray(record.steps) > after
        parts = [(np.asarray(record.steps)[new], np.moveaxis(np.array(table), -1, 0)[new])]
    for steps, stored in parts:
        values = np.full((len(steps), len(SERIES), len(record.layers)), nan)
        values[:, places] = np.where(np.isfinite(stored), stored, nan)
        yield steps, values


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
