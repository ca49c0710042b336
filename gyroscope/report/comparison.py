"""Comparison of several runs: the layers that they share, and their losses at the end."""

from collections.abc import Sequence

from gyroscope.advice.layer_families import describe_layers, join_words, plain_name
from gyroscope.advice.phrases import format_number
from gyroscope.report.run_data import RunData
from gyroscope.store import RunError


def shared_layers(runs: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Return the layers of each run that all runs have, or raise if there are none.

    runs  name and layers of each run. Names are compared without what parametrizations add to them

    >>> shared_layers([("a", ["fc.weight", "emb.weight"]), ("b", ["fc.parametrizations.weight.original"])])
    [['fc.weight'], ['fc.parametrizations.weight.original']]
    """
    plain = [{plain_name(layer) for layer in layers} for _, layers in runs]
    shared = set.intersection(*plain)
    if not shared:
        names = " and ".join(name for name, _ in runs[:2])
        raise RunError(f"{names} have no layer in common. Report on each run separately.")
    return [[layer for layer in layers if plain_name(layer) in shared] for _, layers in runs]


def comparison_summary(runs: Sequence[RunData], all_layers: Sequence[Sequence[str]]) -> list[str]:
    """Return how the losses of several runs differ at the end, and which layers are left out.

    runs        as a page shows them
    all_layers  of each run, including those that are not shared
    """
    return [text for text in (_losses(runs), _left_out(runs, all_layers)) if text]


def _left_out(runs: Sequence[RunData], all_layers: Sequence[Sequence[str]]) -> str:
    """Return the sentence about the layers that some runs lack, or an empty one. It names the runs that have them."""
    shown = {layer.name for layer in runs[0].layers}
    among = list(dict.fromkeys(plain_name(layer) for layers in all_layers for layer in layers))
    owners: dict[str, list[str]] = {}
    for run, layers in zip(runs, all_layers, strict=True):
        for layer in dict.fromkeys(map(plain_name, layers)):
            if layer not in shown:
                owners.setdefault(layer, []).append(run.name)
    left_out: dict[tuple[str, ...], list[str]] = {}
    for layer, names in owners.items():
        left_out.setdefault(tuple(names), []).append(layer)
    parts = [f"{describe_layers(layers, among)} ({join_words(names)})" for names, layers in left_out.items()]
    return f"The comparison leaves out layers that only some runs have: {join_words(parts)}." if parts else ""


def _losses(runs: Sequence[RunData]) -> str:
    """Return the sentence about the losses, or an empty one if a run has none or their names differ."""
    heads = [run.head for run in runs]
    if not all(head.loss_name for head in heads) or len({head.loss_name for head in heads}) > 1:
        return ""
    ranked = sorted(runs, key=lambda run: run.head.loss)
    best = ranked[0]
    loss = format_number(best.head.loss, 4)
    others = [
        f"{run.name} ends at {format_number(run.head.loss, 4)} (+{format_number(run.head.loss - best.head.loss, 2)})"
        for run in ranked[1:]
    ]
    return f"{best.name} ends with the lowest {best.head.loss_name}, {loss}. {', '.join(others)}."
