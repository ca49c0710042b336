"""A logged loss that ends far above its best, beyond its own noise."""

import re
from collections.abc import Iterator, Sequence
from math import exp, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.incidents import loss_name
from gyroscope.advice.phrases import format_number
from gyroscope.advice.record import Record

# Words in the names of losses on data that the run does not train on.
HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "dev", "held", "heldout", "test"}
# The median of |x| for a standard normal number.
MEDIAN_DEVIATION = NormalDist().inv_cdf(0.75)


class Rise(NamedTuple):
    """A loss at its best and at the end, as geometric means, and where the best part is."""

    best: float
    last: float
    first: int
    after: int


def judged_losses(names: Sequence[str]) -> list[str]:
    """Return the logged losses that judge a run: those on held-out data, then the training loss.

    >>> judged_losses(["loss", "accuracy", "latest_loss", "eval/loss"]), judged_losses(["val.loss", "test_loss"])
    (['eval/loss', 'loss'], ['val.loss', 'test_loss'])
    """
    words = {name: set(re.split(r"[\W_]+", name.lower())) for name in names}
    held_out = [name for name in names if "loss" in words[name] and "train" not in words[name]]
    held_out = [name for name in held_out if words[name] & HELD_OUT]
    training = loss_name([name for name in names if name not in held_out])
    return held_out + ([training] if training is not None else [])


def rising_loss(record: Record) -> Iterator[Finding]:
    """Judge the losses on held-out data, then the training loss, and name the first that rose."""
    for name in judged_losses(getattr(record, "scalars", ())):
        steps, values = record.scalar(name)  # type: ignore[attr-defined]  # a record with `scalars` has it
        # Only positive numbers have a ratio.
        used = np.isfinite(values) & (values > 0)
        if used.sum() < limit.MIN_SAMPLES or np.any(values < 0):
            continue
        rise = find_rise(values[used])
        if rise is not None:
            around = steps[used][rise.first : rise.after].mean()
            rose = f"rose from {format_number(rise.best)} around step {around:,.0f} to {format_number(rise.last)}"
            evidence = {"best": rise.best, "last": rise.last}
            yield make_finding("rising_loss", "warn", f"The logged {name} {rose} at the end.", evidence=evidence)
            return


def find_rise(losses: Array) -> Rise | None:
    """Return the rise from the best eighth of a run to its last eighth. None if noise may be the reason.

    Means are those of logarithms, which a few extreme losses do not move. The threshold allows for the choice of the
    best among all parts.
    """
    logarithms = np.log(losses)
    length = len(losses) // limit.LOSS_PARTS
    means = _moving_means(logarithms, length)
    best = int(means.argmin())
    rise = means[-1] - means[best]
    noise = sqrt(2) * _standard_error(logarithms, length)
    if rise <= max(log(limit.MAX_LOSS_RISE), limit.LOSS_RISE_ERRORS * noise):
        return None
    return Rise(exp(means[best]), exp(means[-1]), best, best + length)


def _standard_error(values: Array, length: int) -> float:
    """Return the standard error of a mean of `length` values, the largest that means of shorter parts imply.

        var(x_{i-1} - 2x_i + x_{i+1}) = 6 σ² for parts in a row, var = σ²·(part/length)

    A second difference ignores a trend, and its median ignores a jump. Values that are correlated over a part have
    means that vary more than those of shorter parts imply.
    """
    largest = max(2 * length // 3, 1)
    variances = []
    for part in {*(2**power for power in range(largest.bit_length())), largest}:
        means = _moving_means(values, part)
        bends = means[2 * part :] - 2 * means[part:-part] + means[: -2 * part]
        deviation = float(np.median(np.abs(bends))) / MEDIAN_DEVIATION
        variances.append(deviation**2 / 6 * part / length)
    return sqrt(max(variances))


def _moving_means(values: Array, length: int) -> Array:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[length:] - sums[:-length]) / length)
