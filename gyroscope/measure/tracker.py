"""The tracker: one line beside a training loop measures how fast each weight vector rotates."""

import operator
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, cast, final
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope._checks import check_count
from gyroscope.measure._pipeline.host_copy import SentSums
from gyroscope.measure._pipeline.layers import Layer
from gyroscope.measure._pipeline.measurement import StepMeasurement, rank
from gyroscope.measure._pipeline.optimizers import LayerReading, run_config, steps_taken
from gyroscope.measure._pipeline.recorder import FailureLog, OnIncident, Recorder
from gyroscope.measure._pipeline.sample_worker import RawSample
from gyroscope.measure.sampling import DefaultInterval, Every, sampling
from gyroscope.measure.sinks import Sink
from gyroscope.model.optimizer_list import Optimizers
from gyroscope.model.selection import AnyOptimizer, Invariance, turned_by_default
from gyroscope.optim.registry import FALLBACKS
from gyroscope.optim.rotational import refuse_inner
from gyroscope.optimizers import Rules
from gyroscope.store import Run, open_run
from gyroscope.store.rows import LARGEST
from gyroscope.store.writer import Status, status_after

if TYPE_CHECKING:
    from gyroscope.advice import Findings


@dataclass
class _Step:
    """A step of the run in progress: the optimizers that have stepped, whether it is measured, and the measurements."""

    stepped: set[Optimizer] = field(default_factory=set)
    sampled: bool = False
    sums: list[SentSums] = field(default_factory=list)
    readings: dict[str, LayerReading] = field(default_factory=dict)
    seconds: float = 0.0


@final
class Tracker:
    """Measures how fast each weight vector rotates, with hooks around `optimizer.step()` that change nothing.

        tracker = gyro.Tracker(model, optimizer)      # before the loop, or: with gyro.Tracker(model, optimizer): …

    It watches weights that can rotate, one vector per neuron, and embeddings that decay, one vector per token.
    `gyro.measure.QUANTITIES` lists what it measures. Step 0 is the first call of `optimizer.step()`. A step that a
    GradScaler skips is not a sample, and counts only if the optimizer is fused, because others are not called then.
    With DDP the first process measures. With FSDP2 all processes measure and the first one writes.

    Several optimizers are one run: `Tracker(model, [muon, adamw])`. A step of the run ends when all of them have
    stepped, or when one of them steps again. A GAN is one run with a ModuleDict of both models, or two runs.

    Arguments:
        model: the model whose parameters the optimizer trains.
        optimizer: a torch optimizer, a wrapper by Lightning or Accelerate, or a list of several.
        path: directory of the run, by default `runs/<date>_<time>`. If it has a run, the new one goes to `<path>-2`.
        every: steps to measure: a number n (0, n, 2n, …), or a function step -> bool. By default the first 20 steps,
            then every tenth. The default becomes rarer to stay within `budget`, and stores the last step of a run too.
        rows: number of vectors to measure per layer, evenly spread. Default: all.
        rules: theory rules for your own optimizer classes, {MyOptimizer: function of its group}.
        layers: regular expression. Parameters whose name matches are watched instead of the default ones.
        probe: result of `gyro.probe`, which determines how tensors split into vectors.
        parts: regular expression -> names of the parts of a fused weight, by default q, k and v. {} splits none.
        raw: regular expression. The run keeps the value of every vector of these layers.
        sinks: functions `sink(step, {name: number})`, called in their own threads with about 20 numbers per sample.
        sink_layers: regular expression. Sinks also get rotation and norm of these layers.
        on_incident: function that gets a `Finding` for each incident, in its own thread.
        config: anything to store with the run, as JSON or its repr.
        resume: continue the run at `path`. A run that another process writes is an error.
        start: number of the first step. Default: 0, or where the resumed run ends.
        budget: share of the time that measuring may take, 0.01 because one percent is hard to notice.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(8, 4)
    >>> adamw = torch.optim.AdamW(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder, Tracker(model, adamw, folder, every=1) as tracker:
    ...     for _ in range(3):
    ...         adamw.zero_grad()
    ...         model(torch.randn(2, 8)).square().sum().backward()
    ...         adamw.step()
    ...     tracker.run.layers, tracker.run.steps.tolist()
    (['weight'], [0, 1, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: AnyOptimizer,
        path: str | os.PathLike[str] | None = None,
        *,
        every: Every = DefaultInterval(10),  # noqa: B008 - a number
        rows: int | None = None,
        rules: Rules | None = None,
        layers: str | None = None,
        probe: Mapping[str, Invariance] | None = None,
        parts: Mapping[str, Sequence[str]] | None = None,
        raw: str | None = None,
        sinks: Iterable[Sink] = (),
        sink_layers: str | None = None,
        on_incident: OnIncident | None = None,
        config: Mapping[str, Any] | None = None,
        resume: bool = False,
        start: int | None = None,
        budget: float = 0.01,
    ) -> None:
        if rows is not None:
            check_count("rows", rows, at_least=1, meaning="or None for all vectors of a layer")
        if start is not None:
            start = _first_step_number(start)
        self.optimizers = Optimizers(optimizer, rules)
        refuse_inner(self.optimizers.members)
        self.samples = 0
        self._step = 0
        self.seconds = 0.0
        """Total time for which samples delayed training."""
        self._measurement = StepMeasurement(model, self.optimizers, _expression("layers", layers), probe, rows, parts)
        new = self._measurement.refresh()
        self._sampling = sampling(every, budget, alone=not self._measurement.sharded)
        self._recorder: Recorder | None = None
        self._failures = FailureLog(lambda text: None)
        self._hooks: list[Any] = []
        self._pid = os.getpid()
        self._now = _Step()
        self._sent = False
        self._gap = False
        self._last_sample = -1
        self._superseded = False
        self._thread_seconds = 0.0
        if rank() == 0:
            if not new:
                raise ValueError(
                    "none of the optimizer's parameters is a weight of the model that can rotate: pass the model whose "
                    "parameters the optimizer has, or choose parameters by layers=…, a regular expression"
                )
            self._recorder = Recorder(
                path,
                run_config(model, self.optimizers, every, rows, config),
                resume=resume,
                raw=_expression("raw", raw),
                sinks=sinks,
                sink_layers=_expression("sink_layers", sink_layers),
                on_incident=on_incident,
                rules=rules,
                final_note=self._sampling.summary,
            )
            self._failures = self._recorder.failures
            # A weak reference, because the writer lives until the process ends and must not keep the model alive.
            stop = WeakMethod(self._stop)
            close = partial(self._recorder.close, "stopped")
            self._recorder.writer.on_successor = lambda: (stop() or close)()
            self._report_turned_by_default(model)
        # From here on there is a run on disk, which must not be left as "running".
        try:
            self._record(new)
            self._step = self._first_step(resume, start)
        except BaseException:
            self.close("failed")
            raise
        if self._recorder is not None or self._measurement.sharded:
            # A compiled step must not compile its measurement.
            disable: Any = torch.compiler.disable
            for member in self.optimizers.members:
                self._hooks.append(member.register_step_pre_hook(disable(self._pre)))
                self._hooks.append(member.register_step_post_hook(disable(self._post)))

    def _report_turned_by_default(self, model: nn.Module) -> None:
        """Warn about tensors that should not rotate. Only the tracker knows both the model and the groups."""
        decisions = turned_by_default(model, self.optimizers)
        if decisions:
            some = ", ".join(f"{decision.name} ({decision.reason})" for decision in decisions[:3])
            more = f" and {len(decisions) - 3} more" if len(decisions) > 3 else ""
            optimizer = type(self.optimizers.owners[decisions[0].group]).__name__
            self._failures.report(
                f"{optimizer} was made from bare tensors and rotates what it should not: {some}{more}. Make it from "
                f"the model, {optimizer}(model, …), which sorts its parameters"
            )

    def _first_step(self, resume: bool, start: int | None) -> int:
        if start is not None or not resume:
            return start or 0
        stored = 0 if self._recorder is None else self.run.last_step + 1
        step = steps_taken(self.optimizers) or stored
        return self._measurement.agreed(step)

    @property
    def writes(self) -> bool:
        """Whether this process writes the run. Only the first of several processes does."""
        return self._recorder is not None

    @property
    def steps(self) -> int:
        """Number of steps taken, which is the number of the next step."""
        return self._step

    @property
    def path(self) -> Path:
        """Directory of the run. Only the process that writes has one."""
        return self._writing().writer.path

    @property
    def run(self) -> Run:
        """The run with everything measured so far, or in a forked process with everything stored so far."""
        self._writing().flush()
        return open_run(self.path)

    def diagnose(self) -> "Findings":
        """Return the findings about the run so far, worst first."""
        with self.run as run:
            return run.diagnose()

    # `/`: "self" is a name like others.
    def log(self, /, **scalars: float | Tensor) -> None:
        """Store named numbers for the last step taken, such as `log(loss=loss)`.

        Every value is stored and passed to the sinks, whether or not its step is measured. If a name is logged twice in
        a step, the later value is kept. A tensor of one element may be on a device: it is read later, without waiting.
        Values logged after `close` are stored too. Processes that do not write ignore the call.

        >>> import tempfile, torch
        >>> model = torch.nn.Linear(8, 4)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder, Tracker(model, sgd, folder) as tracker:
        ...     for loss in (2.0, 1.0):
        ...         sgd.step()
        ...         tracker.log(loss=loss, accuracy=torch.tensor(0.5))
        ...     steps, losses = tracker.run.scalar("loss")
        >>> steps.tolist(), losses.tolist()
        ([0, 1], [2.0, 1.0])
        """
        if self._recorder is None or os.getpid() != self._pid:
            return
        try:
            # `_step` is the step to come, or the one that some of the optimizers have taken.
            last = self._step if self._now.stepped else max(0, self._step - 1)
            if not self._recorder.closed:
                self._recorder.log(last, scalars)
            elif self._superseded:
                self._failures.report("tracker.log was called after another tracker resumed the run: log with that one")
            else:
                self._recorder.log_after_end(last, scalars)
        except Exception as error:
            self._failures.report(f"values were not logged, training goes on: {type(error).__name__}: {error}")
        if self._failures.pending:
            self._failures.warn()

    def flush(self) -> None:
        """Wait until everything measured and logged is in the run, for example before saving a checkpoint.

        A process that is killed after that loses nothing. Processes that do not write return at once.
        """
        if self._recorder is not None and os.getpid() == self._pid:
            self._recorder.flush()

    def close(self, status: Status = "finished") -> None:
        """End the run with a last sample and remove the hooks. A second call does nothing.

        If weights are sharded the hooks stay: other processes may go on measuring, and would wait for this one.
        """
        try:
            if self._now.stepped:
                self._end_early()
            self._sample_end()
        except Exception as error:
            self._failures.stop(error)
        if self._measurement.sharded:
            self._failures.off = True
        else:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
        if self._recorder is not None:
            self._recorder.close(status)
        self._failures.warn()

    def _sample_end(self) -> None:
        """Store the last step with the values that need no measurement: settings, and weights after it.

        This is skipped if `every` was given, or if weights are sharded, because other processes may not end now.
        """
        last = self._step - 1
        recorder = self._recorder
        if recorder is None or recorder.closed or self._failures.off or self._measurement.sharded:
            return
        if not self._sampling.chooses_steps:
            return
        if last <= self._last_sample or not self._measurement.settings.history or os.getpid() != self._pid:
            return
        sums, readings = self._measurement.at_end()
        recorder.put(self._raw_sample(last, sums, readings, is_end=True), always=True)

    def _stop(self) -> None:
        """End the run because another tracker of this process resumes it."""
        self._superseded = True
        self.close("stopped")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SystemExit) and self._recorder is not None:
            self._recorder.note_exit(error)
        self.close(status_after(error))

    def _writing(self) -> Recorder:
        if self._recorder is None:
            raise ValueError(f"process {rank()} measures but does not write: ask process 0 about the run")
        return self._recorder

    # The following methods run in every step. An error must not stop training or leave other processes waiting.

    def _pre(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
        self._sent = False
        try:
            self._before(optimizer, args, kwargs)
        except Exception as error:
            self._failures.stop(error)

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
        sampled = self._now.sampled
        try:
            self._after(optimizer, sampled)
        except Exception as error:
            self._failures.stop(error)
        if self._failures.off and sampled and not self._sent:
            # If layers are sharded, the other processes gather now and would wait for this one forever.
            with suppress(Exception):
                self._measurement.take_part(optimizer)
        if self._failures.pending:
            self._failures.warn()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        began = time.perf_counter()
        if optimizer in self._now.stepped:
            self._end_early()
        begins = not self._now.stepped
        if begins:
            self._now = _Step()
        if os.getpid() != self._pid:  # a forked process has no thread that would take a sample
            return
        if begins:
            self._now.sampled = self._sampling.due(self._step)
        if not self._now.sampled or self._failures.off:
            return
        # At every sample, since parameters may be added, replaced or grown at any time.
        new = self._measurement.refresh(self._step) if begins else []
        if new:
            self._record(new)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        self._measurement.before(optimizer, closure is not None)
        self._now.seconds += time.perf_counter() - began

    def _after(self, optimizer: Optimizer, sampled: bool) -> None:
        began = time.perf_counter()
        now = self._now
        # Counted after the step, because a step that raised an exception does not count.
        now.stepped.add(optimizer)
        ends = len(now.stepped) == len(self.optimizers.members)
        # Also between samples, because a forecast needs the rates of every step.
        if not self._failures.off and (sampled or self._recorder is not None):
            sums, readings = self._measurement.after(optimizer, sampled, ends)
            self._sent = sampled
            now.sums += sums
            now.readings |= readings
            now.seconds += time.perf_counter() - began
        if ends:
            self._end_step()

    def _end_early(self) -> None:
        """End a step of the run in which some of the optimizers take no part."""
        if not self._failures.off:
            self._measurement.end_step()
        self._end_step()

    def _end_step(self) -> None:
        """Hand over the measurements after each participating optimizer has stepped, and go on to the next step."""
        began = time.perf_counter()
        now = self._now
        self._now = _Step()
        settings = self._measurement.settings
        recorder = self._recorder
        step = self._step
        self._step = step + 1
        if recorder is None:  # only the process that writes needs the history
            settings.history = []
        else:
            recorder.last_step = step
        if not now.sampled or self._failures.off:
            return
        of_threads = self._share_of_threads()
        if recorder is not None and now.readings:
            self._last_sample = step
            self._gap = not recorder.put(self._raw_sample(step, now.sums, now.readings))
            # The history of a refused sample goes to the next one, so that forecasts miss no step.
            if not self._gap:
                settings.history = []
            elif not self._sampling.left_out[0]:
                self._failures.report(
                    f"samples come faster than they can be processed. From step {step} on some are left out, evenly "
                    "spaced. The run has their number"
                )
        seconds = now.seconds + time.perf_counter() - began
        self.samples += bool(now.readings)
        self.seconds += seconds
        note = self._sampling.record_cost(step, seconds + of_threads, refused=self._gap)
        if recorder is not None:
            for text in [*FALLBACKS.values(), *([] if note is None else [note])]:
                recorder.writer.note(text)

    def _raw_sample(
        self, step: int, sums: list[SentSums], readings: dict[str, LayerReading], *, is_end: bool = False
    ) -> RawSample:
        measurement = self._measurement
        return RawSample(
            step=step,
            time=time.time(),
            owners=list(self.optimizers.owners),
            groups=dict(measurement.settings.options),
            sums=sums,
            readings=readings,
            history=measurement.settings.history,
            scaler=measurement.scaler,
            gap=self._gap,
            is_end=is_end,
        )

    def _share_of_threads(self) -> float:
        """Return the threads' processor time since the last sample as training time that it takes.

        All of it if training has one thread, otherwise half. A budget of 1 % then allows the threads 2 % of a core,
        however many cores there are.
        """
        before = self._thread_seconds
        workers = () if self._recorder is None else self._recorder.workers
        self._thread_seconds = sum(worker.seconds for worker in workers)
        return (self._thread_seconds - before) / min(2, torch.get_num_threads())

    def _record(self, new: list[Layer]) -> None:
        if self._recorder is not None:
            self._recorder.add(new, self.optimizers)
            for text in self._measurement.changes:
                self._recorder.writer.note(text)
            self._measurement.changes = []


def _first_step_number(start: object) -> int:
    """Return `start` as an int. Raise unless a run can store a step of that number."""
    try:
        number = operator.index(cast(SupportsIndex, start))
    except TypeError:
        raise TypeError(f"start={start!r} must be a whole number: that of the first step, 0 by default") from None
    if not 0 <= number <= LARGEST:
        raise ValueError(f"start={start!r} must lie between 0 and 2**53: the number of the first step")
    return number


def _expression(name: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise ValueError(f"{name}={text!r} is not a regular expression: {error}") from None
