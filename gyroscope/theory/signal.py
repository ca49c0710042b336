"""Signal and noise of a gradient, from Adam's state. Ours: docs/theory.md, "Signal".

A gradient is a slowly moving mean, the signal, and noise that is new at each step. κ² = |signal|²/E|noise|² for one
batch. `first` and `second` are sums over the same entries of Adam's m̂² and v̂, with their bias corrected. Floats,
arrays and tensors are accepted and not validated.
"""

from gyroscope._types import Number


def noise_share(beta1: Number, step: Number | None = None) -> Number:
    """Return the share of its mean square that an average of pure noise keeps, q = (1-β1)/(1+β1).

        q_t = (1-β1)/(1+β1)·(1+β1^t)/(1-β1^t) of the corrected m̂ after t = `step` updates     (ours)

    >>> f"{noise_share(0.9):.4f} {noise_share(0.9, step=1):.1f}"
    '0.0526 1.0'
    """
    q = (1 - beta1) / (1 + beta1)
    return q if step is None else q * (1 + beta1**step) / (1 - beta1**step)


def signal_ratio(first: Number, second: Number, beta1: Number, step: Number | None = None) -> Number:
    """Return κ² = |signal|²/E|noise|² of one batch's gradient, from Adam's two sums M and V.

        E M = |signal|² + q·noise,  E V = |signal|² + noise,  so κ² = (M - qV)/(V - M)     (ours)

    Holds if the signal moves little within 1/(1-β1) steps and v forgets slower than m. An estimate from n independent
    entries has a standard error of about q·sqrt(2/n) if κ² is small, and may then be negative.

    >>> f"{signal_ratio(first=1 + 0.1 / 1.9, second=2.0, beta1=0.9):.3f}"
    '1.000'
    """
    q = noise_share(beta1, step)
    return (first - q * second) / (second - first)


def alignment(first: Number, second: Number, beta1: Number, step: Number | None = None) -> Number:
    """Return s = (M/V)/q, the mean square of Adam's update over that of pure noise.

    1 means pure noise, (1+β1)/(1-β1) gradients that all agree, and below 1 gradients that cancel each other.

    >>> f"{alignment(first=1.0, second=1.0, beta1=0.9):.1f}"
    '19.0'
    """
    return first / second / noise_share(beta1, step)
