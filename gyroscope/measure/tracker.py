"""The tracker: one line beside a training loop measures how fast each weight vector turns."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope._checks import check_count
from gyroscope.measure.config import config as about
from gyroscope.measure.config import frozen, new_path, rule_or_none, snapshot
from gyroscope.measure.failures import Trouble
from gyroscope.measure.layers import Tracked
from gyroscope.measure.measurement import Gauge, rank
from gyroscope.measure.optimizers import has_closure, real_optimizer, steps_taken
from gyroscope.measure.recorder import Recorder, Status
from gyroscope.measure.sample_worker import Arrival
from gyroscope.measure.sampling import Auto, Every, sampling
from gyroscope.measure.sinks import Sink
from gyroscope.model.selection import Invariance
from gyroscope.store import Run, open_run
from gyroscope.theory.law import Weights

if TYPE_CHECKING:
    from gyroscope.advice import Diagnosis


@final
class Tracker:
    """Measures any training run, from hooks around `optimizer.step()` that change nothing of it.

        tracker = gyro.Tracker(model, optimizer)      # before the loop; or: with gyro.Tracker(model, optimizer): …

    Watched are the weights that can turn, one vector per neuron, or as parameter groups (`granularity`, `axis`,
    `group_size`) or the result of `gyro.probe` say; with `layers`, all parameters in whose name the regular expression
    is found. Step 0 is the first. What is measured stands in `gyro.measure.QUANTITIES`; it goes to a run at `path`,
    runs/<date>_<time> by default, which `gyro.store.open_run` reads while it grows.

    `every`: a number of steps, a function step -> bool, or "auto", which is dense at the start, follows the predicted
    timescale and spends at most `budget` of the time. `rows` limits it to that many vectors of each layer, evenly
    spread. `raw`, a regular expression, chooses layers of which every vector's value is kept. `sinks` are functions
    `sink(step, {name: number})`, told about twenty numbers, and rotation and norm of the layers that `sink_layers`
    finds. `resume` continues the run at `path`, at step `start` or where the optimizer and the run say.

    With DDP the first process measures. With FSDP2 all do, and the first one writes: make and close it on all.

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
        optimizer: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        every: Every = 10,
        rows: int | None = None,
        layers: str | None = None,
        probe: Mapping[str, Invariance] | None = None,
        raw: str | None = None,
        sinks: Iterable[Sink] = (),
        sink_layers: str | None = None,
        config: Mapping[str, Any] | None = None,
        resume: bool = False,
        start: int | None = None,
        budget: float = 0.01,
    ) -> None:
        if rows is not None:
            check_count("rows", rows, at_least=1, meaning="or None for all vectors of a layer")
        self.optimizer: Optimizer = real_optimizer(optimizer)
        self.samples, self.seconds = 0, 0.0  # taken, and for how long they held training up
        self._gauge = Gauge(model, self.optimizer, _expression("layers", layers), probe, rows)
        new = self._gauge.refresh()
        self._sampling = sampling(every, budget, alone=not self._gauge.sharded)
        self._recorder: Recorder | None = None
        self._trouble = Trouble(lambda text: None)
        self._hooks: list[Any] = []
        if rank() == 0:
            if not new:
                raise ValueError(
                    "none of the optimizer's parameters is a weight of the model that could turn: pass the model whose "
                    "parameters the optimizer has, or choose parameters by layers=…, a regular expression"
                )
            self._recorder = Recorder(
                new_path() if path is None else path,
                about(model, self.optimizer, every, rows, config),
                resume=resume,
                raw=_expression("raw", raw),
                sinks=sinks,
                sink_layers=_expression("sink_layers", sink_layers),
            )
            self._trouble = self._recorder.trouble
        try:
            self._record(new)
            self._step = self._first_step(resume, start)
        except BaseException:
            self.close("failed")
            raise
        self._history: list[tuple[list[tuple[Any, Any]], int]] = []
        self._sampled = self._shipped = self._gap = False
        self._seconds_before = 0.0
        if self._recorder is not None or self._gauge.sharded:
            # A compiled step must not compile its measurement.
            disable: Any = torch.compiler.disable
            pre, post = disable(self._pre), disable(self._post)
            self._hooks += [self.optimizer.register_step_pre_hook(pre), self.optimizer.register_step_post_hook(post)]

    def _first_step(self, resume: bool, start: int | None) -> int:
        if start is not None or not resume:
            return start or 0
        stored = [] if self._recorder is None else self.run.steps.tolist()
        step = steps_taken(self.optimizer) or (stored[-1] + 1 if stored else 0)
        return self._gauge.agreed(step)

    @property
    def path(self) -> Path:
        """Directory of the run; only the process that writes has one."""
        return self._writing().writer.path

    @property
    def run(self) -> Run:
        """The run with all that was measured so far."""
        self._writing().flush()
        return open_run(self.path)

    def diagnose(self) -> "Diagnosis":
        """What the run says so far, in sentences with numbers and remedies, worst first."""
        with self.run as run:
            return run.diagnose()

    def close(self, status: Status = "finished") -> None:
        """End the run and take the hooks off the optimizer; a second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._recorder is not None:
            self._recorder.close(status)
        self._trouble.warn()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else "failed")

    def _writing(self) -> Recorder:
        if self._recorder is None:
            raise ValueError(f"process {rank()} measures but does not write: ask process 0 about the run")
        return self._recorder

    # What follows runs within every step: nothing that goes wrong may stop training, or leave other processes waiting.

    def _pre(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
        try:
            self._before(args, kwargs)
        except Exception as error:
            self._trouble.stop(error)

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
        try:
            self._after()
        except Exception as error:
            self._trouble.stop(error)
        if self._trouble.off and self._sampled and not self._shipped:
            with suppress(Exception):
                self._gauge.mute()
        self._trouble.warn()

    def _before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        began, self._sampled, self._shipped = time.perf_counter(), False, False
        self._sampled = self._sampling.due(self._step)
        if not self._sampled or self._trouble.off:
            return
        self._record(self._gauge.refresh())
        self._gauge.before(has_closure(args, kwargs))
        self._seconds_before = time.perf_counter() - began

    def _after(self) -> None:
        began = time.perf_counter()
        step, self._step = self._step, self._step + 1
        if self._trouble.off:
            return
        if self._recorder is not None:
            self._remember_rates()
        if not self._sampled:
            return
        crates, readings = self._gauge.after()
        self._shipped = True
        groups = self.optimizer.param_groups
        if self._recorder is not None and readings:
            now, amp = [snapshot(group) for group in groups], self._gauge.amp()
            arrival = Arrival(step, time.time(), self.optimizer, crates, readings, now, self._history, amp, self._gap)
            self._gap = not self._recorder.put(arrival)
            if not self._gap:
                self._history = []
        if isinstance(self._sampling, Auto):
            self._sampling.timescale = min(_timescale(group, self.optimizer) for group in groups)
        seconds = self._seconds_before + time.perf_counter() - began
        self._sampling.spent(seconds)
        self.samples, self.seconds = self.samples + bool(readings), self.seconds + seconds

    def _record(self, new: list[Tracked]) -> None:
        if self._recorder is not None:
            self._recorder.add(new, self.optimizer)

    def _remember_rates(self) -> None:
        rates = [
            (_rate(group, "lr", np.nan), _rate(group, "weight_decay", 0.0)) for group in self.optimizer.param_groups
        ]
        if self._history and _equal(self._history[-1][0], rates):
            self._history[-1] = rates, self._history[-1][1] + 1
        else:
            self._history.append((rates, 1))


def _rate(group: Mapping[str, Any], name: str, without: float) -> Any:
    """An option that may be missing, or None where the optimizer finds its own."""
    value = group.get(name)
    return without if value is None else frozen(value)


def _equal(one: list[tuple[Any, Any]], other: list[tuple[Any, Any]]) -> bool:
    """Whether rates are the same; of those on a device nobody asks, for that would wait."""
    return not any(isinstance(value, Tensor) for rates in (*one, *other) for value in rates) and one == other


def _timescale(group: Mapping[str, Any], optimizer: Optimizer) -> float:
    """Steps after which a direction of this group is forgotten; infinite where that is not known."""
    rule, lr = rule_or_none(group, optimizer), frozen(group.get("lr"))
    if rule is None or not isinstance(lr, float | int):
        return float("inf")
    with np.errstate(all="ignore"):
        found = rule.at(lr, Weights()).timescale
    return float("inf") if found is None or np.isnan(found) else float(found)


def _expression(name: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise ValueError(f"{name}={text!r} is not a regular expression: {error}") from None
