"""Where numbers go beside the run: TensorBoard, Weights & Biases or any function, each in a thread of its own."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np

from gyroscope._worker import Worker
from gyroscope.measure.quantities import NAN, PLACE
from gyroscope.store import STATISTICS, LayerSample

Scalars = dict[str, float]
# Called with the step and named numbers, of a sample or logged by training; may have `close()`.
Sink = Callable[[int, Scalars], object]

# Samples that wait for a slow sink before some are left out.
QUEUE = 64
# Seconds that closing a run waits for a sink.
PATIENCE = 5.0

# Reported as the median over layers of the layer's RMS (of its mean, for what has a sign).
OVER_LAYERS = (
    *("angular_update", "norm", "unit_grad_norm", "grad_weight_cosine", "lambda_u", "rotation_discrepancy"),
    "effective_lr",
)
SIGNED = {"grad_weight_cosine", "lambda_u"}
PREDICTED = ("predicted_angular_update", "predicted_norm", "forecast_angular_update", "forecast_norm")
COUNTED = ("dead_vectors", "frozen_entries")


def overall(layers: Mapping[str, LayerSample]) -> Scalars:
    """Return about twenty numbers on a sample: medians over layers, the fastest and slowest rotation, and counts."""
    samples = list(layers.values())
    numbers: Scalars = {}
    # The median, so that one odd layer does not hide the others.
    for name in OVER_LAYERS:
        numbers[name] = _median([_statistic(sample, name, "mean" if name in SIGNED else "rms") for sample in samples])
    for name in (*PREDICTED, "lr"):
        numbers[name] = _median([_scalar(sample, name) for sample in samples])
    extremes = {
        "angular_update": [_statistic(sample, "angular_update", "rms") for sample in samples],
        "angular_update_over_predicted": [ratio(sample) for sample in samples],
    }
    for name, values in extremes.items():
        finite = [value for value in values if np.isfinite(value)]
        numbers[f"{name}/least"] = min(finite, default=NAN)
        numbers[f"{name}/most"] = max(finite, default=NAN)
    for name in COUNTED:
        numbers[name] = float(np.nansum([_scalar(sample, name) for sample in samples]))
    return _finite(numbers)


def by_layer(layers: Mapping[str, LayerSample], pattern: re.Pattern[str]) -> Scalars:
    """Return rotation, norm and their predictions for every layer whose name matches the expression."""
    numbers: Scalars = {}
    for layer, sample in layers.items():
        if pattern.search(layer):
            for name in ("angular_update", "norm", "rotation_discrepancy"):
                numbers[f"{name}/{layer}"] = _statistic(sample, name, "rms")
            for name in PREDICTED[:2]:
                numbers[f"{name}/{layer}"] = _scalar(sample, name)
    return _finite(numbers)


def ratio(sample: LayerSample) -> float:
    """Return a layer's rotation over the one predicted for equilibrium, NaN if either is missing."""
    predicted = _scalar(sample, "predicted_angular_update")
    return _statistic(sample, "angular_update", "rms") / predicted if predicted else NAN


def _finite(numbers: Scalars) -> Scalars:
    # Some services refuse NaN, and others draw it as zero.
    return {f"gyroscope/{name}": value for name, value in numbers.items() if np.isfinite(value)}


def _scalar(sample: LayerSample, quantity: str) -> float:
    return float(sample.scalars[PLACE[quantity]])


def _statistic(sample: LayerSample, quantity: str, statistic: str) -> float:
    return float(sample.statistics[PLACE[quantity], STATISTICS.index(statistic)])


def _median(values: list[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.median(finite)) if finite else NAN


@final
class SinkWorker:
    """A sink with its queue and thread. A sink that fails is left out from then on, a slow one misses samples."""

    def __init__(self, sink: Sink, report: Callable[[str], None]) -> None:
        self.sink = sink
        self.report = report
        self.name = getattr(sink, "__name__", type(sink).__name__)
        self.missed = 0
        self._failed = False
        self._worker: Worker[Sequence[tuple[int, Scalars]]] = Worker(
            self._handle,
            name=f"gyroscope-{self.name}",
            max_items=QUEUE + 1,  # one is with the sink while others wait
            failed=self._fail,
            finish=self._close_sink,
        )

    def put(self, step: int, scalars: Scalars) -> None:
        """Hand over the numbers of a sample; never waits."""
        self.missed += not self._worker.put([(step, scalars)])

    def put_logged(self, rows: Sequence[tuple[int, Scalars]]) -> None:
        """Hand over what training logged; never waits, and has room for all: a curve of the loss must not have gaps."""
        self._worker.put([(step, dict(numbers)) for step, numbers in rows], always=True)

    def close(self) -> None:
        """Let the sink finish what it has, for a few seconds; then go on without it."""
        if not self._worker.close(PATIENCE):
            self.report(f"the sink {self.name} did not finish within {PATIENCE:g} s and was left behind")
        if self.missed:
            self.report(f"the sink {self.name} was too slow and missed {self.missed} samples")

    def _handle(self, items: list[Sequence[tuple[int, Scalars]]]) -> None:
        for step, scalars in items[0]:
            if not self._failed:
                self.sink(step, scalars)

    # In the sink's own thread, since TensorBoard and the like are not made for two threads.
    def _close_sink(self) -> None:
        if not self._failed:
            getattr(self.sink, "close", lambda: None)()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self.report(f"the sink {self.name} failed and is left out from now on: {type(error).__name__}: {error}")
