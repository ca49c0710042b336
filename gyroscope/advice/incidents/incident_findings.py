"""Incidents in words: what happened at which step, what came first, the likely cause, and where to look."""

from collections.abc import Mapping

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, Remedy
from gyroscope.advice.incidents.incident_search import incidents, search_of
from gyroscope.advice.incidents.samples import Cause, Incident
from gyroscope.advice.layer_families import join_words
from gyroscope.advice.phrases import format_number
from gyroscope.advice.record import Record
from gyroscope.advice.remedies import CHECK_LAYER, FIND_SETTING, FIND_WRITER, look_at_batches, look_at_layer

# Labels of incidents on a time axis.
MARKS: dict[Cause, str] = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "betas": "betas",
    "weights": "weights changed",
    "frozen": "no gradient",
    "batches": "batches",
    "layer_gradient": "a layer's gradient",
    "not_finite": "not finite",
    "resumed": "resumed",
}
# The label of batches that raised the loss for longer than a spike.
LOSS_JUMP = "loss jump"
SETTINGS = {"weight_decay": "weight decay", "beta1": "the momentum (β1)", "beta2": "β2"}


def incident_findings(record: Record) -> list[Finding]:
    """Return what happened in a run, except for numbers that are not finite, which have a separate finding."""
    return [incident_finding(incident) for incident in incidents(record) if incident.cause != "not_finite"]


def judged_steps(record: Record) -> str | None:
    """Return a sentence on the steps from which incidents are judged, or None if none are judged yet."""
    search = search_of(record)
    search.read_on(record)
    first_steps = {"losses": search.losses_judged_from, "gradients": search.gradients_judged_from}
    known = [f"{name} from step {step:,} on" for name, step in first_steps.items() if step is not None]
    if not known:
        return None
    # The callback for Hugging Face stores how often its Trainer logs.
    user = record.config.get("user")
    in_trainer = isinstance(user, Mapping) and "logging_steps" in user
    how = "Log the loss at every step (logging_steps=1)" if in_trainer else "Log the loss"
    unknown = "" if search.losses_judged_from is not None else f" {how} to judge it too."
    rate = f"Expect about one false alarm in {limit.STEPS_PER_FALSE_ALARM:,} steps."
    return f"Incidents are judged by {' and '.join(known)}.{unknown} {rate}"


def incident_finding(incident: Incident) -> Finding:
    """Return the finding on one incident."""
    sentence, remedy = _described(incident)
    return Finding(
        "incident",
        # Resuming a run is no fault.
        "note" if incident.cause == "resumed" else "warn",
        sentence + _consequence(incident),
        remedy.text,
        layers=incident.layers,
        evidence={"step": float(incident.step), "end": float(incident.end), **incident.evidence},
        mark=LOSS_JUMP if incident.loss_lasts else MARKS[incident.cause],
    )


def _described(incident: Incident) -> tuple[str, Remedy]:
    """Return what happened with its likely cause, and where to look."""
    when = _when(incident)
    if incident.cause == "lr":
        return f"{when} the learning rate was {_raised(incident)}.", FIND_SETTING
    if incident.cause in ("weight_decay", "betas"):
        return f"{when} {_changes(incident)}.", FIND_SETTING
    if incident.cause == "frozen":
        names = f"{join_words(incident.layers)} {'has' if len(incident.layers) == 1 else 'have'}"
        text = f"{names} had no gradient since step {incident.step:,}, while other layers go on training: frozen, or no"
        return f"{text} longer part of the loss.", CHECK_LAYER
    if incident.cause == "weights":
        return f"{when} {_written(incident)}.", FIND_WRITER
    if incident.cause == "layer_gradient":
        return _of_layer(incident), look_at_layer(incident.layers[0], incident.since, incident.end)
    if incident.cause == "not_finite":
        return f"{when} weights or gradients of {join_words(incident.layers)} are not finite.", NOTHING
    if incident.cause == "resumed":
        return f"The run was resumed at step {incident.step:,}.", NOTHING
    return _unusual(incident), look_at_batches(incident.since, incident.end)


def _when(incident: Incident) -> str:
    if incident.since >= incident.step:
        return f"At step {incident.step:,}"
    return f"Between steps {incident.since:,} and {incident.step:,}"


def _raised(incident: Incident) -> str:
    number = incident.evidence
    change = f"{format_number(number['highest'])} instead of {format_number(number['before'])}"
    text = f"{format_number(number['factor'], 2)} times as high as before, {change}"
    came_back = number["highest"] > limit.SETTING_JUMP * number["after"]
    return f"{text}, and came back to {format_number(number['after'])}" if came_back else text


def _changes(incident: Incident) -> str:
    number = incident.evidence
    changes = []
    for name, words in SETTINGS.items():
        if f"{name}_after" in number:
            before, after = (format_number(number[f"{name}_{when}"]) for when in ("before", "after"))
            changes.append(f"{words} changed from {before} to {after}")
    return ", and ".join(changes)


def _written(incident: Incident) -> str:
    number = incident.evidence
    name = incident.layers[0]
    others = f" (and of {len(incident.layers) - 1} more)" if len(incident.layers) > 1 else ""
    norm = f"the norm went from {format_number(number['norm_before'])} to {format_number(number['norm_after'])}"
    turn = f"the direction rotated by {format_number(number['turn'], 2)} rad"
    most = f"the optimizer's updates explain at most {format_number(100 * number['explained'], 2)} % of the norm"
    return f"the weights of {name}{others} were modified outside the optimizer: {norm}, {turn}, and {most}"


def _unusual(incident: Incident) -> str:
    number = incident.evidence
    if incident.loss_lasts:
        return _loss_jump(incident)
    lasts = incident.end > incident.step
    when = f"From step {incident.step:,} to step {incident.end:,}" if lasts else _when(incident)
    batches = "batches of these steps are" if lasts or incident.since < incident.step else "batch of that step is"
    what = f"{_factors(number)}, first seen in {incident.first}, with no change of settings"
    return f"{when} {what}: most likely the {batches} unlike the others (data, labels or their order)."


def _loss_jump(incident: Incident) -> str:
    jumped = f"the loss jumped to as much as {format_number(incident.evidence['loss'], 2)} times the usual"
    others = {name: value for name, value in incident.evidence.items() if name in ("gradient", "update")}
    also = f" Meanwhile {_factors(others)}." if others else ""
    cause = "No setting changed, so these batches are most likely unlike the others (data, labels or their order)"
    return f"{_when(incident)} {jumped} and stayed high until step {incident.end:,}. {cause}.{also}"


def _of_layer(incident: Incident) -> str:
    """Return how large the gradient or the update was, and the consequence under Adam."""
    number = incident.evidence
    name = incident.layers[0]
    words = {"gradient": "the gradient", "update": "the updates"}
    unusual = {word: format_number(number[key], 2) for key, word in words.items() if key in number}
    text = f"{_when(incident)} {name} had a far too large gradient. No other layer did."
    if unusual:
        reached = f"reached {join_words(list(unusual.values()))} times the usual"
        text = f"{_when(incident)} {join_words(list(unusual))} of {name} {reached}. No other layer did this."
    if "denominator" not in number:
        return text
    memory = 1 / (1 - number["beta2"])
    # √v falls by a factor e in two memories of v.
    grown = f"Adam's denominator became {format_number(number['denominator'], 2)} times as large"
    return f"{text} {grown}, which slows the layer's rotation for about {format_number(2 * memory, 2)} steps."


def _factors(number: dict[str, float], prefix: str = "") -> str:
    """Return how many times the usual value each unusual quantity reached."""
    words = {"loss": "the loss", "gradient": "gradients", "update": "updates"}
    unusual = {word: format_number(number[prefix + name], 2) for name, word in words.items() if prefix + name in number}
    if unusual:
        return f"{join_words(list(unusual))} reached {join_words(list(unusual.values()))} times the usual"
    growth = format_number(number[prefix + "denominator"])
    return f"Adam's denominators grew {growth} times, as they do after a far too large gradient"


def _consequence(incident: Incident) -> str:
    """Return what gradients and losses did after an incident whose cause is known."""
    if "then_step" not in incident.evidence:
        return ""
    return f" From step {int(incident.evidence['then_step']):,} on {_factors(incident.evidence, 'then_')}."
