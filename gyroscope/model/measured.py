"""The layers that the tracker measures: weights, fused weights part by part, and embeddings."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from gyroscope.geometry import Split
from gyroscope.model.optimizer_list import Optimizers
from gyroscope.model.parameters import NO_VECTORS
from gyroscope.model.selection import AnyOptimizer, Decision, Invariance, decide, with_tokens

# Matrices whose rows are queries, keys and values, one third after the other, as in torch, timm, nanoGPT, GPT-2 and
# MPT. Not GPT-NeoX's query_key_value or a diffusion model's convolution qkv, in which the three alternate head by head.
FUSED_QKV = re.compile(r"(^|[._])(qkv|to_qkv|Wqkv|c_attn)\.(.*\.)?(weight|original\d?)$|(^|[._])in_proj_weight$")
QKV: tuple[str, ...] = ("q", "k", "v")
# Tokens of an embedding that are measured by default, evenly spaced, because all 50,000 would cost more than the model.
MOST_TOKENS = 1024


@final
@dataclass(frozen=True, eq=False)
class WatchedLayer:
    """Vectors `start` to `stop` of a parameter, which are measured, drawn and judged as one layer.

    At most `at_most` of them are measured, None for all. `vector` is the word for one, such as "token".
    """

    name: str
    decision: Decision
    split: Split
    start: int
    stop: int
    vector: str
    at_most: int | None = None


def measured_layers(
    model: nn.Module,
    optimizer: AnyOptimizer,
    *,
    layers: re.Pattern[str] | None = None,
    probe: Mapping[str, Invariance] | None = None,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> list[WatchedLayer]:
    """Return the layers that a tracker measures, in the model's order.

    These are the weights that `decide` finds, also frozen ones, because they may be thawed. Embeddings that decay are
    among them, with one vector per token. `layers` measures all parameters whose name it matches instead.

    Fused weights become layers `name[part]` with equally many vectors, because queries, keys and values settle at
    different norms. `parts` maps regular expressions to names of parts. The default has the common attention layers,
    and {} splits no weight.

    >>> import torch
    >>> model = nn.ModuleDict({"wte": nn.Embedding(9, 8), "qkv": nn.Linear(8, 24)})
    >>> adamw = torch.optim.AdamW(model.parameters())
    >>> [(layer.name, layer.stop - layer.start) for layer in measured_layers(model, adamw)]
    [('wte.weight', 9), ('qkv.weight[q]', 8), ('qkv.weight[k]', 8), ('qkv.weight[v]', 8)]
    """
    patterns = None if parts is None else _compiled(parts)
    optimizers = Optimizers.of(optimizer)
    groups = optimizers.groups()
    measured: list[WatchedLayer] = []
    for decision in decide(model, optimizers, probe=probe):
        split = _measured_split(decision, groups[decision.group].options, layers)
        if split.granularity != "none" and not decision.parameter.is_complex() and decision.parameter.numel() > 1:
            measured += watched_layers(decision, split, patterns)
    return measured


def _measured_split(decision: Decision, group: Mapping[str, Any], layers: re.Pattern[str] | None) -> Split:
    """Return how a parameter is measured. A requested one that does not rotate is split along dim 0, or not at all."""
    if layers is not None and not layers.search(decision.name):
        return NO_VECTORS
    if decision.turns or layers is None:
        return with_tokens(decision, group).split
    return Split() if Split().rotates(decision.parameter.shape) else Split("tensor")


def watched_layers(
    decision: Decision, split: Split, patterns: Mapping[re.Pattern[str], tuple[str, ...]] | None = None
) -> Iterator[WatchedLayer]:
    """Yield the layers of a parameter: itself, or its fused parts by `patterns` or by the common names."""
    vectors = split.num_vectors(decision.parameter.shape)
    is_table = decision.is_embedding and split == Split()
    vector = "token" if is_table else split.granularity
    if patterns is None:
        names = QKV if _is_fused_qkv(decision, split) else ()
    else:
        names = next((names for pattern, names in patterns.items() if pattern.search(decision.name)), ())
    if not names or split.granularity == "tensor":
        yield WatchedLayer(decision.name, decision, split, 0, vectors, vector, MOST_TOKENS if is_table else None)
        return
    if vectors % len(names):
        raise ValueError(f"{decision.name!r} has {vectors} vectors, which are not {len(names)} equal parts {names}")
    size = vectors // len(names)
    for number, name in enumerate(names):
        first = number * size
        yield WatchedLayer(f"{decision.name}[{name}]", decision, split, first, first + size, vector)


def _is_fused_qkv(decision: Decision, split: Split) -> bool:
    """Return whether a matrix by such a name has three outputs for each input, and no group spans two parts."""
    shape = decision.parameter.shape
    if len(shape) != 2 or not FUSED_QKV.search(decision.name):
        return False
    return max(shape) == 3 * min(shape) and split.num_vectors(shape) % 3 == 0


def _compiled(parts: Mapping[str, Sequence[str]]) -> dict[re.Pattern[str], tuple[str, ...]]:
    for text, names in parts.items():
        if isinstance(names, str) or len(set(names)) < max(len(names), 2):
            raise ValueError(f"parts[{text!r}]={names!r} must be two or more names of parts, such as ('q', 'k', 'v')")
    return {re.compile(text): tuple(names) for text, names in parts.items()}
