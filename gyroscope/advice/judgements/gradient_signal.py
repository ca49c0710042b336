"""Signal and noise in the gradient, from the moments that Adam's checkpoint holds."""

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import listed, sig, span
from gyroscope.theory.signal import noise_scale

SIGNAL = "κ² = (M - qV)/(V - M), s = (M/V)/q; M = Σm̂², V = Σv̂, q = (1-β1)/(1+β1) (docs/theory.md)"


def aligned_updates(views: Sequence[CheckpointView]) -> Iterator[Finding]:
    """Judge layers whose recent gradients agree."""
    high = sorted((view for view in views if view.alignment > limit.MAX_ALIGNMENT), key=lambda view: -view.alignment)
    if high:
        names = [view.name for view in high]
        sentence = (
            f"Recent gradients of {listed(names)} agree: updates have {span([view.alignment for view in high], 2)} "
            "times the mean square of noise. A doubled first moment (4 times) has been seen before loss spikes, and in "
            "the first steps of any run."
        )
        yield make_finding(
            "aligned_updates", "note", sentence, names, formula=SIGNAL, evidence={"alignment": high[0].alignment}
        )


def gradient_signal(views: Sequence[CheckpointView], batch_size: float | None) -> Iterator[Finding]:
    """State the signal over the noise in one batch, and the noise scale if the batch size is known."""
    known = [view for view in views if isfinite(view.signal_ratio)]
    if not known:
        return
    least = limit.MIN_SIGNAL_RATIO
    middle = float(np.median([view.signal_ratio for view in known]))
    most = max(known, key=lambda view: view.signal_ratio)
    scale = ""
    if batch_size is not None and middle > least:
        scale = f" The noise scale is about {sig(noise_scale(middle, batch_size), 2)} examples."
    shown = f"{sig(middle, 2)}" if middle > least else f"below {least:g}"
    sentence = (
        f"Signal over noise in one batch, κ², is {shown} in the median layer and {sig(most.signal_ratio, 2)} in "
        f"{most.name}.{scale}"
    )
    if most.signal_ratio < least:
        sentence = (
            f"No layer's gradient shows a signal beside its noise: κ² is below {least:g}, or gradients have shrunk "
            "faster than the second moment forgets."
        )
    names = [view.name for view in known]
    yield make_finding(
        "signal", "note", sentence, names, formula=SIGNAL, evidence={"median": middle, "most": most.signal_ratio}
    )
