"""A transfer in sentences and as JSON: the answer, its support, and what each row keeps."""

from collections.abc import Iterator

from gyroscope._json import dumps
from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_families import join_words
from gyroscope.advice.phrases import format_number
from gyroscope.report.transfer_data import TransferData, setting
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
        times = format_number(row.start_over_rotation, 2)
        yield f"Its first steps rotate {'' if times == '1' else f'{times} times '}as fast as in equilibrium."


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


def sentences(data: TransferData) -> list[str]:
    """Return all sentences in the order in which they are shown."""
    rows = [sentence for row in data.chosen for sentence in row_sentences(data, row)]
    return [answer(data), *trust(data), *other_groups(data), *rows]


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
            "rules": [{**vars(row), "is_silent": data.is_silent(row)} for row in transfer.rows],
            "sentences": sentences(data),
        }
    )
