"""Which tensors of a checkpoint have vectors that turn: without the model's layers, names and shapes decide.

The first of these that applies:

1. a parameter group that says so (`granularity`, `axis`, `group_size`), as `gyro.param_groups` writes them;
2. one dimension, a name of a bias or a norm layer, or a leading 1 of three dimensions or more: no vectors;
3. a name of an embedding with two dimensions: one vector per row, a token, and only where it decays;
4. three dimensions and "expert" in the name: one vector per expert and output;
5. c_attn, c_fc and c_proj of Hugging Face's GPT-2, whose c_attn is (n, 3n): one vector per column;
6. all else: one vector per index of dimension 0. A ConvTranspose cannot be told from a convolution.

Muon turns each matrix as a whole. Fused queries, keys and values are three layers, as the tracker has them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gyroscope.checkpoint.files.formats import ParameterState
from gyroscope.geometry import Split
from gyroscope.model.measured import WatchedLayer, watched_layers
from gyroscope.model.parameters import BIAS, COLUMNS, EXPERTS, NO_VECTORS, ROWS
from gyroscope.model.selection import Decision

EMBEDDING = re.compile(r"(^|[._])(wte|wpe|shared|\w*embed(ding)?s?\w*)\.weight$|(^|[._])\w*emb(ed(ding)?s?)?$")
PATCHES = re.compile(r"patch")
NORM = re.compile(r"(^|[._])(ln|bn|gn|\w*norm)_?\w*\.weight$", re.IGNORECASE)
GPT2 = re.compile(r"(^|\.)(c_attn|c_fc|c_proj)\.weight$")


def checkpoint_layers(
    parameters: Sequence[ParameterState], groups: Sequence[Mapping[str, Any]], whole: Sequence[bool]
) -> Iterator[tuple[ParameterState, list[WatchedLayer]]]:
    """Every parameter with vectors and the layers that it is; `whole` says of each group whether Muon trains it."""
    by_column = _has_gpt2_columns(parameters)
    for parameter in parameters:
        group = groups[parameter.group] if parameter.group >= 0 else {}
        is_whole = parameter.group >= 0 and whole[parameter.group]
        decision = _decision(parameter, group, by_column, is_whole)
        if decision.turns:
            yield parameter, list(watched_layers(decision, decision.split))


def _decision(parameter: ParameterState, group: Mapping[str, Any], by_column: bool, whole: bool) -> Decision:
    shape = parameter.weight.shape
    is_embedding = _is_embedding(parameter.name, shape)
    split = Split.of(group) if "granularity" in group else split_by_name(parameter.name, shape, by_column)
    if is_embedding and parameter.group >= 0 and not float(group.get("weight_decay") or 0.0) > 0:
        split = NO_VECTORS
    if whole and len(shape) == 2:
        split = Split("tensor")
    if not split.rotates(shape):
        split = NO_VECTORS
    # Without values: shape and name are all that is asked of it.
    empty = torch.nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
    return Decision(parameter.name, empty, split, "name and shape", parameter.group, is_embedding)


def split_by_name(name: str, shape: Sequence[int], by_column: bool = False) -> Split:
    """How a tensor splits into vectors, by the rules of this file.

    >>> split_by_name("h.0.mlp.c_fc.weight", (64, 16)).axis, split_by_name("h.0.ln.weight", (16,)).granularity
    (0, 'none')
    """
    if len(shape) < 2 or BIAS.search(name.rpartition(".")[2]) or NORM.search(name):
        return NO_VECTORS
    if shape[0] == 1 and len(shape) > 2:
        return NO_VECTORS
    if len(shape) == 3 and "expert" in name:
        return EXPERTS
    return COLUMNS if by_column and GPT2.search(name) else ROWS


def _is_embedding(name: str, shape: Sequence[int]) -> bool:
    return len(shape) == 2 and EMBEDDING.search(name) is not None and not PATCHES.search(name)


def _has_gpt2_columns(parameters: Sequence[ParameterState]) -> bool:
    fused = [each.weight.shape for each in parameters if each.name.endswith("c_attn.weight")]
    return bool(fused) and all(len(shape) == 2 and shape[1] == 3 * shape[0] for shape in fused)
