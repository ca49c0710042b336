"""A transfer in sentences and as JSON: the answer, how published rules differ, and how far trials reach."""

from collections.abc import Iterator, Mapping

from gyroscope._json import dumps
from gyroscope.advice.layer_families import join_words
from gyroscope.advice.phrases import format_number
from gyroscope.report.transfer_data import TransferData, setting
from gyroscope.theory.scaling import LARGEST_CHANGE
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope.theory.transfer_rules import FAMILIES, FAVOURED, family_of
from gyroscope.theory.transfer_trials import LARGEST_NETWORK, TRIED, Tried

# Learning rates on both sides of the answer that are worth a run: half an octave away.
NEIGHBOUR = 2**0.5


def answer(data: TransferData) -> str:
    """Return the settings of hidden weights in one sentence."""
    if not data.ratios:
        return "Keep your settings, because the scale does not change."
    decay = f" and weight decay {setting(data.row.weight_decay)}" if _has_decay(data) else ""
    return f"Use lr {setting(data.row.lr)}{decay} for hidden weights."


def reason(data: TransferData) -> str:
    """Return the rule of each axis that changes, for example "tau for batch × 4, mup for width × 2"."""
    axes: dict[str, list[str]] = {}
    for axis, ratio in data.ratios.items():
        name = data.row.rule_by_axis[axis].replace("copy", "no change")
        axes.setdefault(name, []).append(f"{data.axis_name(axis)} {_times(ratio)}")
    parts = [f"{name} for {join_words(changes)}" for name, changes in axes.items()]
    return f"({', '.join(parts)}{', as you asked' if data.is_asked else ''})" if parts else ""


def groups(data: TransferData) -> str:
    """Return the settings of the groups that the answer leaves out, in one line."""
    if not data.ratios:
        return ""
    if data.transfer.rule.plain.keeps_norm:
        return (
            "Embeddings, the output layer, biases and gains take the inner optimizer's plain step, so transfer their "
            "learning rate as for that optimizer."
        )
    others = {name: each for name, each in data.row.groups.items() if name != "hidden"}
    return "   ".join(f"{name} {_settings(data, each)}" for name, each in others.items())


def published(data: TransferData) -> Iterator[str]:
    """Yield how far published rules agree, and which other learning rates are worth a run."""
    if not data.ratios or data.row.lr is None:
        return
    rates = sorted(row.lr for row in data.published if row.lr is not None)
    if rates and setting(rates[0]) != setting(rates[-1]):
        yield f"Published rules give lr {setting(rates[0])} to {setting(rates[-1])}."
    elif rates:
        decays = sorted(row.weight_decay for row in data.published if row.weight_decay is not None)
        differ = setting(decays[0]) != setting(decays[-1])
        yield f"Published rules give lr {setting(rates[0])}{_decay_range(decays) if differ else ''}."
    low, high = (setting(float(f"{rate:.2g}")) for rate in (data.row.lr / NEIGHBOUR, data.row.lr * NEIGHBOUR))
    yield f"Try {low} and {high} if you can afford two more runs."


def support(data: TransferData) -> Iterator[str]:
    """Yield how far our trials reach, and what limits their support."""
    family = family_of(data.transfer.rule)
    if not data.ratios:
        return
    if family == "adam":
        yield from _tried(data)
    else:
        yield f"We have no trial of {FAMILIES[family]}."
    if "depth" in data.ratios:
        untried = "We have no trial for depth. " if family == "adam" else ""
        divisor = format_number(data.ratios["depth"] ** 0.5)
        yield f"{untried}Published rules leave lr unchanged or divide it by {divisor} for depth."


def _tried(data: TransferData) -> Iterator[str]:
    tried = {axis: TRIED[axis] for axis in data.ratios if axis in TRIED}
    favoured = {axis: each for axis, each in tried.items() if data.row.rule_by_axis[axis] == FAVOURED["adam"][axis]}
    if favoured:
        base = "" if data.transfer.rule.plain.name == "AdamW" else " with AdamW"
        yield f"Tried by us{base}: {_reach(data, favoured)}, on networks of up to {LARGEST_NETWORK}."
    further = [axis for axis, each in favoured.items() if not each.smallest <= data.ratios[axis] <= each.largest]
    if further:
        changes = join_words([f"{data.axis_name(axis)} {_times(data.ratios[axis])}" for axis in further])
        yield f"{changes.capitalize()} {'is' if len(further) == 1 else 'are'} beyond that."
    if data.transfer.beyond:
        yield f"No source goes beyond × {LARGEST_CHANGE:g}."
    others = [f"{FAVOURED['adam'][axis]} for {data.axis_name(axis)}" for axis in tried if axis not in favoured]
    if others:
        yield f"Our trials favour {join_words(others)}."
    for axis, each in favoured.items():
        # The losses were measured without another change.
        if len(data.ratios) == 1:
            yield each.result
        if data.ratios[axis] > 1 and (len(data.ratios) == 1 or each.limits_joint_changes):
            yield each.caution


def _reach(data: TransferData, tried: Mapping[str, Tried]) -> str:
    """Return the largest factor on trial for each axis, in the direction of the change."""
    factors = {
        axis: each.smallest if data.ratios[axis] < 1 and each.smallest < 1 else each.largest
        for axis, each in tried.items()
    }
    parts = [f"{data.axis_name(axis)} {_times(factor)}" for axis, factor in factors.items()]
    if len(data.ratios) > 1:
        parts.append("each alone" if len(tried) > 1 else "alone")
    return ", ".join(parts)


def other_changes(data: TransferData) -> Iterator[str]:
    """Yield the settings that were read from a run, and what else the rule changes."""
    if data.is_measured:
        yield f"Tuned: {data.tuned}."
    if data.row.betas is not None:
        yield f"Set betas to ({data.row.betas[0]:g}, {data.row.betas[1]:.4g})."
    if data.row.eps_factor != 1:
        yield f"Multiply eps by {format_number(data.row.eps_factor)}."


def _times(ratio: float) -> str:
    return f"× {format_number(ratio)}" if ratio >= 1 else f"÷ {format_number(1 / ratio)}"


def _has_decay(data: TransferData) -> bool:
    return data.transfer.rule.plain.has_weight_decay


def _settings(data: TransferData, settings: TransferSettings) -> str:
    return setting(settings.lr) + (f", {setting(settings.weight_decay)}" if _has_decay(data) else "")


def _decay_range(decays: list[float]) -> str:
    return f" and weight decay {setting(decays[0])} to {setting(decays[-1])}"


def sentences(data: TransferData) -> list[str]:
    """Return all sentences in the order in which they are shown."""
    parts = [answer(data), reason(data), groups(data), *other_changes(data), *published(data), *support(data)]
    return [part for part in parts if part]


def transfer_json(data: TransferData) -> str:
    """Return settings, rows and sentences as JSON. A number that is not finite becomes null."""
    transfer = data.transfer
    return dumps(
        {
            "optimizer": {"name": transfer.rule.name, **transfer.rule.plain.settings},
            "base": transfer.base,
            "to": transfer.to,
            "unit": data.unit,
            "schedule": {"name": data.schedule.name, "warmup_share": data.schedule.warmup / data.schedule.steps},
            "answer": data.row,
            "recommended": [row.name for row in transfer.recommended],
            "decided": transfer.decided,
            "is_asked": data.is_asked,
            "beyond": transfer.beyond,
            "tuned": transfer.tuned,
            "rules": [{**vars(row), "is_silent": data.is_silent(row)} for row in transfer.rows],
            "sentences": sentences(data),
        }
    )
