"""The first sentences of every plan, run and checkpoint: what it means, and what to change."""

from collections.abc import Sequence
from math import isfinite

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding
from gyroscope.advice.judged_layers import Layers, View, run_length
from gyroscope.advice.judgements.equilibrium import decay_effect
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import format_memories, format_number, format_range
from gyroscope.theory.convergence import MEMORY_PASSED, SETTLES

# Findings that leave nothing else to state about a run.
DECISIVE = ("diverged", "too_short")
# The statement on equilibrium if all layers of a run are in one of these states.
STATES = {
    "no decay": "Your run has no equilibrium because it has no weight decay. Norms only grow.",
    "grows": "Your run has no equilibrium. Norms grow without end.",
    "keeps norm": "Your run is in equilibrium from the first step because the optimizer sets the rotation.",
    "follows base": "The optimizer keeps the norms and sets the rotation, so nothing has to reach equilibrium.",
    "transient": "Your run has not reached equilibrium yet.",
    "far": "Your run is not in equilibrium. Norms are too far from it.",
    "steady": "Your run is not in equilibrium. Norms stay away from it.",
    "short": "Your run is too short to reach equilibrium.",
}

UNKNOWN_PEAK = "Cannot tell whether the run was long enough for equilibrium. The peak learning rate is unknown."


def summarize(
    layers: Layers[View],
    findings: Sequence[Finding],
    steps: float | None = None,
    *,
    rate: str = "peak",
    is_running: bool = False,
) -> tuple[str, ...]:
    """Return two to four statements: equilibrium, weight decay, balance, and what to do.

    layers      that are judged
    findings    on them
    steps       of the run, None if unknown
    rate        the learning rate of a memory, "last" if the peak is unknown
    is_running  whether the run is still going
    """
    decisive = next((finding for finding in findings if finding.kind in DECISIVE), None)
    if decisive is not None:
        answer = "Cannot tell yet what this run does. " if decisive.kind == "too_short" else ""
        return answer + decisive.sentence, decisive.remedy
    known = layers.where(lambda view: view.norm_state != "unknown")
    if not known:
        lacking = next((each.sentence for each in findings if each.kind == "missing_input"), None)
        if lacking is not None:
            return lacking, "Until then it is unknown whether the run reaches equilibrium."
        return "Cannot tell whether the run reaches equilibrium. No layer has a predicted norm.", _what_to_do(findings)
    statements = [_equilibrium(known, findings, steps), *_weight_decay(known, steps, rate)]
    if _is_short(known, steps):
        # The learning rate may have fallen since its peak, by any factor.
        statements = statements[::-1] if rate == "peak" else [UNKNOWN_PEAK]
        if is_running:
            statements[-1] = "So far your run is too short to reach equilibrium."
    return *statements, *_balance(layers, findings), _what_to_do(findings)


def _is_short(layers: Layers[View], steps: float | None) -> bool:
    return all(not view.keeps_norm and 0 < run_length(view, steps) < MEMORY_PASSED for view in layers)


def _equilibrium(layers: Layers[View], findings: Sequence[Finding], steps: float | None) -> str:
    """Return whether the run reaches equilibrium: yes, no, or in how many layers."""
    missed = [name for finding in findings if finding.kind == "missed_angle" for name in finding.layers]
    if missed:
        part = f" in {len(missed)} of {len(layers)} layers" if len(missed) < len(layers) else ""
        return f"Your run misses the rotation that its optimizer sets{part}."
    held = layers.in_state("keeps norm")
    arrived = layers.in_state("settled", "fell out")
    if held and len(held) < len(layers):
        others = len(layers) - len(held)
        rest = f"{len(arrived)} of the other {others} reach it" if arrived else "No other layer reaches it"
        rest = "All others reach it" if len(arrived) == others else rest
        return (
            f"The optimizer sets the rotation of {len(held)} of {len(layers)} layers, so they are in equilibrium from "
            f"the first step. {rest}."
        )
    if _is_short(layers, steps):
        return STATES["short"]
    if not arrived:
        states = {view.norm_state for view in layers}
        return STATES[states.pop()] if len(states) == 1 else "Your run does not reach equilibrium."
    if len(arrived) < len(layers):
        return f"Your run reaches equilibrium in part: {len(arrived)} of {len(layers)} layers do."
    departures = [departure.step for view in arrived if (departure := view.departure) is not None]
    left = f" Norms leave it from step {min(departures):,.0f} on." if len(departures) == len(arrived) else ""
    settled = max(view.settled_at for view in arrived)
    if not isfinite(settled) or not steps:
        return f"Your run is in equilibrium.{left}"
    when = f"after {format_number(min(100.0, 100 * (settled + 1) / steps), 2)} % of its steps"
    return f"Your run reaches equilibrium {when if settled > 0 else 'in its first step'}.{left}"


def _weight_decay(layers: Layers[View], steps: float | None, rate: str) -> list[str]:
    """Return whether weight decay matters, and the run length in memories. It is empty without weight decay."""
    lasting = layers.where(lambda view: run_length(view, steps) > 0)
    # Hyperball's rotation needs no weight decay, so only the other layers count.
    lasting = lasting.where(_has_decay) or lasting
    if not lasting:
        is_open = any(isfinite(view.memory) for view in layers)
        return ["Cannot tell whether weight decay matters. The number of steps is unknown."] if is_open else []
    lengths = [run_length(view, steps) for view in lasting]
    memory = f"a memory is {format_range([view.memory for view in lasting], 2)} steps at the {rate} learning rate"
    length = f"Its length is {format_memories(lengths)} ({memory})"
    if MEMORY_PASSED <= min(lengths) < SETTLES and not lasting.in_state("settled", "fell out", "keeps norm"):
        length += ", which is barely enough to reach equilibrium"
    return [f"{decay_effect(lasting, steps)} {length}."]


def _has_decay(view: LayerView) -> bool:
    return not view.keeps_norm or (view.rule is not None and view.rule.plain.has_weight_decay)


def _balance(layers: Layers[View], findings: Sequence[Finding]) -> list[str]:
    """Return whether layers rotate alike, or an empty string for a single layer."""
    unbalanced = _imbalance(findings)
    if unbalanced is not None:
        names = [layers.label(name) for name in unbalanced.layers]
        times = format_number(unbalanced.evidence["ratio"], 2)
        return [f"Layers are not balanced: {names[0]} rotates {times} times as fast as {names[1]}."]
    known = layers.where(lambda view: view.rotation > 0)
    if len(layers) < 2:
        return []
    if len(known) < 2:
        return ["Cannot tell whether layers are balanced."]
    fastest = max(known, key=lambda view: view.rotation)
    slowest = min(known, key=lambda view: view.rotation)
    ratio = fastest.rotation / slowest.rotation
    times = format_number(ratio, 2)
    if ratio > limit.MAX_LAYER_RATIO:
        return [f"{layers.label(fastest)} rotates {times} times as fast as {layers.label(slowest)}."]
    within = f", within a factor of {times}" if ratio > limit.MAX_ALIKE_RATIO else ""
    return [f"{known.clause('rotates', 'rotate')} alike{within}."]


def _imbalance(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that layers with the same settings rotate at different speeds."""
    found = [finding for finding in findings if finding.kind == "layer_imbalance"]
    return next((each for each in found if each.evidence.get("ratio", 0.0) > limit.MAX_LAYER_RATIO), None)


def _what_to_do(findings: Sequence[Finding]) -> str:
    """Return the remedies of findings that were shown to raise the loss, and of a missed angle."""
    costly = [finding for finding in findings if finding.severity in ("bad", "warn") or finding.kind == "missed_angle"]
    remedies = list(dict.fromkeys(finding.remedy for finding in costly if finding.remedy))
    if remedies:
        return f"What to do: {' '.join(remedies[:2])}"
    return "No tested remedy is known." if costly or _imbalance(findings) else "Nothing to change."
