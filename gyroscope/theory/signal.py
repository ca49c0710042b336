"""How much of a gradient is signal: what Adam's state tells of it.

A gradient is a mean that moves slowly, the signal, and noise that is new at each step. κ² = |signal|²/E|noise|² for one
batch. `first` and `second` are sums over the same entries – of a vector, a layer or a whole model – of Adam's m̂² and of
its v̂, both with their bias corrected. Ours: docs/theory.md, "Signal". Floats, arrays and tensors alike; unvalidated.
"""

from gyroscope._types import Number


def noise_share(beta1: Number, step: Number | None = None) -> Number:
    """What an average of pure noise keeps of its mean square, a plain number: q = (1-β1)/(1+β1).

        q_t = (1-β1)/(1+β1)·(1+β1^t)/(1-β1^t) of the corrected m̂ after t = `step` updates     (ours)

    Ours: docs/theory.md, "Signal".

    >>> f"{noise_share(0.9):.4f} {noise_share(0.9, step=1):.1f}"
    '0.0526 1.0'
    """
    q = (1 - beta1) / (1 + beta1)
    return q if step is None else q * (1 + beta1**step) / (1 - beta1**step)


def signal_ratio(first: Number, second: Number, beta1: Number, step: Number | None = None) -> Number:
    """κ² = |signal|²/E|noise|² of one batch's gradient, a plain number, from Adam's two sums M and V.

        E M = |signal|² + q·noise,  E V = |signal|² + noise,  so κ² = (M - qV)/(V - M)     (ours)

    Holds where the signal moves little within 1/(1-β1) steps and v forgets slower than m. An estimate from n
    independent entries has a standard error of about q·sqrt(2/n) where κ² is small, and may then be negative.
    Ours: docs/theory.md, "Signal".

    >>> f"{signal_ratio(first=1 + 0.1 / 1.9, second=2.0, beta1=0.9):.3f}"
    '1.000'
    """
    q = noise_share(beta1, step)
    return (first - q * second) / (second - first)


def noise_scale(signal_ratio: Number, batch_size: Number) -> Number:
    """Batch size at which signal and noise are equal, in examples: B/κ².

        κ² = B·|G|²/tr Σ, so that B/κ² = tr Σ/|G|², the simple noise scale     (McCandlish et al. 2018, 2.9)

    >>> noise_scale(signal_ratio=0.25, batch_size=64)
    256.0
    """
    return batch_size / signal_ratio


def alignment(first: Number, second: Number, beta1: Number, step: Number | None = None) -> Number:
    """s = (M/V)/q: mean square of Adam's update over that of pure noise, a plain number.

    1 is pure noise, (1+β1)/(1-β1) gradients that all agree, below 1 gradients that undo each other. A doubling of m
    with v unchanged, reported before loss spikes of large runs, is s = 4. Ours: docs/theory.md, "Signal".

    >>> f"{alignment(first=1.0, second=1.0, beta1=0.9):.1f}"
    '19.0'
    """
    return first / second / noise_share(beta1, step)
