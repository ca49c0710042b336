"""The reader: a run as arrays, also while it is being written. `follower` has its SQL."""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from gyroscope._types import Array, Float32, Int64
from gyroscope.spelling import did_you_mean
from gyroscope.store.follower import Follower
from gyroscope.store.frames import export, frame
from gyroscope.store.schema import BINS, STATISTICS, LayerInfo, Quantity
from gyroscope.store.session import STALE

if TYPE_CHECKING:
    from gyroscope.advice import Findings
    from gyroscope.advice.incidents import IncidentSearch

Value = TypeVar("Value")
Progress = Callable[[int, int], None]
# Most samples that a diagnosis reads. More take longer and change nothing.
MAX_DIAGNOSED_SAMPLES = 4000


def open_run(path: str | os.PathLike[str], *, limit: int | None = None, progress: Progress | None = None) -> "Run":
    """Open a run for reading, given its directory or the database in it.

    At most `limit` samples are read, evenly spaced by index (see `Run.stride`). `progress` is called with the number of
    samples read and their total when all samples of a long run are read.
    """
    return Run(path, limit=limit, progress=progress)


class Run:
    """A run as of the last `refresh`. It can be read while it is being written, and by several threads.

    With `limit`, every `stride`-th sample is read. The stride is the smallest power of two that leaves at most `limit`
    of `total` samples, and doubles as the run grows. Numbers stay in memory, 36 bytes per quantity, layer and sample.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, limit: int | None = None, progress: Progress | None = None
    ) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"limit={limit} must be a whole number above 0, or None to read all samples")
        self._source = Follower(path, limit)
        # The file is also closed if nobody closes the run.
        self._close = weakref.finalize(self, self._source.connection.close)
        self.path = self._source.file.parent
        self._progress = progress
        self.quantities: dict[str, Quantity] = {item.name: item for item in self._source.layout.quantities}
        self.refresh()

    def refresh(self) -> int:
        """Read the samples that came since the last reading, and return their number."""
        return self._source.refresh()

    def thinned(self, limit: int) -> "Run":
        """Open the same run again with at most `limit` samples."""
        return Run(self.path, limit=limit, progress=self._progress)

    @property
    def stride(self) -> int:
        """The distance between samples that are read. 1 means all."""
        return self._source.stride

    @property
    def total(self) -> int:
        """The number of samples in the file, including those that the stride leaves out."""
        return len(self._source.samples)

    @property
    def steps(self) -> Int64:
        """Step of each sample that is read."""
        return self._source.kept["step"].copy()

    @property
    def last_step(self) -> int:
        """Number of the last step, sampled or not. Until the run is closed, that of the last sample, or -1."""
        stored = self._source.sessions[-1].last_step
        sampled: list[int] = self._source.samples["step"][-1:].tolist()
        return max([-1 if stored is None else stored, *sampled])

    @property
    def times(self) -> Array:
        """Unix seconds of each sample."""
        return self._source.kept["time"].copy()

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in the order in which they were first seen."""
        return list(self._source.layers)

    def layer(self, name: str) -> LayerInfo:
        """Return the description of a layer."""
        return self._layer(name)[1]

    def series(self, layer: str, quantity: str, stat: str = "mean") -> Array:
        """Return a statistic over the vectors of a layer at each of `steps`, NaN if there is no value.

        A quantity per layer is one number, and every statistic returns it.
        """
        index, _ = self._layer(layer)
        return _wide(self._source.numbers(index)[:, self._column(quantity, stat)])

    def values_at(self, step: int, series: Sequence[tuple[str, str]]) -> Array:
        """Return (series, layers) values of one step, for pairs of quantity and statistic, in the order of `layers`.

        This reads only that sample and keeps nothing.
        """
        columns, indices, stored = self._positions(series)
        samples = self._source.samples
        numbers = self._source.numbers_of(samples["id"][samples["step"] == step], stored)
        missing = np.full((len(columns), len(indices)), np.nan)
        return _wide(numbers[0][np.ix_(indices, columns)].T) if len(numbers) else missing

    def every_sample(self, series: Sequence[tuple[str, str]], after: int = -1) -> Iterator[tuple[Int64, Array]]:
        """Yield steps and (samples, series, layers) values of all samples after a step, for any stride, in parts.

        This keeps nothing, so its memory does not depend on the length of the run.
        """
        columns, indices, stored = self._positions(series)
        samples = self._source.samples
        samples = samples[samples["step"] > after]
        done = 0
        for part, numbers in self._source.parts(samples, stored):
            chosen = numbers[np.ix_(range(len(part)), indices, columns)]
            yield part["step"].copy(), _wide(chosen.swapaxes(1, 2))
            done += len(part)
            if self._progress is not None:
                self._progress(done, len(samples))

    def _positions(self, series: Sequence[tuple[str, str]]) -> tuple[list[int], list[int], int]:
        """Return the columns of the series, the indices of the layers, and the number of indices that are stored."""
        columns = [self._column(quantity, stat) for quantity, stat in series]
        indices = [index for index, _ in self._source.layers.values()]
        return columns, indices, 1 + max(indices, default=-1)

    def histogram(self, layer: str, quantity: str, step: int | None = None) -> Int64:
        """Return counts over `bin_edges()` of the vectors' magnitudes at a step, or of the last sample that has any.

        Histograms merge by adding. All counts are zero if the layer was not measured.
        """
        stored = self._source.distribution(self._layer(layer)[0], self._place(quantity), self._sampled(step))
        return np.zeros(BINS, np.int64) if stored is None else stored[0]

    def extremes(self, layer: str, quantity: str, step: int | None = None) -> tuple[int, int]:
        """Return the ids of the vectors with the smallest and the largest value, -1 if there is none."""
        stored = self._source.distribution(self._layer(layer)[0], self._place(quantity), self._sampled(step))
        return (-1, -1) if stored is None else (int(stored[1][0]), int(stored[1][1]))

    def raw(self, layer: str, quantity: str) -> Array:
        """Return (samples, vectors) values of a layer whose vectors were kept, NaN if not measured."""
        index, info = self._layer(layer)
        count = info.vectors if info.rows is None else len(info.rows)
        values = self._source.vectors(index, self._place(quantity), count)
        if values is None:
            raise ValueError(f"The vectors of {layer!r} were not kept: pass raw=… to the tracker")
        return _wide(values)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalars that training logged (see `Tracker.log`), in the order in which they appeared."""
        return tuple(self._source.scalars())

    @property
    def scalar_count(self) -> int:
        """The number of values that were logged, of all names together."""
        return self._source.sessions[-1].scalars

    def scalar(self, name: str) -> tuple[Int64, Array]:
        """Return all steps and values of a logged scalar, whether or not the steps were sampled."""
        steps, values = self._known("scalar", name, self._source.scalars())
        return steps.copy(), values.copy()

    @property
    def config(self) -> dict[str, Any]:
        """Configuration with which the run was started or last resumed, with versions and commit."""
        return self._source.config

    @property
    def notes(self) -> list[str]:
        """Warnings that belong to the run."""
        dropped = sum(session.dropped for session in self._source.sessions)
        samples = "1 sample" if dropped == 1 else f"{dropped} samples"
        return [*self._source.notes, *([f"{samples} could not be stored."] if dropped else [])]

    @property
    def started(self) -> float:
        """Unix seconds when the run first began."""
        return min(session.started for session in self._source.sessions)

    @property
    def resumed_at(self) -> list[int]:
        """The first step after each time that the run was resumed, if there is one."""
        samples = self._source.samples
        after = [samples["step"][samples["time"] >= session.started] for session in self._source.sessions[1:]]
        return [int(steps[0]) for steps in after if len(steps)]

    @property
    def heartbeat(self) -> float:
        """Unix seconds of the writer's last sign of life. It gives one at least every four seconds."""
        return self._source.sessions[-1].heartbeat

    @property
    def status(self) -> str:
        """running, finished, failed or stopped. A run is stopped after thirty seconds without a heartbeat or an end."""
        status = self._source.sessions[-1].status
        return "stopped" if status == "running" and time.time() - self.heartbeat > STALE else status

    @cached_property
    def incident_search(self) -> "IncidentSearch":
        """The incidents in the samples so far. A diagnosis of a growing run then reads only the new samples."""
        from gyroscope.advice.incidents import IncidentSearch

        return IncidentSearch()

    def diagnose(self) -> "Findings":
        """Return the findings, worst first. A long run is judged by a part of its samples, incidents by all."""
        from gyroscope.advice import diagnose

        if len(self.steps) <= MAX_DIAGNOSED_SAMPLES:
            return diagnose(self)
        with self.thinned(MAX_DIAGNOSED_SAMPLES) as run:
            return diagnose(run)

    def frame(self) -> Any:
        """Return the run as a data frame with a row per step, layer and quantity (see `store.frame`).

        It needs pandas or polars, which are not installed with Gyroscope: `pip install pandas`.

        frame = run.frame()
        frame[frame.quantity == "angular_update"].pivot(index="step", columns="layer", values="mean").plot()
        """
        return frame([self])

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the table of `frame` as .csv or .parquet."""
        export([self], path)

    def close(self) -> None:
        """Close the file. Only what is in memory can be read afterwards."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.status}, {len(self.layers)} layers, {self.total} samples)"

    def _layer(self, name: str) -> tuple[int, LayerInfo]:
        return self._known("layer", name, self._source.layers)

    def _quantity(self, name: str) -> Quantity:
        return self._known("quantity", name, self.quantities)

    def _known(self, kind: str, name: str, known: Mapping[str, Value]) -> Value:
        if name in known:
            return known[name]
        nothing = "log some with tracker.log(loss=loss)" if kind == "scalar" else "there is none yet"
        remedy = did_you_mean(name, known, limit=3, cutoff=0.4) if known else nothing
        raise ValueError(f"There is no {kind} {name!r} in {self.path}: {remedy}")

    def _column(self, quantity: str, stat: str) -> int:
        if stat not in STATISTICS:
            raise ValueError(f"There is no statistic {stat!r}: choose one of {', '.join(STATISTICS)}")
        return self._source.layout.column(self._quantity(quantity), stat)

    def _place(self, quantity: str) -> int:
        if not self._quantity(quantity).per_vector:
            raise ValueError(f"{quantity!r} is one number per layer and has no distribution: use series")
        return self._source.layout.place[quantity]

    def _sampled(self, step: int | None) -> int | None:
        steps = self._source.samples["step"]
        if step is not None and step not in steps:
            nearest = f"The nearest is {steps[np.abs(steps - step).argmin()]}." if len(steps) else "There is none yet."
            raise ValueError(f"There is no sample of step {step} in {self.path}. {nearest}")
        return step


def _wide(numbers: Float32) -> Array:
    # NumPy warns about signalling NaN, which a damaged file may contain.
    with np.errstate(invalid="ignore"):
        return numbers.astype(np.float64)
