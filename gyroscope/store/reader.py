"""The reader: a run as arrays, also while it is being written. Its SQL is in `follower`."""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from gyroscope._types import Array, Float32, Int64
from gyroscope.spelling import did_you_mean
from gyroscope.store.export import export
from gyroscope.store.follower import Follower
from gyroscope.store.schema import BINS, STATISTICS, LayerInfo, Quantity
from gyroscope.store.session import STALE

if TYPE_CHECKING:
    from gyroscope.advice import Diagnosis
    from gyroscope.advice.incidents import IncidentSearch

Value = TypeVar("Value")
Progress = Callable[[int, int], None]
# Samples that a diagnosis reads at most; more take longer and change nothing.
ENOUGH = 4000


def open_run(path: str | os.PathLike[str], *, most: int | None = None, progress: Progress | None = None) -> "Run":
    """Open a run for reading, given its directory or the database in it.

    With `most`, at most that many samples are read, evenly spaced by index; `Run.stride` says so. `progress` is called
    with how many samples have been read and how many there are, where all of a long run are read one after the other.
    """
    return Run(path, most=most, progress=progress)


class Run:
    """A run as it stood at the last `refresh`; it can be read while it is being written, and by several threads.

    With `most`, every `stride`-th sample is read, the smallest power of two that leaves at most that many of `total`;
    as the run grows, the stride doubles. What was read stays in memory, 36 bytes per quantity, layer and sample.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, most: int | None = None, progress: Progress | None = None
    ) -> None:
        if most is not None and most < 1:
            raise ValueError(f"most is {most}: give the number of samples to read at most, or None for all.")
        self._source = Follower(path, most)
        # A run that is forgotten, not closed, closes its file too.
        self._close = weakref.finalize(self, self._source.connection.close)
        self.path = self._source.file.parent
        self._progress = progress
        self.quantities: dict[str, Quantity] = {item.name: item for item in self._source.layout.quantities}
        self.refresh()

    def refresh(self) -> int:
        """Read on from where the last reading ended; the number of samples that came since."""
        return self._source.refresh()

    def thinned(self, most: int) -> "Run":
        """The same run, opened anew, with at most that many samples."""
        return Run(self.path, most=most, progress=self._progress)

    @property
    def stride(self) -> int:
        """1: all samples are read; k: every k-th is."""
        return self._source.stride

    @property
    def total(self) -> int:
        """Samples in the file, those included that the stride leaves out."""
        return len(self._source.samples)

    @property
    def steps(self) -> Int64:
        """Step of each sample."""
        return self._source.kept["step"].copy()

    @property
    def times(self) -> Array:
        """Unix seconds of each sample."""
        return self._source.kept["time"].copy()

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in the order in which they were first seen."""
        return list(self._source.state.layers)

    def layer(self, name: str) -> LayerInfo:
        """What is known about a layer."""
        return self._layer(name)[1]

    def series(self, layer: str, quantity: str, stat: str = "mean") -> Array:
        """A statistic over the vectors of a layer at each of `steps`; NaN where there is no value.

        A quantity per layer is one number, and every statistic gives it.
        """
        index, _ = self._layer(layer)
        return _wide(self._source.numbers(index)[:, self._column(quantity, stat)])

    def values_at(self, step: int, series: Sequence[tuple[str, str]]) -> Array:
        """(series, layers): pairs of quantity and statistic at one step, layers in the order of `layers`.

        Reads that sample only, from the file, and keeps nothing: what a page that follows a run needs.
        """
        columns = [self._column(quantity, stat) for quantity, stat in series]
        indices = [index for index, _ in self._source.state.layers.values()]
        numbers = self._source.numbers_at(step, 1 + max(indices, default=-1))
        return _wide(numbers[np.ix_(indices, columns)].T)

    def every_sample(self, series: Sequence[tuple[str, str]], after: int = -1) -> Iterator[tuple[Int64, Array]]:
        """Steps and values, (samples, series, layers), of all samples after a step, whatever the stride, in parts.

        Reads from the file and keeps nothing: the memory it takes does not depend on the length of the run.
        """
        columns = [self._column(quantity, stat) for quantity, stat in series]
        indices = [index for index, _ in self._source.state.layers.values()]
        stored = 1 + max(indices, default=-1)
        samples = self._source.samples
        samples = samples[samples["step"] > after]
        done = 0
        for part in self._source.parts(samples, stored):
            numbers = self._source.numbers_of(part["id"], stored)
            chosen = numbers[np.ix_(range(len(part)), indices, columns)]
            yield part["step"].copy(), _wide(chosen.swapaxes(1, 2))
            done += len(part)
            if self._progress is not None:
                self._progress(done, len(samples))

    def histogram(self, layer: str, quantity: str, step: int | None = None) -> Int64:
        """Counts over `bin_edges()` of the vectors' magnitudes at a step, or when the layer was last measured.

        Histograms merge by adding. All zero where the layer was not measured.
        """
        stored = self._source.distribution(self._layer(layer)[0], self._sampled(step))
        place = self._place(quantity)
        return np.zeros(BINS, np.int64) if stored is None else stored[0][place]

    def extremes(self, layer: str, quantity: str, step: int | None = None) -> tuple[int, int]:
        """Ids of the vectors with the smallest and the largest value; -1 where there is none."""
        stored = self._source.distribution(self._layer(layer)[0], self._sampled(step))
        place = self._place(quantity)
        return (-1, -1) if stored is None else (int(stored[1][place, 0]), int(stored[1][place, 1]))

    def raw(self, layer: str, quantity: str) -> Array:
        """(samples, vectors): every vector's value, for layers of which that was kept; NaN where not measured."""
        values = self._source.vectors(self._layer(layer)[0], self._place(quantity))
        if values is None:
            raise ValueError(
                f"The vectors of {layer!r} were not kept one by one. Choose the layer when the run begins."
            )
        return _wide(values)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalars that training logged, in the order in which they appeared; see `Tracker.log`."""
        return tuple(self._source.scalars())

    @property
    def scalar_count(self) -> int:
        """Logged values in the file, of all names together."""
        return self._source.state.scalars

    def scalar(self, name: str) -> tuple[Int64, Array]:
        """Steps and values of a logged scalar: all of them, whether or not their steps were sampled."""
        columns = self._known("scalar", name, self._source.scalars())
        return np.array(columns.steps, np.int64), np.array(columns.values, np.float64)

    @property
    def config(self) -> dict[str, Any]:
        """What the run was started with, or last resumed with, and what it ran on: versions and commit."""
        return self._source.state.config

    @property
    def notes(self) -> list[str]:
        """Warnings that belong to the run."""
        dropped = self._source.state.dropped
        count = (
            "1 sample could not be stored and is" if dropped == 1 else f"{dropped} samples could not be stored and are"
        )
        return [*self._source.state.notes, *([f"{count} missing."] if dropped else [])]

    @property
    def started(self) -> float:
        """Unix seconds when the run first began."""
        return self._source.state.started

    @property
    def resumed_at(self) -> list[int]:
        """The first step after each time that the run was resumed, of those that have one."""
        times = self._source.samples["time"]
        steps = self._source.samples["step"]
        after = [steps[times >= resumed] for resumed in self._source.state.resumed]
        return [int(steps[0]) for steps in after if len(steps)]

    @property
    def heartbeat(self) -> float:
        """Unix seconds when the writer last wrote, at the latest four seconds apart."""
        return self._source.state.heartbeat

    @property
    def status(self) -> str:
        """running, finished, failed, ended (the process did, and nobody closed the run) or stopped.

        A run is stopped if it has no end and no heartbeat for thirty seconds.
        """
        status = self._source.state.status
        return "stopped" if status == "running" and time.time() - self.heartbeat > STALE else status

    @cached_property
    def incident_search(self) -> "IncidentSearch":
        """What a diagnosis has found in the samples so far, so that of a run that grows it reads the new ones alone."""
        from gyroscope.advice.incidents import IncidentSearch

        return IncidentSearch()

    def diagnose(self) -> "Diagnosis":
        """What the measurements mean, in sentences, worst first; a long run is judged by a part of its samples.

        Incidents are searched for in all of them.
        """
        from gyroscope.advice import diagnose

        if len(self.steps) <= ENOUGH:
            return diagnose(self)
        with self.thinned(ENOUGH) as run:
            return diagnose(run)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write a long table, one row per step, layer and quantity, as .csv or .parquet."""
        export(self, path)

    def close(self) -> None:
        """Close the file; what was not read before cannot be read any more."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.status}, {len(self.layers)} layers, {self.total} samples)"

    def _layer(self, name: str) -> tuple[int, LayerInfo]:
        return self._known("layer", name, self._source.state.layers)

    def _quantity(self, name: str) -> Quantity:
        return self._known("quantity", name, self.quantities)

    def _known(self, kind: str, name: str, known: Mapping[str, Value]) -> Value:
        if name in known:
            return known[name]
        nothing = "log some with tracker.log(loss=loss)" if kind == "scalar" else "there is none yet"
        remedy = did_you_mean(name, known, most=3, cutoff=0.4) if known else nothing
        raise ValueError(f"There is no {kind} {name!r} in {self.path}: {remedy}")

    def _column(self, quantity: str, stat: str) -> int:
        if stat not in STATISTICS:
            raise ValueError(f"There is no statistic {stat!r}. There are {', '.join(STATISTICS)}.")
        return self._source.layout.column(self._quantity(quantity), stat)

    def _place(self, quantity: str) -> int:
        if not self._quantity(quantity).per_vector:
            raise ValueError(f"{quantity!r} is one number per layer and has no distribution. Ask for its series.")
        return self._source.layout.place[quantity]

    def _sampled(self, step: int | None) -> int | None:
        steps = self._source.samples["step"]
        if step is not None and step not in steps:
            nearest = f"The nearest is {steps[np.abs(steps - step).argmin()]}." if len(steps) else "There is none yet."
            raise ValueError(f"There is no sample of step {step} in {self.path}. {nearest}")
        return step


def _wide(numbers: Float32) -> Array:
    # NumPy warns about signalling NaN, which a damaged file may hold.
    with np.errstate(invalid="ignore"):
        return numbers.astype(np.float64)
