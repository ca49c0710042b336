"""What the names and shapes of parameters tell of their layers, where only `model.named_parameters()` is known."""

import re
from collections.abc import Mapping

from torch import Tensor

from gyroscope.geometry import Split
from gyroscope.model.parameters import BIAS, COLUMNS, EXPERTS, NO_VECTORS, ROWS

# Layers by the names that models give them: wte and wpe of GPT-2, tok_embeddings of Llama, pos_embed of a ViT …
EMBEDDING_NAME = re.compile(r"(^|[._])(wte|wpe|emb|embd?|embed|embeds|embedding|embeddings|embedder|cls_token)([._]|$)")
NORM_NAME = re.compile(r"(norm|(^|[._])(ln|bn))(_?[a-z]?\d*)?\.[^.]*$", re.IGNORECASE)


def splits_by_name(named: Mapping[str, Tensor]) -> dict[str, Split]:
    """How each of named parameters splits into the weight vectors of neurons; `none` for what is not a weight.

    Tensors of two or more dimensions split along dim 0, as `layer_split` has it for layers whose type is known.
    Embeddings, norm layers and biases are no weights: their names say so. Where the bias of the same layer is as long
    as dim 1 and not as dim 0, the outputs are in dim 1, as in Hugging Face's Conv1D and in a ConvTranspose; a square
    weight follows the others of its layer's name.

    >>> import torch
    >>> gpt2 = {"wte.weight": torch.ones(9, 4), "c_fc.weight": torch.ones(4, 16), "c_fc.bias": torch.ones(16)}
    >>> [split.granularity for split in splits_by_name(gpt2).values()], splits_by_name(gpt2)["c_fc.weight"].axis
    (['none', 'neuron', 'none'], 1)
    """
    outputs_last = {_layer(name) for name, p in named.items() if _has_outputs_last(name, p, named)}
    return {name: _split(name, parameter, outputs_last) for name, parameter in named.items()}


def _split(name: str, parameter: Tensor, outputs_last: set[str]) -> Split:
    if EMBEDDING_NAME.search(name) or NORM_NAME.search(name) or BIAS.search(name.rpartition(".")[2]):
        return NO_VECTORS
    # One leading index is there to broadcast.
    if parameter.dim() < 2 or (parameter.shape[0] == 1 and parameter.dim() > 2):
        return NO_VECTORS
    split = COLUMNS if _layer(name) in outputs_last else ROWS
    if parameter.dim() == 3 and "expert" in name.lower():
        split = EXPERTS
    return split if split.rotates(parameter.shape) else NO_VECTORS


def _layer(name: str) -> str:
    """The last name of a parameter's layer: c_proj of h.0.attn.c_proj.weight."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _has_outputs_last(name: str, parameter: Tensor, named: Mapping[str, Tensor]) -> bool:
    bias = named.get(f"{name.rpartition('.')[0]}.bias")
    if bias is None or bias.dim() != 1 or parameter.dim() < 2:
        return False
    return len(bias) == parameter.shape[1] != parameter.shape[0]
