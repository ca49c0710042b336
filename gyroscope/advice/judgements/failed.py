"""Training that failed: weights, gradients or optimizer state that are not finite."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.incidents.incident_findings import MARKS
from gyroscope.advice.layer_families import describe_layers
from gyroscope.advice.phrases import format_number
from gyroscope.advice.remedies import FIND_NAN, GO_BACK


def diverged(lost: Mapping[str, Array], among: Sequence[str], steps: Sequence[int] = ()) -> Iterator[Finding]:
    """Judge the share of each layer's vectors that is not finite, at each sample.

    lost   by layer, in the order of the samples. NaN if it is unknown
    among  all layers
    steps  of the samples, empty for a checkpoint, which has one
    """
    known = {name: share[np.isfinite(share)] for name, share in lost.items() if np.any(share > 0)}
    if not known:
        return
    first = {name: int(np.argmax(lost[name] > 0)) for name in known}
    start = min(first.values())
    names = sorted(known, key=lambda name: first[name])
    layers = describe_layers([name for name in names if first[name] == start], among, worst=False)
    at_end = {name: float(share[-1]) for name, share in known.items()}
    worst = max(at_end.values())
    some = f" {format_number(100 * worst, 2)} % of the vectors are lost." if 0 < worst < 1 else ""
    more = f" {len(known)} of {len(among)} layers are lost." if start < max(first.values()) else ""
    evidence = {"worst_share": worst}
    if not len(steps):
        sentence = f"Weights or optimizer state of {layers} are not finite.{some}{more}"
        yield make_finding("diverged", "bad", sentence, names, GO_BACK, evidence=evidence)
        return
    step = int(steps[start])
    if worst > 0:
        finite = f"The last finite sample is from step {int(steps[start - 1]):,}." if start else "No sample is finite."
        begins = f"The run diverged: weights or gradients of {layers} are not finite from step {step:,} on."
        sentence = f"{begins}{some}{more} {finite}"
    else:
        count = int(np.any([lost[name] > 0 for name in names], axis=0).sum())
        begins = f"Weights or gradients of {layers} were not finite at step {step:,}."
        sentence = f"{begins}{more} {count:,} of {len(steps):,} samples are lost, and later ones are finite again."
    remedy = GO_BACK if worst > 0 else FIND_NAN
    evidence["step"] = float(step)
    yield make_finding("diverged", "bad", sentence, names, remedy, mark=MARKS["not_finite"], evidence=evidence)
