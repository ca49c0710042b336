"""Norms, rotation and updates by optimizer and parameter group: the table that one builds by hand in a new run."""

import re
from collections.abc import Callable, Sequence
from math import isfinite, nan
from statistics import median
from typing import NamedTuple

from gyroscope.advice.history import LayerHistory, layer_histories
from gyroscope.advice.layer_families import plain_name
from gyroscope.advice.record import group_config
from gyroscope.report.layer_table import known
from gyroscope.store import Run

EMBEDDING = re.compile(r"(?<!un)emb(ed(ding)?s?)?(\.|_|$)|(^|\.)(wte|wpe)(\.|$)")
HEAD = re.compile(r"(^|\.)(lm_head|head|classifier|embed_out|output)(\.|$)")
ROUTER = re.compile(r"(^|[._])router(\.|_|$)")
# The router of a mixture of experts in Mixtral and Qwen. In other models it is a part of the MLP.
GATE = re.compile(r"(^|\.)gate(\.weight)?$")
BIAS = re.compile(r"(^|[._])bias$")
# Kinds of parameters, in the order in which they are listed within a group.
KINDS = ("matrices", "embeddings", "head", "router", "gains", "biases")
QUANTITIES = {"norm": "norm", "rotation": "angular_update", "update": "update_norm"}
# Statistics over vectors that are shown, and how those of several layers become one.
STATISTICS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "min": ("min", min),
    "med": ("q50", median),
    "max": ("max", max),
}
UNMEASURED = "Gains and biases are measured too with Tracker(…, layers='.')."


class GroupTable(NamedTuple):
    """The header and the cells of the table, and what it leaves out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


def group_table(run: Run) -> GroupTable:
    """Return norm, rotation and length of updates of the vectors in each group: smallest, median and largest.

    Rotation is in radians per step. Numbers are means over the last part of the run at full learning rate. The median
    is that over layers of the medians over their vectors.
    """
    groups: dict[tuple[int, str], list[LayerHistory]] = {}
    has_experts = any("expert" in name for name in run.layers)
    for history in layer_histories(run):
        kind = parameter_kind(plain_name(history.name), history.layer.shape, history.is_embedding, has_experts)
        groups.setdefault((history.layer.group, kind), []).append(history)
    # The quantity is named above the first of its columns, because a terminal has no room for more.
    shown = [f"{title if name == 'min' else ''}\n{name}" for title in QUANTITIES for name in STATISTICS]
    header = ["group", "kind", *shown, "lr", "wd"]
    order = sorted(groups, key=lambda key: (key[0], KINDS.index(key[1])))
    rows = [_row(run, number, kind, groups[number, kind]) for number, kind in order]
    is_whole = any(kind in ("gains", "biases") for _, kind in groups)
    return GroupTable(header, rows, "" if is_whole else UNMEASURED)


def parameter_kind(name: str, shape: Sequence[int], is_embedding: bool, has_experts: bool = False) -> str:
    """Return what a parameter is, by its name and shape.

    is_embedding  whether its vectors are tokens
    has_experts   whether the model is a mixture of experts

    >>> parameter_kind("h.0.ln_1.weight", (64,), False), parameter_kind("h.0.mlp.gate.weight", (8, 64), False, True)
    ('gains', 'router')
    """
    if len(shape) < 2:
        return "biases" if BIAS.search(name) else "gains"
    if is_embedding or EMBEDDING.search(name.removesuffix(".weight")):
        return "embeddings"
    if HEAD.search(name):
        return "head"
    return "router" if ROUTER.search(name) or (has_experts and GATE.search(name)) else "matrices"


def _row(run: Run, number: int, kind: str, members: Sequence[LayerHistory]) -> list[str]:
    optimizer = str(group_config(run.config, number).get("optimizer", "unknown"))
    first = members[0]
    lr = float(first.lr[first.peak]) if len(first.lr) else nan
    cells = [f"{number} {optimizer}", f"{kind} ({len(members)})"]
    for quantity in QUANTITIES.values():
        for statistic, over_layers in STATISTICS.values():
            values = [history.mean(history.series(quantity, statistic)) for history in members]
            finite = [value for value in values if isfinite(value)]
            cells.append(known(over_layers(finite) if finite else nan, 2))
    return [*cells, known(lr), known(first.weight_decay)]
