"""What to think of a checkpoint: the thresholds and words that runs are judged with, on the numbers of one step."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import numpy as np

from gyroscope.advice import phrases, remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.checkpoint_layer import CheckpointLayer
from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.phrases import clause, listed, sig, span
from gyroscope.advice.plan_findings import fast_rotation
from gyroscope.advice.remedies import GO_BACK, REVIVE
from gyroscope.advice.rotation import noise_ratio
from gyroscope.theory import stability
from gyroscope.theory.convergence import MEMORY_PASSED
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.signal import noise_scale

SIGNAL = "κ² = (M - qV)/(V - M), s = (M/V)/q; M = Σm̂², V = Σv̂, q = (1-β1)/(1+β1) (docs/theory.md)"
RADIAL = "λ_u = [⟨w,u⟩(1-β1(1-a)) + β1·lr·‖u‖²]/((1-β1)‖w‖²) (docs/theory.md)"
ONE_STEP = "This is one step of a run; whether training is good, the loss says."


def checkpoint_findings(
    layers: Sequence[CheckpointLayer],
    *,
    step: int | None = None,
    batch_size: float | None = None,
    notes: Sequence[str] = (),
    missing: Mapping[str, str] | None = None,
) -> Diagnosis:
    """What to think of a checkpoint, worst first.

    layers      all of them; embeddings are not judged
    step        steps that were taken, where known
    batch_size  examples of one step, for the noise scale
    notes       what was assumed, as sentences without a full stop
    missing     layers of which something is unknown, and why
    """
    judged = [layer for layer in layers if not layer.is_embedding]
    finite = [layer for layer in judged if not layer.non_finite]
    findings = [
        *_non_finite(layers),
        *_dead(finite),
        *_betas(finite),
        *fast_rotation({layer.name: layer.predicted_rotation for layer in finite}),
        *_over_rotation(finite),
        *_layer_imbalance(finite),
        *_neuron_imbalance(finite),
        *_scale_sensitive(finite),
        *_norms(finite, step),
        *_aligned(finite),
        *_signal(finite, batch_size),
        *(Finding("assumption", "note", f"{note}.") for note in notes),
        *_missing(missing or {}),
        *_estimates(layers),
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += _as_predicted(finite)
    return Diagnosis(findings)


def _missing(missing: Mapping[str, str]) -> Iterator[Finding]:
    for reason in dict.fromkeys(missing.values()):
        names = tuple(name for name, why in missing.items() if why == reason)
        yield Finding("missing_input", "note", f"{clause(names, 'has', 'have')} no {reason}.", layers=names)


def _estimates(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    estimated = [layer for layer in layers if not layer.exact and isfinite(layer.rotation)]
    for error in dict.fromkeys(layer.error for layer in estimated):
        names = tuple(layer.name for layer in estimated if layer.error == error)
        yield Finding(
            "assumption",
            "note",
            f"The rotation of {listed(names)} is an estimate, for the file does not hold the last gradient: on trial "
            f"the mean of a layer was within {sig(100 * error, 2)} %.",
            layers=names,
            evidence={"error": error},
        )


def _non_finite(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    lost = [layer for layer in layers if layer.non_finite]
    if lost:
        names = tuple(layer.name for layer in lost)
        count = sum(layer.non_finite for layer in lost)
        yield Finding(
            "diverged",
            "bad",
            f"{clause(names, 'has', 'have')} vectors with weights or optimizer state that are not finite, {count:,} in "
            "all.",
            GO_BACK.text,
            layers=names,
            evidence={"vectors": float(count)},
            trial=GO_BACK.trial,
        )


def _dead(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    dead = sorted((layer for layer in layers if layer.dead), key=lambda layer: -layer.dead / layer.vectors)
    if not dead:
        return
    worst = dead[0]
    share = worst.dead / worst.vectors
    names = tuple(layer.name for layer in dead)
    yield Finding(
        "dead_vectors",
        "bad" if share > limit.DEAD_BAD else "warn",
        f"{clause(names, 'has', 'have')} vectors without any gradient, {sum(layer.dead for layer in dead):,} in all: "
        f"{worst.dead:,} in {worst.name}, {sig(100 * share, 2)} % of it. Weight decay shrinks them to nothing.",
        REVIVE.text,
        layers=names,
        evidence={"dead_vectors": float(sum(layer.dead for layer in dead)), "worst_share": share},
        trial=REVIVE.trial,
    )


def _betas(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    pairs = dict.fromkeys(layer.rule.adam_betas for layer in layers if layer.rule is not None)
    for betas in pairs:
        if betas is None or stability.exact_margin(*betas) > 0:
            continue
        remedy = remedies.stable_betas(betas[0])
        names = tuple(layer.name for layer in layers if layer.rule is not None and layer.rule.adam_betas == betas)
        yield Finding(
            "unstable_betas",
            "warn",
            phrases.unstable_betas(*betas, float(stability.growth_rate(*betas, exact=True))),
            remedy.text,
            layers=names,
            evidence={"margin": float(stability.exact_margin(*betas))},
            trial=remedy.trial,
        )


def _over_rotation(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    fast = [layer for layer in layers if layer.rotation_ratio > limit.OVER_ROTATION]
    if not fast:
        return
    fast.sort(key=lambda layer: -layer.rotation_ratio)
    names = tuple(layer.name for layer in fast)
    ratios = [layer.rotation_ratio for layer in fast]
    yield Finding(
        "over_rotation",
        "note",
        f"{clause(names, 'turned', 'turned')} {span(ratios, 2)} times as fast in the last step as in equilibrium at "
        "its rate.",
        layers=names,
        evidence={"ratio": ratios[0]},
    )


def _layer_imbalance(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    known = [layer for layer in layers if isfinite(layer.rotation_ratio) and layer.rotation_ratio > 0]
    if len(known) < 2:
        return
    fastest = max(known, key=lambda layer: layer.rotation_ratio)
    slowest = min(known, key=lambda layer: layer.rotation_ratio)
    ratio = fastest.rotation_ratio / slowest.rotation_ratio
    if ratio <= limit.LAYER_IMBALANCE:
        return
    remedy = remedies.balance(fastest.rule, fastest.keeps_norm)
    yield Finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{phrases.turns_faster(fastest.name, slowest.name, ratio)}: {sig(fastest.rotation_ratio, 2)} and "
        f"{sig(slowest.rotation_ratio, 2)} times what their settings predict.",
        remedy.text,
        layers=(fastest.name, slowest.name),
        evidence={"ratio": ratio, "fastest": fastest.rotation_ratio, "slowest": slowest.rotation_ratio},
        trial=remedy.trial,
    )


def _neuron_imbalance(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    unequal = [
        layer for layer in layers if layer.vectors >= limit.VECTORS and layer.spread > limit.NEURON_IMBALANCE_AT_ONCE
    ]
    if not unequal:
        return
    worst = max(unequal, key=lambda layer: layer.spread)
    names = tuple(layer.name for layer in unequal)
    noise = noise_ratio(worst.fan_in, worst.vectors)
    remedy = remedies.balance(worst.rule, worst.keeps_norm)
    beginning = f"Neurons of {listed(names)} turn at different speeds: in" if len(names) > 1 else "In"
    yield Finding(
        "neuron_imbalance",
        remedies.severity(remedy),
        f"{beginning} {worst.name} the 95th percentile of the neurons' rotation is {sig(worst.spread * noise, 2)} "
        f"times the 5th, where noise gives {sig(noise, 2)}.",
        remedy.text,
        layers=names,
        evidence={"ratio": worst.spread * noise, "noise_ratio": noise},
        trial=remedy.trial,
    )


def _scale_sensitive(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    """Layers along whose weights the momentum pushes otherwise than tangent gradients would, surely and by much."""
    sure = [
        layer
        for layer in layers
        if layer.rule is not None
        and layer.rule.weight_decay > 0
        and abs(layer.lambda_u) > limit.STANDARD_ERRORS * layer.lambda_u_error
        and abs(layer.lambda_u) > (limit.DECAY_ERROR - 1) * layer.rule.weight_decay
    ]
    if not sure:
        return
    worst = max(sure, key=lambda layer: abs(layer.lambda_u))
    names = tuple(layer.name for layer in sure)
    where = f"in {worst.name} " if len(names) > 1 else ""
    assert worst.rule is not None
    yield Finding(
        "scale_sensitive",
        "note",
        f"{clause(names, 'is', 'are')} not scale-invariant, or gradients have changed of late: {where}the gradient "
        f"acted as λ_u = {sig(worst.lambda_u, 2)} beside a weight decay of {sig(worst.rule.weight_decay, 2)}.",
        formula=RADIAL,
        layers=names,
        evidence={"lambda_u": worst.lambda_u, "standard_error": worst.lambda_u_error},
    )


def _norms(layers: Sequence[CheckpointLayer], step: int | None) -> Iterator[Finding]:
    """Layers without decay, layers that had no time to settle, and layers far from their equilibrium norm."""
    layers = [layer for layer in layers if not layer.keeps_norm]
    without = [layer.name for layer in layers if layer.rule is not None and layer.rule.weight_decay == 0]
    if without:
        yield Finding("short_memory", "note", phrases.no_decay(without), layers=tuple(without))
    decaying = [layer for layer in layers if isfinite(layer.timescale)]
    short = [layer for layer in decaying if step is not None and step / layer.timescale < MEMORY_PASSED]
    if short and step is not None:
        names = [layer.name for layer in short]
        totals = [step / layer.timescale for layer in short]
        yield Finding(
            "short_memory",
            "note",
            f"At the rate of the last step, {step:,} steps are less than the memory of {listed(names)}: X = "
            f"{span(totals, 2)} (below 1). Norms may still be near their start.",
            layers=tuple(names),
            evidence={"total_decay": min(totals)},
        )
    far = [layer for layer in decaying if layer not in short and abs(layer.norm_ratio - 1) > SETTLED]
    if far:
        names = [layer.name for layer in far]
        ratios = [layer.norm_ratio for layer in far]
        yield Finding(
            "off_prediction",
            "note",
            f"{clause(names, 'is', 'are')} at {span(ratios, 2)} times the norm of equilibrium at the rate of the last "
            "step.",
            layers=tuple(names),
            evidence={"smallest_ratio": min(ratios), "largest_ratio": max(ratios)},
        )


def _aligned(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    high = sorted((layer for layer in layers if layer.alignment > limit.ALIGNED), key=lambda layer: -layer.alignment)
    if high:
        names = tuple(layer.name for layer in high)
        yield Finding(
            "aligned_updates",
            "note",
            f"Recent gradients of {listed(names)} agree: updates have {span([each.alignment for each in high], 2)} "
            "times the mean square of noise. A doubled first moment (4 times) has been seen before loss spikes, and in "
            "the first steps of any run.",
            formula=SIGNAL,
            layers=names,
            evidence={"alignment": high[0].alignment},
        )


def _signal(layers: Sequence[CheckpointLayer], batch_size: float | None) -> Iterator[Finding]:
    known = [layer for layer in layers if isfinite(layer.kappa2)]
    if not known:
        return
    ratios = np.array([layer.kappa2 for layer in known])
    middle = float(np.median(ratios))
    most = known[int(ratios.argmax())]
    if most.kappa2 < limit.SIGNAL:
        yield Finding(
            "signal",
            "note",
            f"No layer's gradient shows a signal beside its noise: κ² is below {limit.SIGNAL:g}, or gradients have "
            "shrunk faster than the second moment forgets.",
            formula=SIGNAL,
            layers=tuple(layer.name for layer in known),
            evidence={"median": middle, "most": most.kappa2},
        )
        return
    scale = ""
    if batch_size is not None and middle > limit.SIGNAL:
        scale = f" The noise scale is about {sig(noise_scale(middle, batch_size), 2)} examples."
    shown = f"{sig(middle, 2)}" if middle > limit.SIGNAL else f"below {limit.SIGNAL:g}"
    yield Finding(
        "signal",
        "note",
        f"Signal over noise in one batch, κ², is {shown} in the median layer and {sig(most.kappa2, 2)} in {most.name}."
        f"{scale}",
        formula=SIGNAL,
        layers=tuple(layer.name for layer in known),
        evidence={"median": middle, "most": most.kappa2},
    )


def _as_predicted(layers: Sequence[CheckpointLayer]) -> Iterator[Finding]:
    known = [layer for layer in layers if isfinite(layer.rotation_ratio) and layer.rotation_ratio > 0]
    ratios = [layer.rotation_ratio for layer in known]
    if not known or max(max(ratio, 1 / ratio) for ratio in ratios) > limit.CLOSE:
        return
    error = max(max(ratio, 1 / ratio) for ratio in ratios) - 1
    yield Finding(
        "well",
        # An optimizer that sets the angle turns by it whatever training does: that earns no green.
        "note" if all(layer.keeps_norm for layer in known) else "good",
        f"In the last step {len(known)} of {len(layers)} layers turned as predicted, within {sig(100 * error, 2)} %: "
        f"{span([layer.rotation for layer in known], 2)} rad. {ONE_STEP}",
        layers=tuple(layer.name for layer in known),
        evidence={"largest_error": error},
    )
