"""Neurons of a layer that turn at different speeds, beyond what noise does."""

from collections.abc import Iterator, Sequence

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import listed, sig


def neuron_imbalance(views: Sequence[LayerView]) -> Iterator[Finding]:
    """Judge layers with enough vectors for percentiles."""
    spreads = [(view, view.neuron_spread) for view in views if view.vectors >= limit.MIN_VECTORS]
    unequal = [(view, spread) for view, spread in spreads if spread is not None and spread.excess > spread.most]
    if not unequal:
        return
    names = [view.name for view, _ in unequal]
    worst, spread = max(unequal, key=lambda pair: pair[1].excess)
    remedy = remedies.balance(worst.rule, worst.keeps_norm)
    beginning = f"Neurons of {listed(names)} turn at different speeds: in" if len(names) > 1 else "In"
    yield make_finding(
        "neuron_imbalance",
        remedies.severity(remedy),
        f"{beginning} {worst.name} the 95th percentile of the neurons' rotation is {sig(spread.ratio, 2)} times the "
        f"5th, where noise gives {sig(spread.noise, 2)}.",
        names,
        remedy,
        evidence={"ratio": spread.ratio, "noise_ratio": spread.noise},
    )
