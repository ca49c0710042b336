"""Logged numbers: kept in the training thread, then read from their devices and stored in the thread of the samples."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, final

import numpy as np
from torch import Tensor

from gyroscope.measure._pipeline.host_copy import HostCopy
from gyroscope.measure.sinks import UserFunction
from gyroscope.store import Writer

# Seconds that values wait for a sample. A live page must not wait longer if samples are rare.
LONGEST_WAIT = 1.0


@final
class ScalarLog:
    """Values that wait to be stored. Training adds them, and the thread of the samples stores them at each sample.

    A value that is not a number is left out, and reported once for each name.
    """

    def __init__(self, writer: Writer, sinks: Sequence[UserFunction], report: Callable[[str], None]) -> None:
        # The step, and values that may still be on their way from a device. A deque, whose append and popleft are safe
        # in two threads without a lock.
        self.waiting: deque[tuple[int, Mapping[str, float | HostCopy]]] = deque()
        self._writer = writer
        self._sinks = sinks
        self._report = report
        self._refused: set[str] = set()
        self._due_at = 0.0

    def add(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Keep values of a step, and start to copy those on a device to the host."""
        values = self._each(step, scalars, lambda value: _sent(value))
        if not values:
            return
        if not self.waiting:
            self._due_at = time.monotonic() + LONGEST_WAIT
        self.waiting.append((step, values))

    def is_due(self) -> bool:
        """Return whether values have waited too long without a sample. It returns True once in that time."""
        now = time.monotonic()
        if not self.waiting or now < self._due_at:
            return False
        self._due_at = now + LONGEST_WAIT
        return True

    def store(self) -> list[tuple[int, dict[str, float]]]:
        """Wait for values that are being copied, and send all to the writer and the sinks. Return them."""
        rows: list[tuple[int, dict[str, float]]] = []
        while self.waiting:
            step, values = self.waiting.popleft()
            rows.append((step, self._each(step, values, _arrived)))
        self._writer.put_scalars(rows)
        for sink in self._sinks:
            for step, numbers in rows:
                sink.put(step, dict(numbers), always=True)
        return rows

    def _each(self, step: int, values: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the converted values, without those that fail, because one value must not affect the others."""
        converted = {}
        for name, value in values.items():
            try:
                converted[name] = convert(value)
            except Exception as error:  # unusual kinds of tensors may raise any error
                if name not in self._refused:
                    self._refused.add(name)
                    self._report(f"{name} of step {step} was not logged, training goes on: {error}")
        return converted


def _arrived(value: float | HostCopy) -> float:
    return float(value.wait().item()) if isinstance(value, HostCopy) else value


def _sent(value: Any) -> float | HostCopy:
    """Return a number, or the copy of a tensor on a device to the host. Raise if the value is neither."""
    if isinstance(value, Tensor) and value.numel() == 1:
        # A tensor on the CPU is read now, because the loop may change it in place.
        return float(value.item()) if value.device.type == "cpu" else HostCopy(value.detach().reshape(()))
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, np.ndarray | np.generic) and value.size == 1:
        return float(value.item())
    shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor | np.ndarray) else f", {value!r:.80}"
    raise TypeError(f"it is a {type(value).__name__}{shape}. Log a number or a tensor of one element")
