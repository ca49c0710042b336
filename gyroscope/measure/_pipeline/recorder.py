"""The path from a measured sample to the run on disk: threads, the writer, sinks, and the end of a run.

A failure of measuring is a note in the run and a warning, never an exception in training.
"""

import atexit
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, final

import numpy as np

from gyroscope._types import Array
from gyroscope._worker import Worker
from gyroscope.advice import Finding
from gyroscope.advice.incidents import SERIES, Incident, IncidentSearch, incident_finding, loss_name, named_values
from gyroscope.measure._pipeline.layers import Layer
from gyroscope.measure._pipeline.optimizers import rule_or_none
from gyroscope.measure._pipeline.sample_worker import RawSample, SampleProcessor
from gyroscope.measure._pipeline.scalar_log import ScalarLog
from gyroscope.measure.quantities import QUANTITIES, stored_number
from gyroscope.measure.sinks import Sink, UserFunction, by_layer, overall, sink_function
from gyroscope.model.optimizer_list import Optimizers
from gyroscope.optimizers import Rules
from gyroscope.store import LayerInfo, LayerSample, RunExistsError, Sample, Writer
from gyroscope.store.database import file_of
from gyroscope.store.writer import Status, status_after, status_at_exit

OnIncident = Callable[[Finding], object]

# Most samples that wait or are being processed, enough for a busy moment.
MAX_SAMPLES = 9
# Most bytes of their sums. A larger sample, for example of an embedding with millions of rows, is accepted when no
# other one waits.
MAX_BYTES = 2**29
# Seconds that training waits for room before a sample is dropped.
PATIENCE = 0.1


@final
class FailureLog:
    """Collects the failures of all threads. `off` is set when measuring has ended. Each text is reported once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.off = False
        self.pending: list[str] = []
        self._note = note
        self._lock = threading.Lock()
        self._reported: set[str] = set()

    def report(self, text: str) -> None:
        """Note a problem now. Its warning follows in the training thread, where users see warnings."""
        with self._lock:
            if text in self._reported:
                return
            self._reported.add(text)
            self.pending.append(text)
        self._note(text)

    def stop(self, error: BaseException) -> None:
        """Stop measuring because of an error. Only the first error is reported."""
        with self._lock:
            first = not self.off
            self.off = True
        if first:
            self.report(f"measuring stopped, training goes on: {type(error).__name__}: {error}")

    def warn(self) -> None:
        """Issue the pending warnings."""
        with self._lock:
            texts = self.pending
            self.pending = []
        for text in texts:
            # Skips this function, the hook and torch's wrapper, so that the warning names the line of optimizer.step().
            warnings.warn(f"gyroscope: {text}", RuntimeWarning, stacklevel=4)


def new_writer(path: str | os.PathLike[str] | None, config: Mapping[str, Any], resume: bool) -> Writer:
    """Return a writer at `path`, by default runs/<date>_<time>, or at <path>-2 if that has a run not to be resumed.

    A forgotten `resume=True` must neither stop training nor change an earlier run.
    """
    wanted = datetime.now().strftime("runs/%Y-%m-%d_%H-%M-%S") if path is None else path
    place = wanted
    for number in count(2):
        try:
            writer = Writer(place, quantities=QUANTITIES, config=config, resume=resume)
            break
        except RunExistsError:
            taken = file_of(wanted).parent.resolve()
            place = taken.with_name(f"{taken.name}-{number}")
    # Unnamed runs may start in the same second, so this is not an error.
    if path is not None and place != path:
        text = f"{taken} already has a run. This one is written to {place}. Pass resume=True to continue the other."
        writer.note(text)
        # Skips this function, Recorder and Tracker, so that the warning names the line that made the tracker.
        warnings.warn(f"gyroscope: {text}", RuntimeWarning, stacklevel=4)
    return writer


@final
class Recorder:
    """Takes samples of one run: processes them in a thread, stores them and hands numbers to the sinks.

    `final_note` gives a sentence that is noted when the run ends, however it ends.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        raw: re.Pattern[str] | None = None,
        sinks: Iterable[Sink] = (),
        sink_layers: re.Pattern[str] | None = None,
        on_incident: OnIncident | None = None,
        rules: Rules | None = None,
        final_note: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.writer = new_writer(path, config, resume)
        self.failures = FailureLog(self.writer.note)
        self.indices: dict[str, int] = {}
        self.closed = False
        self.last_step: int | None = None
        self._status: Status = "finished"
        self._config = config
        self._final_note = final_note
        self._sink_layers = sink_layers
        self._sinks = [sink_function(sink, self.failures.report) for sink in sinks]
        self.scalars = ScalarLog(self.writer, self._sinks, self.failures.report)
        self._alarm = None if on_incident is None else IncidentAlarm(on_incident, self.failures.report)
        self._processor = SampleProcessor(self.writer.note, raw, rules)
        self._worker: Worker[RawSample | None] = Worker(
            self._process,
            name="gyroscope-samples",
            max_items=MAX_SAMPLES,
            max_bytes=MAX_BYTES,
            failed=self.failures.stop,
        )
        # The threads that process and store samples. The cost of sinks depends on the user.
        self.workers: tuple[Worker[Any], ...] = (self._worker, self.writer.worker)
        # Registered after the writer's, and so called before it. A run that was not closed keeps its last samples.
        atexit.register(self._at_exit)

    def add(self, layers: Iterable[Layer], optimizers: Optimizers) -> None:
        """Add layers to the run."""
        groups = optimizers.groups()
        for layer in layers:
            rule = rule_or_none(*groups[layer.group], optimizers.rules)
            # Experts have several axes, and this is the last one. `shape` and `vectors` distinguish them.
            axis = (layer.split.axes(len(layer.shape)) or (0,))[-1]
            split = (layer.vector, axis, layer.split.group_size, layer.vectors, layer.fan_in)
            text = None if rule is None else repr(rule)
            info = LayerInfo(layer.name, tuple(layer.shape), *split, layer.group, text, layer.rows)
            self.indices[layer.name] = self.writer.add_layer(info)

    def put(self, sample: RawSample, *, always: bool = False) -> bool:
        """Queue a sample. Return False if there is no room because earlier ones are still waiting."""
        size = sum(copy.num_bytes for sent in sample.sums for copy in sent.copies)
        return self._worker.put(sample, size=size, timeout=PATIENCE, always=always)

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Keep logged values. They are stored with the next sample, or after a second."""
        self.scalars.add(step, scalars)
        # Without room the values wait, so that they do not displace a sample.
        if self.scalars.is_due():
            self._worker.put(None)

    def log_after_end(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Store values that are logged after the run has ended, such as a last evaluation. Its status stays."""
        # The next writer of the run is a successor of this recorder only if another one makes it.
        on_successor = self.writer.on_successor
        self.writer.on_successor = lambda: None
        try:
            self.writer = Writer(self.writer.path, quantities=QUANTITIES, config=self._config, resume=True)
        finally:
            self.writer.on_successor = on_successor
        try:
            late = ScalarLog(self.writer, (), self.failures.report)
            late.add(step, scalars)
            late.store()
        finally:
            self.writer.close(self._status, self.last_step)

    def flush(self) -> None:
        """Wait until everything handed over can be read in the run."""
        self._send_logged()
        self._worker.flush()
        self.writer.flush()

    def close(self, status: Status) -> None:
        """Process the remaining samples and end the run. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._status = status
        atexit.unregister(self._at_exit)
        self._send_logged()
        # In the order of a sample's path, because no stage may close before the one that feeds it.
        self._worker.close()
        for sink in self._sinks:
            sink.close()
        if self._alarm is not None:
            self._alarm.close()
        if (text := self._final_note()) is not None:
            self.writer.note(text)
        self.writer.close(status, self.last_step)

    def _send_logged(self) -> None:
        if self.scalars.waiting:
            self._worker.put(None, always=True)

    def note_exit(self, error: SystemExit) -> None:
        """Note the code of an exit that is a failure."""
        if status_after(error) == "failed":
            self.writer.note(f"The program ended by sys.exit({error.code!r}).")

    def _at_exit(self) -> None:
        self.close(status_at_exit())

    def _process(self, samples: list[RawSample | None]) -> None:
        """Send logged values and one sample to the store and the sinks. None means only logged values."""
        logged = self.scalars.store() if self.scalars.waiting else []
        if self._alarm is not None:
            self._alarm.log(logged)
        (sample,) = samples
        if sample is None:
            return
        layers = self._processor.process(sample)
        if layers is None:
            return
        self.writer.put(Sample(sample.step, sample.time, {self.indices[name]: layer for name, layer in layers.items()}))
        if self._alarm is not None:
            self._alarm.update(sample.step, layers)
        if self._sinks and not sample.is_end:
            scalars = overall(layers) | ({} if self._sink_layers is None else by_layer(layers, self._sink_layers))
            for sink in self._sinks:
                sink.put(sample.step, dict(scalars))


@final
class IncidentAlarm:
    """Searches samples as they are stored, and calls the function once for each incident."""

    def __init__(self, on_incident: OnIncident, report: Callable[[str], None]) -> None:
        self._search = IncidentSearch()
        self._layers: list[str] = []
        self._losses: list[tuple[int, float]] = []
        self._function = UserFunction(on_incident, "on_incident", report)

    def log(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Keep the losses among the logged values for the next sample."""
        for step, numbers in rows:
            name = loss_name(list(numbers))
            if name is not None:
                self._losses.append((step, numbers[name]))

    def update(self, step: int, layers: Mapping[str, LayerSample]) -> None:
        # A layer that no longer has a gradient is missing from the sample, but stays in the list.
        self._layers += [name for name in layers if name not in self._layers]
        values = np.full((1, len(SERIES), len(self._layers)), np.nan)
        for number, name in enumerate(self._layers):
            if name in layers:
                values[0, :, number] = [stored_number(layers[name], *series) for series in SERIES.items()]
        self._tell(
            self._search.read(np.array([step]), self._layers, named_values(list(SERIES), values), *self._logged())
        )

    def close(self) -> None:
        """Search the losses after the last sample, and let the function finish, for a few seconds."""
        self._tell(self._search.finish(*self._logged()))
        self._function.close()

    def _logged(self) -> Array:
        """Return steps and losses since the last sample, and forget them."""
        logged = np.array(self._losses, np.float64).reshape(-1, 2)
        self._losses = []
        return logged.T

    def _tell(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            self._function.put(incident_finding(incident), always=True)
