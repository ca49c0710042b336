"""Sinks that get numbers in addition to the run: TensorBoard, Weights & Biases or any function, each in a thread."""

import re
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from gyroscope._worker import Worker
from gyroscope.measure.quantities import NAN, stored_number
from gyroscope.store import LayerSample

Scalars = dict[str, float]
# Called with the step and named numbers, of a sample or logged by training. It may have `close()`.
Sink = Callable[[int, Scalars], object]

# Samples that wait for a slow sink before some are left out.
QUEUE = 64
# Seconds that closing a run waits for a user's function.
PATIENCE = 5.0

# Reported as the median over layers of the layer's RMS, or of its mean for quantities with a sign.
OVER_LAYERS = {
    **dict.fromkeys(("angular_update", "norm", "unit_grad_norm", "rotation_discrepancy", "effective_lr"), "rms"),
    **dict.fromkeys(("grad_weight_cosine", "lambda_u"), "mean"),
}
PREDICTED = ("predicted_angular_update", "predicted_norm", "forecast_angular_update", "forecast_norm")
COUNTED = ("dead_vectors", "frozen_entries")


def overall(layers: Mapping[str, LayerSample]) -> Scalars:
    """Return about twenty numbers on a sample: medians over layers, the fastest and slowest rotation, and counts."""
    samples = list(layers.values())
    numbers: Scalars = {}
    # The median, so that one odd layer does not hide the others.
    for name, stat in [*OVER_LAYERS.items(), *((name, "mean") for name in (*PREDICTED, "lr"))]:
        numbers[name] = float(np.median(_finite([stored_number(sample, name, stat) for sample in samples]) or NAN))
    rotation = [stored_number(sample, "angular_update", "rms") for sample in samples]
    predicted = [stored_number(sample, "predicted_angular_update") or NAN for sample in samples]
    over_predicted = (np.array(rotation) / np.array(predicted)).tolist()
    for name, values in (("angular_update", rotation), ("angular_update_over_predicted", over_predicted)):
        numbers[f"{name}/least"] = min(_finite(values), default=NAN)
        numbers[f"{name}/most"] = max(_finite(values), default=NAN)
    for name in COUNTED:
        numbers[name] = float(np.nansum([stored_number(sample, name) for sample in samples]))
    return _named(numbers)


def by_layer(layers: Mapping[str, LayerSample], pattern: re.Pattern[str]) -> Scalars:
    """Return rotation, norm and their predictions for every layer whose name matches the expression."""
    numbers: Scalars = {}
    for layer, sample in layers.items():
        if pattern.search(layer):
            for name in ("angular_update", "norm", "rotation_discrepancy", *PREDICTED[:2]):
                numbers[f"{name}/{layer}"] = stored_number(sample, name, "rms")
    return _named(numbers)


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if np.isfinite(value)]


def _named(numbers: Scalars) -> Scalars:
    # Some services refuse NaN, and others draw it as zero.
    return {f"gyroscope/{name}": value for name, value in numbers.items() if np.isfinite(value)}


@final
class UserFunction:
    """A user's function with its queue and thread. It is not called again after it fails. If slow, it misses items."""

    def __init__(self, function: Callable[..., object], name: str, report: Callable[[str], None]) -> None:
        self.function = function
        self.name = name
        self.report = report
        self.missed = 0
        self._failed = False
        self._worker: Worker[tuple[Any, ...]] = Worker(
            self._call,
            name=f"gyroscope-{name}",
            max_items=QUEUE + 1,  # one is with the function while others wait
            failed=self._fail,
            finish=self._close_function,
        )

    def put(self, *arguments: Any, always: bool = False) -> None:
        """Call the function later, without waiting. `always` drops nothing, so that a loss curve has no gaps."""
        self.missed += not self._worker.put(arguments, always=always)

    def close(self) -> None:
        """Give the function a few seconds to finish, then continue without it."""
        if not self._worker.close(PATIENCE):
            self.report(f"{self.name} did not finish within {PATIENCE:g} s and was abandoned")
        if self.missed:
            self.report(f"{self.name} was too slow and missed {self.missed} samples")

    def _call(self, items: list[tuple[Any, ...]]) -> None:
        if not self._failed:
            self.function(*items[0])

    # In the function's own thread, because loggers such as TensorBoard do not support two threads.
    def _close_function(self) -> None:
        if not self._failed:
            getattr(self.function, "close", lambda: None)()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self.report(f"{self.name} failed and is no longer called: {type(error).__name__}: {error}")


def sink_function(sink: Sink, report: Callable[[str], None]) -> UserFunction:
    """Return a sink as a function with its own thread."""
    return UserFunction(sink, f"the sink {getattr(sink, '__name__', type(sink).__name__)}", report)
