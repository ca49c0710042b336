"""Where numbers go beside the run: TensorBoard, Weights & Biases or any function, each in a thread of its own."""

import queue
import re
import threading
from collections.abc import Callable, Mapping
from typing import final

import numpy as np

from gyroscope.measure.quantities import PLACE
from gyroscope.store import STATISTICS, LayerSample

Scalars = dict[str, float]
Sink = Callable[[int, Scalars], object]
"""Called with the step and named numbers; may have `close()`."""

QUEUE = 64
"""Samples that wait for a slow sink before some are left out."""
PATIENCE = 5.0
"""Seconds that closing a run waits for a sink."""

OVER_LAYERS = ("angular_update", "norm", "unit_grad_norm", "grad_weight_cosine", "lambda_u", "kappa", "effective_lr")
"""Reported as the median over layers of the layer's RMS (of its mean, for what has a sign)."""
SIGNED = {"grad_weight_cosine", "lambda_u"}
PREDICTED = ("predicted_angular_update", "predicted_norm", "forecast_angular_update", "forecast_norm")
COUNTED = ("dead_vectors", "frozen_entries")


def overall(layers: Mapping[str, LayerSample]) -> Scalars:
    """At most twenty numbers about a sample: medians over layers, the layers that turn most and least, and counts."""
    found: Scalars = {}
    for name in OVER_LAYERS:
        found[name] = _median([_statistic(one, name, "mean" if name in SIGNED else "rms") for one in layers.values()])
    for name in PREDICTED:
        found[name] = _median([float(one.scalars[PLACE[name]]) for one in layers.values()])
    turned = [_statistic(one, "angular_update", "rms") for one in layers.values()]
    ratios = [ratio(one) for one in layers.values()]
    for label, values in (("angular_update", turned), ("angular_update_over_predicted", ratios)):
        finite = [value for value in values if np.isfinite(value)]
        found[f"{label}/least"], found[f"{label}/most"] = (
            (min(finite), max(finite)) if finite else (float("nan"), float("nan"))
        )
    for name in COUNTED:
        found[name] = float(np.nansum([one.scalars[PLACE[name]] for one in layers.values()]))
    found["lr"] = _median([float(one.scalars[PLACE["lr"]]) for one in layers.values()])
    return {f"gyroscope/{name}": value for name, value in found.items() if np.isfinite(value)}


def by_layer(layers: Mapping[str, LayerSample], pattern: re.Pattern[str]) -> Scalars:
    """Rotation, norm and what theory says of them, of every layer in whose name the expression is found."""
    found: Scalars = {}
    for layer, one in layers.items():
        if pattern.search(layer):
            found |= {f"{name}/{layer}": _statistic(one, name, "rms") for name in ("angular_update", "norm", "kappa")}
            found |= {f"{name}/{layer}": float(one.scalars[PLACE[name]]) for name in PREDICTED[:2]}
    return {f"gyroscope/{name}": value for name, value in found.items() if np.isfinite(value)}


def ratio(one: LayerSample) -> float:
    """A layer's rotation over the one predicted for equilibrium; NaN where either is missing."""
    predicted = float(one.scalars[PLACE["predicted_angular_update"]])
    return _statistic(one, "angular_update", "rms") / predicted if predicted else float("nan")


def _statistic(one: LayerSample, quantity: str, statistic: str) -> float:
    return float(one.statistics[PLACE[quantity], STATISTICS.index(statistic)])


def _median(values: list[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.median(finite)) if finite else float("nan")


@final
class Outlet:
    """A sink with its queue and thread. A sink that fails is left alone from then on, a slow one misses samples."""

    def __init__(self, sink: Sink, complain: Callable[[str], None]) -> None:
        self.sink, self.complain = sink, complain
        self.name = getattr(sink, "__name__", type(sink).__name__)
        self.missed = 0
        self._queue: queue.Queue[tuple[int, Scalars] | None] = queue.Queue(QUEUE)
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"gyroscope-{self.name}", daemon=True)
        self._thread.start()

    def put(self, step: int, scalars: Scalars) -> None:
        """Hand over numbers; never waits."""
        try:
            self._queue.put_nowait((step, scalars))
        except queue.Full:
            self.missed += 1

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._guarded(lambda step, scalars: self.sink(step, scalars), *item)
        self._guarded(getattr(self.sink, "close", lambda: None))

    def _guarded(self, call: Callable[..., object], *arguments: object) -> None:
        if self._failed:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._failed = True
            self.complain(f"the sink {self.name} failed and is left out from now on: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Let the sink finish what it has, for a few seconds; then go on without it."""
        try:
            self._queue.put(None, timeout=PATIENCE)
        except queue.Full:
            pass
        else:
            self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self.complain(f"the sink {self.name} did not finish within {PATIENCE:.0f} s and was left behind")
        if self.missed:
            self.complain(f"the sink {self.name} was too slow and missed {self.missed} samples")
