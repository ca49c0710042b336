"""A transfer in sentences and as JSON: the answer, what each row keeps, and how far the rules agree."""

from collections.abc import Iterator
from math import log
from typing import Any

from gyroscope._json import dumps
from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_families import join_words
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.report.transfer_data import NeededWarmup, TransferCheck, TransferData, setting
from gyroscope.theory.scaling import LARGEST_CHANGE, TransferRow

# What a row can keep of the tuned run, in words.
QUANTITIES = {
    "rotation": "rotation per step",
    "run_length": "run length in memories",
    "rms_entry": "RMS entry",
    "lr": "learning rate",
    "weight_decay": "weight decay",
}


def answer(data: TransferData) -> str:
    """Return the recommended settings of hidden weights in one sentence."""
    if not data.ratios:
        return "Keep your settings, because the scale does not change."
    settings = []
    for row in data.chosen:
        decay = f" and weight decay {setting(row.weight_decay)}" if data.transfer.rule.plain.has_weight_decay else ""
        settings.append(f"lr {setting(row.lr)}{decay} ({row.name})")
    return f"For hidden weights use {', or '.join(settings)}."


def other_groups(data: TransferData) -> Iterator[str]:
    """Yield which parameters the answer leaves out: those that Hyperball does not keep on a sphere."""
    if data.ratios and data.transfer.rule.plain.keeps_norm:
        yield (
            "Embeddings, the output layer, biases and gains take the inner optimizer's plain step, so transfer their "
            "learning rate as for that optimizer."
        )


def trust(data: TransferData) -> Iterator[str]:
    """Yield how far the answer is supported."""
    if data.asked is not None:
        yield f"You asked for {data.asked}."
    elif data.transfer.trials:
        yield data.transfer.trials
    if data.transfer.tuned.memory is None:
        yield "Memory and run length are unknown here. Add --momentum or --betas."
    if data.transfer.beyond:
        changes = [f"{data.axis_name(axis)} (× {format_number(data.ratios[axis])})" for axis in data.transfer.beyond]
        yield f"No source has tested such a change of {join_words(changes)}. Tests end at × {LARGEST_CHANGE:g}."


def row_sentences(data: TransferData, row: TransferRow) -> Iterator[str]:
    """Yield what a row keeps, what it changes and how it starts."""
    if data.ratios:
        yield from _kept(data, row)
    if row.betas is not None:
        yield f"It sets betas to ({row.betas[0]:g}, {row.betas[1]:.4g})."
    if row.eps_factor != 1:
        yield f"It multiplies eps by {format_number(row.eps_factor)}."
    if row.silent_on:
        yield f"It is silent on {join_words([data.axis_name(axis) for axis in row.silent_on])}."
        yield f"We used {join_words([f'{_filling(data, axis)} for {data.axis_name(axis)}' for axis in row.silent_on])}."
    if data.transfer.rule.keeps_norm:
        yield "Norms stay as they are, so its first steps need no warmup."
    elif row.start_over_rotation is not None:
        yield from _start(row.start_over_rotation, data.warmups.get(row.name), data.transfer.to.steps)


def _kept(data: TransferData, row: TransferRow) -> Iterator[str]:
    tuned = data.transfer.tuned
    names = {"memory": f"memory in {data.stuff}", **QUANTITIES}
    pairs = {name: (getattr(tuned, name), getattr(row, name)) for name in names}
    known = {name: (before, after) for name, (before, after) in pairs.items() if before and after}
    kept = [names[name] for name, (before, after) in known.items() if abs(after / before - 1) <= limit.KEPT_BY_TRANSFER]
    if data.transfer.rule.keeps_norm:
        kept.append("norm")
    yield (
        f"{row.name} keeps the {join_words(kept)}." if kept else f"{row.name} keeps none of rotation, memory and norm."
    )
    changed = [
        f"{names[name]} by {format_number(after / before)}"
        for name, (before, after) in known.items()
        if abs(after / before - 1) > limit.KEPT_BY_TRANSFER and name not in ("lr", "weight_decay")
    ]
    if changed:
        yield f"It multiplies {join_words(changed)}."


def _filling(data: TransferData, axis: str) -> str:
    """Return the default for an axis that a rule is silent on, `transfer_rules.DEFAULTS` in words."""
    width = "no change" if data.transfer.rule.keeps_norm else "the rule independent"
    return {"batch": "the square root", "tokens": "a kept run length", "width": width, "depth": "no change"}[axis]


def _start(start: float, warmup: NeededWarmup | None, steps: float) -> Iterator[str]:
    times = format_number(start, 2)
    is_alike = times == "1"
    yield f"Its first steps rotate {'' if is_alike else f'{times} times '}as fast as in equilibrium."
    if warmup is None:
        return
    if warmup.steps is None and (is_alike or start < 1):
        # While the momentum fills, the first updates are longer than later ones.
        searched = _share(warmup.searched, steps)
        yield f"While the momentum fills they rotate faster. No warmup of up to {searched} prevents that."
    elif warmup.steps is None:
        searched = _share(warmup.searched, steps)
        yield f"No warmup of up to {searched} slows them to equilibrium, because the norm starts too small."
    elif warmup.steps == 0:
        yield "They need no warmup."
    else:
        yield f"They need a warmup of {_share(warmup.steps, steps, 2)} to stay within equilibrium."


def _share(warmup: int, steps: float, digits: int = 9) -> str:
    return f"{format_number(warmup, digits)} steps ({format_number(100 * warmup / steps, 2)} % of the run)"


def agreement(data: TransferData) -> Iterator[str]:
    """Yield which rules agree, which do not, and which axis makes the difference."""
    if not data.ratios:
        return
    first = data.chosen[0]
    if not first.rotation:
        yield f"The rotation of {first.name} depends on the gradient, so the rules cannot be compared."
        return
    mrad = f"{format_number(1e3 * first.rotation)} mrad per step"
    agreeing = [row.name for row in data.agreeing]
    if len(agreeing) > 1:
        yield (
            f"{len(agreeing)} of {len(data.speaking)} rules agree on the rotation within 10 % ({mrad}): "
            f"{', '.join(agreeing)}."
        )
    else:
        yield f"No other rule agrees with the rotation of {first.name} ({mrad}) within 10 %."
    starts = [row.start_over_rotation for row in data.agreeing if row.start_over_rotation is not None]
    if len(starts) > 1 and max(starts) > (1 + limit.KEPT_BY_TRANSFER) * min(starts):
        times = format_range(starts, 2)
        yield f"These rules differ in norm: their first steps rotate {times} times as fast as in equilibrium."
    yield from _differences(data)
    others = [row for row in data.transfer.rows if row.lr is None and row.rotation and not data.is_silent(row)]
    if others:
        rotations = format_range([1e3 * row.rotation for row in others if row.rotation])
        names = ", ".join(row.name for row in others)
        yield f"Rules that give no settings here would rotate {rotations} mrad per step: {names}."


def _differences(data: TransferData) -> Iterator[str]:
    """Yield the rules that disagree, by the axis that makes most of the difference."""
    by_axis: dict[str, list[str]] = {}
    for row in data.speaking:
        if row in data.agreeing or not row.rotation:
            continue
        axis = deciding_axis(data.chosen[0], row)
        by_axis.setdefault(axis, []).append(f"{row.name} (× {format_number(data.over_first(row))})")
    for axis, names in by_axis.items():
        name = data.axis_name(axis)
        makes = "make" if name.endswith("s") else "makes"
        yield f"{name.capitalize()} {makes} most of the difference to {', '.join(names)}."


def deciding_axis(first: TransferRow, other: TransferRow) -> str:
    """Return the axis that adds most to the difference in rotation between two rows."""

    def difference(axis: str) -> float:
        return abs(log(other.decay_by_axis[axis] / first.decay_by_axis[axis]))

    return max(other.decay_by_axis, key=difference)


def checked(check: TransferCheck) -> Iterator[str]:
    """Yield what a transferred run is compared with, and whether the two are comparable."""
    yield f"{check.run} and the prediction of {check.rule}, over the last part of the run at full learning rate."
    if check.other:
        yield check.other
    length = next((each.measured for each in check.quantities if each.name == "run length"), None)
    if length is not None and length < 1:
        yield "The run is shorter than one memory, so its norms and its rotation still depend on the start."


def camps(data: TransferData) -> Iterator[str]:
    """Yield which rules keep the memory in tokens when the batch changes."""
    if "batch" not in data.ratios:
        return
    memory = f"the memory in {data.stuff}"
    changes = "grow" if data.ratios["batch"] > 1 else "shrink"
    keeping = [row.name for row in data.chosen if _keeps_memory(data, row)]
    changing = [row.name for row in data.chosen if not _keeps_memory(data, row)]
    if keeping:
        yield f"When the batch changes, {join_words(keeping)} {'keeps' if len(keeping) == 1 else 'keep'} {memory}."
    if changing:
        lets = "lets" if len(changing) == 1 else "let"
        yield f"When the batch changes, {join_words(changing)} {lets} {memory} {changes}."
    others = [row for row in data.speaking if row not in data.chosen and "batch" not in row.silent_on]
    other_camp = [row.name for row in others if _keeps_memory(data, row) != bool(keeping)]
    if other_camp and not (keeping and changing):
        yield f"The other camp {f'lets it {changes}' if keeping else 'keeps it'}: {', '.join(other_camp)}."


def _keeps_memory(data: TransferData, row: TransferRow) -> bool:
    return abs(data.ratios["batch"] / row.decay_by_axis["batch"] - 1) <= limit.KEPT_BY_TRANSFER


def sentences(data: TransferData) -> list[str]:
    """Return all sentences in the order in which they are shown."""
    rows = [sentence for row in data.chosen for sentence in row_sentences(data, row)]
    check = [] if data.check is None else checked(data.check)
    return [answer(data), *trust(data), *other_groups(data), *rows, *agreement(data), *camps(data), *check]


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
            "recommended": [row.name for row in transfer.recommended],
            "decided": transfer.decided,
            "trials": transfer.trials,
            "asked": data.asked,
            "beyond": transfer.beyond,
            "tuned": transfer.tuned,
            "rules": [_row(data, row) for row in transfer.rows],
            "check": data.check,
            "sentences": sentences(data),
        }
    )


def _row(data: TransferData, row: TransferRow) -> dict[str, Any]:
    return {
        **vars(row),
        "is_silent": data.is_silent(row),
        "agrees": row in data.agreeing,
        "needed_warmup": data.warmups.get(row.name),
    }
