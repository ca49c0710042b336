"""The desk at which samples arrive: a thread waits for their numbers, compares them with theory, and stores them."""

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np
from torch.optim import Optimizer

from gyroscope.measure.layers import Ids, Tracked, keeps_norms_by_name
from gyroscope.measure.measurement import Reading
from gyroscope.measure.merge import merged
from gyroscope.measure.optimizer_state import recall
from gyroscope.measure.prediction import Forecaster, Rates, Subject
from gyroscope.measure.quantities import Circumstances, Prediction, Vectors
from gyroscope.measure.sinks import Outlet, by_layer, overall
from gyroscope.measure.statistics import layer_samples
from gyroscope.measure.sums import OLD
from gyroscope.measure.transfer import Crate, Parcel
from gyroscope.optim.torch_rules import rule_of
from gyroscope.store import LayerSample, Sample
from gyroscope.theory import UpdateRule

QUEUE = 8
"""Samples that wait to be worked on."""
PATIENCE = 0.1
"""Seconds that training waits for a place in a full queue before the sample is given up."""

History = Sequence[tuple[Sequence[tuple[Any, Any]], int]]
"""(lr, weight decay) of every group, and the number of consecutive steps for which they held."""


class Store(Protocol):
    """What the desk needs of a writer."""

    def put(self, sample: Sample) -> None: ...  # noqa: D102
    def note(self, text: str) -> None: ...  # noqa: D102


@final
@dataclass(frozen=True)
class Arrival:
    """A sample as it leaves the training loop.

    `amp` holds found_inf and the gradients' scale, where there are any; `gap` says that the sample before was lost.
    """

    step: int
    time: float
    optimizer: Optimizer
    crates: Sequence[Crate]
    readings: Mapping[str, Reading]
    groups: Sequence[Mapping[str, Any]]
    history: History
    amp: Parcel | None = None
    gap: bool = False


@final
class Desk:
    """Takes arrivals in order. A failure of its own ends it: `failed` is called once with the exception."""

    def __init__(
        self,
        store: Store,
        indices: Mapping[str, int],
        outlets: Sequence[Outlet],
        failed: Callable[[Exception], None],
        raw: re.Pattern[str] | None = None,
        sink_layers: re.Pattern[str] | None = None,
    ) -> None:
        self.store, self.indices = store, indices
        self.outlets, self.failed = outlets, failed
        self.raw, self.sink_layers = raw, sink_layers
        self._forecasters: dict[int, Forecaster] = {}
        self._passed: list[tuple[Sequence[tuple[Any, Any]], int]] = []  # rates of steps not told to forecasts yet
        self._gap = self._broken = False
        self._queue: queue.Queue[Arrival | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._run, name="gyroscope-desk", daemon=True)
        self._thread.start()

    def put(self, arrival: Arrival) -> bool:
        """Hand over a sample; False where the desk is too far behind."""
        try:
            self._queue.put(arrival, timeout=PATIENCE)
        except queue.Full:
            return False
        return True

    def flush(self) -> None:
        """Wait until everything handed over has gone to the store."""
        self._queue.join()

    def close(self) -> None:
        """Work off what is there and end."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while self._serve():
            pass

    def _serve(self) -> bool:
        """Wait for an arrival and work it out; a function of its own, so that nothing of it is held while waiting."""
        arrival = self._queue.get()
        try:
            if arrival is not None and not self._broken:
                self._handle(arrival)
        except Exception as error:
            self._broken = True
            self.failed(error)
        finally:
            self._queue.task_done()
        return arrival is not None

    def _handle(self, arrival: Arrival) -> None:
        found_inf, scale = (0.0, 1.0) if arrival.amp is None else arrival.amp.open().tolist()
        passed, gap = [*self._passed, *arrival.history], self._gap or arrival.gap
        if found_inf:  # the step did nothing: no sample, but those before it count
            (rates, steps), self._gap = passed[-1], True
            self._passed = [*passed[:-1], (rates, steps - 1)] if steps > 1 else passed[:-1]
            return
        self._passed, self._gap = [], False
        history = [([(float(lr), float(wd)) for lr, wd in rates], steps) for rates, steps in passed]
        rules = [self._rule(arrival, number) for number in range(len(arrival.groups))]
        found: dict[str, tuple[Tracked, Ids, Vectors]] = {}
        for crate in arrival.crates:
            for layer, ids, pieces in crate.open():
                ids, sums = merged(ids, pieces)
                if gap:
                    sums[OLD] = 0.0  # the weights were last copied for what did not become a sample
                at = self._circumstances(arrival, layer, rules[layer.group], history[-1][0][layer.group], scale)
                found[layer.name] = layer, ids, Vectors.of(sums, at)
        predicted = self._predictions(arrival, rules, history, found)
        summed = layer_samples(
            [
                (ids, replace(vectors, predicted=predicted.get(name, Prediction())), self._keeps(name))
                for name, (_, ids, vectors) in found.items()
            ]
        )
        layers = dict(zip(found, summed, strict=True))
        self.store.put(Sample(arrival.step, arrival.time, {self.indices[name]: one for name, one in layers.items()}))
        self._tell(arrival.step, layers)

    def _keeps(self, name: str) -> bool:
        return self.raw is not None and self.raw.search(name) is not None

    def _rule(self, arrival: Arrival, number: int) -> UpdateRule | None:
        try:
            return rule_of(arrival.groups[number], arrival.optimizer)
        except ValueError as error:
            self.store.note(f"No predictions for parameter group {number}: {error}")
            return None

    def _circumstances(
        self, arrival: Arrival, layer: Tracked, rule: UpdateRule | None, rates: tuple[float, float], scale: float
    ) -> Circumstances:
        reading, group = arrival.readings[layer.name], arrival.groups[layer.group]
        return Circumstances(
            *rates,
            fan_in=layer.fan_in,
            rule=rule,
            adam=reading.adam,
            scale=scale,
            sign=-1.0 if group.get("maximize") else 1.0,
            late=reading.late,
            recall=recall(rule, group, keeps_norms_by_name(arrival.optimizer)) if reading.late else None,
            had_momentum=reading.had_momentum,
        )

    def _predictions(
        self,
        arrival: Arrival,
        rules: Sequence[UpdateRule | None],
        history: Sequence[tuple[Sequence[tuple[float, float]], int]],
        found: Mapping[str, tuple[Tracked, Ids, Vectors]],
    ) -> dict[str, Prediction]:
        predictions: dict[str, Prediction] = {}
        for number, (group, rule) in enumerate(zip(arrival.groups, rules, strict=True)):
            subjects = [_subject(layer, v) for layer, _, v in found.values() if layer.group == number]
            rates = [Rates(*groups[number], steps) for groups, steps in history if number < len(groups)]
            if rule is None or not subjects:
                continue
            forecaster = self._forecasters.setdefault(number, Forecaster(keeps_norms_by_name(arrival.optimizer)))
            try:
                predictions |= forecaster.predict(rule, group, rates, subjects)
            except ValueError as error:
                self.store.note(f"No predictions for parameter group {number}: {error}")
        return predictions

    def _tell(self, step: int, layers: Mapping[str, LayerSample]) -> None:
        if not self.outlets:
            return
        scalars = overall(layers)
        if self.sink_layers is not None:
            scalars |= by_layer(layers, self.sink_layers)
        for outlet in self.outlets:
            outlet.put(step, dict(scalars))


def _subject(layer: Tracked, v: Vectors) -> Subject:
    with np.errstate(all="ignore"):
        norm, gradient = float(np.sqrt(np.mean(v.ww))), float(np.sqrt(np.mean(v.unit_grad_norm**2)))
    return Subject(layer.name, layer.fan_in, layer.vectors, tuple(layer.parameter.shape), norm, gradient)
