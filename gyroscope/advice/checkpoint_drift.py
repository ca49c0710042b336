"""How far layers moved between two checkpoints of a run, and how long they remember."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import final

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding
from gyroscope.advice.phrases import clause, sig, span
from gyroscope.theory.law import over

NAN = float("nan")
DRIFT = (
    "b = ⟨w_2,w_1⟩/‖w_1‖², -ln b = Σ of the effective decay; in equilibrium b = e^(-(steps - lag)/memory), "
    "lag = 2β/(1-β²) (docs/theory.md)"
)


@final
@dataclass(frozen=True)
class LayerDrift:
    """A layer in two checkpoints, `steps` apart; NaN where that is unknown.

    angle            between the two, in radians: the mean over vectors of those of each
    norm_ratio       RMS norm after over before
    effective_decay  -ln b, what is lost of the first file's weights; inf where nothing of them is left
    expected_decay   the same in equilibrium at the mean of the learning rates of the files' last steps
    lag              steps by which forgetting starts late, because the momentum goes on: 2β/(1-β²)
    """

    name: str
    steps: float
    angle: float
    norm_ratio: float
    effective_decay: float
    expected_decay: float = NAN
    lag: float = 0.0

    @property
    def memory(self) -> float:
        """Steps after which 1/e of a direction is left, at this rate."""
        if not self.effective_decay > 0:
            return float("inf")
        return float(over(max(self.steps - self.lag, 0.0), self.effective_decay))


def drift_findings(drifts: Sequence[LayerDrift]) -> Iterator[Finding]:
    """Which layers moved most and least, and their memory beside the one that decay alone gives."""
    known = sorted((drift for drift in drifts if isfinite(drift.angle)), key=lambda drift: -drift.angle)
    if not known:
        return
    names = tuple(drift.name for drift in known)
    steps = known[0].steps
    apart = f"In {steps:,.0f} steps" if isfinite(steps) else "Between the files"
    most = sig(known[0].angle, 2)
    least = sig(known[-1].angle, 2)
    sentence = f"{apart} {known[0].name} turned most, by {most} rad, {known[-1].name} least, by {least} rad."
    if most == least:
        sentence = f"{apart} {clause(names, 'turned', 'turned')} by {most} rad."
    memories = [drift.memory for drift in known if isfinite(drift.memory)]
    if memories:
        sentence += f" At this rate directions are forgotten in {span(memories, 2)} steps."
    yield Finding("drift", "note", sentence, formula=DRIFT, layers=names, evidence={"angle": known[0].angle})
    ratios = {drift.name: float(over(drift.effective_decay, drift.expected_decay)) for drift in known}
    off = [name for name, ratio in ratios.items() if isfinite(ratio) and max(ratio, 1 / ratio) > limit.LAYER_IMBALANCE]
    if off:
        yield Finding(
            "drift",
            "note",
            f"{clause(off, 'forgets', 'forget')} {span([ratios[name] for name in off], 2)} times as fast as in "
            "equilibrium at the mean of both files' rates.",
            formula=DRIFT,
            layers=tuple(off),
            evidence={"most": max(ratios[name] for name in off), "least": min(ratios[name] for name in off)},
        )
