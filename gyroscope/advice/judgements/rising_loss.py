"""A logged loss that ends far above its best: no green beside it."""

from collections.abc import Iterator

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.history import Record
from gyroscope.advice.phrases import format_number


def rising_loss(record: Record) -> Iterator[Finding]:
    """Judge the validation loss if it was logged, else the loss of training."""
    for name in ("validation_loss", "loss"):
        if name not in getattr(record, "scalars", ()):
            continue
        steps, values = record.scalar(name)  # type: ignore[attr-defined]  # a record with `scalars` has it
        finite = np.isfinite(values)
        if finite.sum() < limit.MIN_SAMPLES:
            continue
        # Means of an eighth of the run each, because the loss of a single batch is noise.
        parts = np.array_split(np.flatnonzero(finite), limit.MIN_SAMPLES)
        means = np.array([values[part].mean() for part in parts])
        best = int(means.argmin())
        if means[best] > 0 and means[-1] > limit.MAX_LOSS_RISE * means[best]:
            around = int(steps[parts[best]].mean())
            rose = f"rose from {format_number(means[best])} around step {around:,} to {format_number(means[-1])}"
            evidence = {"best": float(means[best]), "last": float(means[-1])}
            yield make_finding("rising_loss", "warn", f"The logged {name} {rose} at the end.", evidence=evidence)
            return
