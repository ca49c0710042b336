"""How far layers moved between two checkpoints of a run, and how long they remember."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import final

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_facts import begin_sentence
from gyroscope.advice.layer_families import describe_layers, short_labels
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.theory.law import safe_divide

DRIFT = (
    "b = ⟨w_2,w_1⟩/‖w_1‖², -ln b = Σ of the effective decay. In equilibrium b = e^(-(steps - lag)/memory), "
    "lag = 2β/(1-β²) (docs/theory.md)"
)


@final
@dataclass(frozen=True)
class LayerDrift:
    """A layer in two checkpoints, `steps` apart (NaN if unknown).

    angle            between the two, in radians, as a mean over vectors
    norm_ratio       RMS norm after over before
    effective_decay  -ln of the share of the first file's weights that is left, inf if nothing is left
    expected_decay   the same in equilibrium, at the mean of the files' last learning rates
    lag              steps by which the momentum delays forgetting: 2β/(1-β²)
    """

    name: str
    steps: float
    angle: float
    norm_ratio: float
    effective_decay: float
    expected_decay: float = nan
    lag: float = 0.0

    @property
    def memory(self) -> float:
        """Steps after which 1/e of a direction is left, at this speed."""
        if not self.effective_decay > 0:
            return inf
        return float(safe_divide(max(self.steps - self.lag, 0.0), self.effective_decay))


def drift(drifts: Sequence[LayerDrift]) -> Iterator[Finding]:
    """State which layers moved most and least, and compare their memory with that of decay alone."""
    known = sorted((layer for layer in drifts if isfinite(layer.angle)), key=lambda layer: -layer.angle)
    if not known:
        return
    among = [layer.name for layer in drifts]
    label = short_labels(among)
    steps = known[0].steps
    apart = f"In {steps:,.0f} steps" if isfinite(steps) else "Between the files"
    most = format_number(known[0].angle, 2)
    least = format_number(known[-1].angle, 2)
    ends = f"{label[known[0].name]} rotated most, by {most} rad, and {label[known[-1].name]} least, by {least} rad"
    if most == least:
        ends = f"{describe_layers([layer.name for layer in known], among, worst=False)} rotated by {most} rad"
    sentence = f"{apart} {ends}."
    memories = [layer.memory for layer in known if isfinite(layer.memory)]
    if memories:
        sentence += f" At this rate directions are forgotten in {format_range(memories, 2)} steps."
    yield make_finding("drift", "note", sentence, known, formula=DRIFT, evidence={"angle": known[0].angle})
    ratios = {layer.name: float(safe_divide(layer.effective_decay, layer.expected_decay)) for layer in known}
    # A layer that did not move has the ratio 0. A layer that moved away from 0 has no memory to compare.
    off = {name: ratio for name, ratio in ratios.items() if _is_off(ratio)}
    if off:
        forgets = begin_sentence(describe_layers(list(off), among, worst=False), "forget" + "s" * (len(off) == 1))
        times = f"{format_range(off.values(), 2)} times as fast as in equilibrium at the files' mean learning rate"
        evidence = {"most": max(off.values()), "least": min(off.values())}
        yield make_finding("drift", "note", f"{forgets} {times}.", off, formula=DRIFT, evidence=evidence)


def _is_off(ratio: float) -> bool:
    return isfinite(ratio) and ratio >= 0 and not 1 / limit.MAX_LAYER_RATIO <= ratio <= limit.MAX_LAYER_RATIO
