"""How fast the directions of weight vectors are forgotten."""

from math import log

from torch import Tensor


def forgetting_rate(directions: Tensor, memory: float) -> float:
    """Return 1/memory per sample, from the cosines of unit vectors (samples, vectors, entries) over time.

    The cosine between a vector and itself some samples later decays as exp(-samples/memory). Its logarithms after half
    a memory and after a whole one give the rate, so that momentum, which acts over short times, does not count.

    directions  unit vectors at equal distances in time
    memory      as expected, in samples
    """
    short = max(round(memory / 2), 1)
    long = 2 * short
    logs = [log(float((directions[lag:] * directions[:-lag]).sum(2).mean())) for lag in (short, long)]
    return (logs[0] - logs[1]) / (long - short)
