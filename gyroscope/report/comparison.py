"""Comparison of several runs: the layers that they share."""

from collections.abc import Sequence

from gyroscope.advice.layer_families import describe_layers, join_words, plain_name
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


def left_out_layers(runs: Sequence[RunData], all_layers: Sequence[Sequence[str]]) -> str:
    """Return the sentence about the layers that some runs lack, or an empty one. It names the runs that have them.

    runs        as a page shows them
    all_layers  of each run, including those that are not shared
    """
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
