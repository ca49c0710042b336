"""The first sentences of every plan, run and checkpoint: what to change, why, and the state that training is in."""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding
from gyroscope.advice.layer_facts import LayerFacts, Layers, State
from gyroscope.advice.layer_families import join_words
from gyroscope.advice.phrases import format_number, memories_text
from gyroscope.theory.convergence import MEMORY_PASSED

NO_CHANGE = "No finding asks for a change. The learning rate was not judged."
# Findings that leave nothing else to state about a run.
DECISIVE = ("diverged", "too_short")
# Kinds of notes that explain why nothing has to change. The others are about parts of a model.
REASONS = ("well", "off_prediction", "missing_input", "not_measured")
# The statement about training if most layers are in one of these states.
STATES: dict[State, str] = {
    "in equilibrium": "The run is in equilibrium",
    "falls out": "The run falls out of equilibrium at the end",
    "at its angle": "The optimizer sets the rotation, so nothing has to settle",
    "short": "The run is too short for equilibrium",
    "off equilibrium": "The run is not in equilibrium",
    "grows": "The run has no equilibrium because norms grow without end",
    "no decay": "The run has no equilibrium because it has no weight decay",
}
ARRIVED: tuple[State, ...] = ("in equilibrium", "falls out")


def summarize(
    layers: Layers, findings: Sequence[Finding], steps: float | None = None, *, is_running: bool = False
) -> tuple[str, ...]:
    """Return at most three statements: what to change, why, and the state that training is in.

    layers      that are judged
    findings    on them, worst first
    steps       of the run, None if unknown
    is_running  whether the run is still going
    """
    # A setting to change comes before a place to look at.
    by_change = sorted(findings, key=lambda finding: not finding.changes)
    asking = next((finding for finding in by_change if finding.remedy), None)
    reason = asking or _reason(findings)
    why = "" if reason is None else f"{reason.sentence.rstrip('.').split('. ')[0]}."
    state = state_sentence(layers, steps, is_running=is_running)
    if any(finding.kind in DECISIVE for finding in findings):
        state = ""
    statements = (NO_CHANGE if asking is None else asking.remedy, why, state)
    return tuple(statement for statement in statements if statement)


def _reason(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that matters most if none has a remedy: a fault, or what layers do."""
    faults = [finding for finding in findings if finding.severity in ("bad", "warn")]
    notes = [finding for kind in REASONS for finding in findings if finding.kind == kind]
    return next(iter([*faults, *notes]), None)


def state_sentence(layers: Layers, steps: float | None = None, *, is_running: bool = False) -> str:
    """Return the state of most layers, with the length of the run, and the layers that are in another one."""
    known = layers.where(lambda layer: layer.state != "unknown")
    if not known:
        return "It is unknown whether the run reaches equilibrium." if layers else ""
    states: list[State] = ["in equilibrium" if layer.state in ARRIVED else layer.state for layer in known]
    main = max(STATES, key=states.count)
    members = known.in_state(*ARRIVED) if main == "in equilibrium" else known.in_state(main)
    others = {state: known.in_state(state) for state in STATES if state not in {layer.state for layer in members}}
    exceptions = [f"{rest.describe()} ({state})" for state, rest in others.items() if rest]
    text = STATES[main]
    if main == "in equilibrium":
        late = _late(members, steps or 0.0)
        text = _arrival(members.where(lambda layer: layer not in late), steps)
        if late and steps:
            exceptions.insert(0, f"{late.describe()} ({_share([layer.settled_at for layer in late], steps)})")
    if is_running and main == "short":
        text = f"So far {text[0].lower()}{text[1:]}"
    exception = f", except {join_words(exceptions)}" if exceptions else ""
    length = "" if main in ("grows", "no decay") else _length(members)
    return f"{text}{length}{exception}."


def _late(layers: Layers, steps: float) -> Layers:
    """Return the layers that settle long after half of them have."""
    settled = [layer.settled_at for layer in layers if isfinite(layer.settled_at)]
    usual = median(settled) if settled else 0.0
    bound = max(limit.MAX_LATE_SETTLING * (usual + 1), usual + limit.START_SHARE * steps)
    return layers.where(lambda layer: layer.settled_at > bound)


def _arrival(layers: Layers, steps: float | None) -> str:
    """Return when layers reach equilibrium, and whether most of them fall out of it at the end."""
    settled = [layer.settled_at for layer in layers if isfinite(layer.settled_at)]
    text = STATES["in equilibrium"]
    if steps and len(settled) == len(layers):
        text = f"The run reaches equilibrium {_share(settled, steps)}"
    fallen = layers.in_state("falls out")
    return f"{text} and falls out of it at the end" if 2 * len(fallen) > len(layers) else text


def _share(settled: Sequence[float], steps: float) -> str:
    percent = min(100.0, 100 * (max(settled) + 1) / steps)
    return f"after {format_number(percent, 2)} % of its steps" if max(settled) > 0 else "in its first step"


def _length(layers: Sequence[LayerFacts]) -> str:
    """Return the run length, and what weight decay does in a run that is short, or if the optimizer sets the angle."""
    sets_angle = all(layer.sets_angle for layer in layers)
    if sets_angle and not any(layer.rule is not None and layer.rule.plain.has_weight_decay for layer in layers):
        return ", and weight decay has no effect"
    lasting = [layer for layer in layers if layer.run_length > 0 and isfinite(layer.memory)]
    if not lasting:
        return ""
    longest = max(layer.run_length for layer in lasting)
    effect = "almost no effect" if longest < limit.MIN_DECAY_EFFECT else "little effect"
    text = f" (run length: {memories_text(lasting)})"
    return text if sets_angle or longest >= MEMORY_PASSED else f"{text}, so weight decay has {effect}"
