"""Which vectors rotate, by names and shapes, for named parameters and for the tensors of a checkpoint.

Without layer types, four things decide: a tensor's own name, the name of its layer, its shape, and the other tensors of
the layer. A tensor counts as a weight if its name contains that word (`weight`, `in_proj_weight`, `weight_ih_l0`), also
behind a parametrization. The first rule that applies counts:

1.  Fewer than two dimensions, or vectors of one entry: no vectors.
2.  A bias (`is_bias`), or a smaller tensor of one parametrization, such as the gain of weight_norm: no vectors.
3.  A weight with a bias of the same shape: the gain of a norm layer, no vectors.
4.  The name of an embedding, without a bias (`_is_embedding`): no vectors. Two dimensions are a row per token.
5.  The layer's name is that of a norm and no bias of one dimension is beside it: no vectors.
6.  A leading dimension of 1, which only broadcasts, in a tensor that is not called a weight: no vectors.
7.  Three dimensions, but not the weight of a convolution: one vector per expert and output. A convolution has a bias
    of one dimension or is just called `weight`, in a layer without `expert`, `moe` or `linear` in its name. If a bias
    of experts in the same layer shows that the outputs are last, each expert is one vector.
8.  A bias as long as dim 1 and not as dim 0: the outputs are in dim 1, as in Hugging Face's Conv1D and in a
    ConvTranspose. A ConvTranspose with groups has a bias that is a multiple of dim 1.
9.  Ambiguous tensors, with equal dimensions or without a bias: their outputs are in dim 1 if that is certain of another
    layer of the same name, if they are named as a transposed convolution, or if they belong to a GPT-2 whose c_attn has
    the shape (n, 3n).
10. All else: one vector per index of dim 0.

`tests/model/test_by_name.py` compares this with the layer types, and lists what names and shapes cannot decide.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from typing import final

from gyroscope.geometry import Split
from gyroscope.model.parameters import (
    LINEAR_MAP_NAME,
    NO_VECTORS,
    ROWS,
    experts_split,
    is_bias,
    is_embedding_name,
    transposed_split,
)

Shape = Sequence[int]

NORM = re.compile(r"norm(\d|_|$)|(^|_)(ln|bn|gn)(\d|_|$)")
WEIGHT = re.compile(r"(^|_)weight(_|$)")
TRANSPOSED = re.compile(r"transpose|deconv|(^|_)convt(_|$)")
EXPERTS = re.compile(r"expert|(^|[._])moe([._]|$)|(^|[._])linear$")
# Tables that are not called embeddings: T5's biases of distances, positions, a quantizer's codebook.
TABLE = re.compile(r"(^|_)(relative_attention_bias|positions?|codebook)$")
# Output layers, which Hyperball leaves to the inner optimizer. A layer with a number in its path belongs to a block.
OUTPUT_LAYER = re.compile(r"^(lm_head|heads?|output(_layer)?|classifier|score|fc|embed_out|unembed(ding)?)$")
# The Conv1D layers of Hugging Face's GPT-2.
GPT2 = ("c_attn", "q_attn", "c_fc", "c_proj")
# The gain and the weight of torch's older weight_norm.
WEIGHT_NORM = ("weight_g", "weight_v")
PARAMETRIZED = re.compile(r"(^|\.)parametrizations\.(?P<tensor>\w+)\.original\d*$")


@final
@dataclass(frozen=True)
class NamedSplit:
    """The split of a tensor into vectors that rotate, by its name and shape. It is `none` for an embedding."""

    split: Split
    is_embedding: bool = False


def splits_by_name(shapes: Mapping[str, Shape]) -> dict[str, NamedSplit]:
    """Return the split of every tensor of a model, by the rules of this file.

    >>> gpt2 = {"wte.weight": (9, 4), "c_fc.weight": (4, 16), "c_fc.bias": (16,)}
    >>> {name: (each.split.granularity, each.split.axis) for name, each in splits_by_name(gpt2).items()}
    {'wte.weight': ('none', 0), 'c_fc.weight': ('neuron', 1), 'c_fc.bias': ('none', 0)}
    """
    tensors = [NamedTensor.of(name, shape) for name, shape in shapes.items()]
    layers: dict[str, NamedLayer] = {}
    for tensor in tensors:
        layer = layers.setdefault(tensor.layer, NamedLayer({}))
        layer.shapes.setdefault(tensor.tensor, []).append(tensor.shape)
    columns = _families_in_columns(tensors, layers)
    return {tensor.name: _decide(tensor, layers[tensor.layer], columns) for tensor in tensors}


@final
@dataclass(frozen=True)
class NamedTensor:
    """A tensor of a model, the path of its layer, and its name in the layer."""

    name: str
    shape: Shape
    layer: str
    tensor: str

    @classmethod
    def of(cls, name: str, shape: Shape) -> "NamedTensor":
        """Split a name. `parametrizations.weight.original1` and `weight_v` are the layer's weight."""
        parametrized = PARAMETRIZED.search(name)
        if parametrized:
            return cls(name, tuple(shape), name[: parametrized.start()], parametrized["tensor"])
        layer, _, tensor = name.rpartition(".")
        return cls(name, tuple(shape), layer, "weight" if tensor in WEIGHT_NORM else tensor)

    @property
    def is_weight(self) -> bool:
        """Whether the tensor is called a weight."""
        return WEIGHT.search(self.tensor) is not None

    @property
    def is_output_layer(self) -> bool:
        """Whether the tensor is a matrix of the output layer, by the name of the layer."""
        in_block = any(part.isdigit() for part in self.layer.split("."))
        return len(self.shape) > 1 and not in_block and OUTPUT_LAYER.match(self.layer_name) is not None

    @property
    def layer_name(self) -> str:
        """The last name of the layer that is not a number: point_embed of point_embed.0.weight."""
        names = [name for name in self.layer.split(".") if not name.isdigit()]
        return names[-1].lower() if names else ""

    @property
    def family(self) -> str:
        """The name that layers of one kind share. It is empty in a list, whose layers may be of any kind."""
        last = self.layer.rpartition(".")[2]
        if last in GPT2:
            return GPT2[0]
        return "" if last.isdigit() else last


@final
@dataclass(frozen=True)
class NamedLayer:
    """The shapes of the tensors of one layer, by name. A parametrization has several."""

    shapes: dict[str, list[Shape]]

    def bias(self, tensor: str) -> Shape | None:
        """Return the shape of the bias of a weight, or None if the layer has none."""
        names = (WEIGHT.sub(r"\1bias\2", tensor), f"{tensor}_bias")
        return next((self.shapes[name][0] for name in names if name in self.shapes and name != tensor), None)

    # Computed once for each layer, because a list may have thousands of tensors.
    @cached_property
    def has_experts_with_outputs_last(self) -> bool:
        """Whether the bias of one of the weights shows that they are [experts, inputs, outputs]."""
        for tensor, shapes in self.shapes.items():
            bias = self.bias(tensor)
            if bias is not None and any(len(each) == 3 and bias[-1] == each[2] != each[1] for each in shapes):
                return True
        return False


def _decide(tensor: NamedTensor, layer: NamedLayer, columns: set[tuple[str, int]]) -> NamedSplit:
    shape = tensor.shape
    if len(shape) < 2 or is_bias(tensor.tensor, shape, chain.from_iterable(layer.shapes.values())):
        return NamedSplit(NO_VECTORS)
    bias = layer.bias(tensor.tensor)
    is_part_of_another_tensor = prod(shape) < max(map(prod, layer.shapes[tensor.tensor]))
    if is_part_of_another_tensor or bias == shape:
        return NamedSplit(NO_VECTORS)
    if bias is None and _is_embedding(tensor):
        return NamedSplit(NO_VECTORS, is_embedding=len(shape) == 2 and ROWS.rotates(shape))
    split = _split(tensor, bias, layer, columns)
    return NamedSplit(split if split.rotates(shape) else NO_VECTORS)


def _split(tensor: NamedTensor, bias: Shape | None, layer: NamedLayer, columns: set[tuple[str, int]]) -> Split:
    shape = tensor.shape
    is_norm = NORM.search(tensor.layer_name) and not LINEAR_MAP_NAME.search(tensor.layer_name)
    if is_norm and (bias is None or len(bias) != 1):
        return NO_VECTORS
    if shape[0] == 1 and not tensor.is_weight:
        return NO_VECTORS
    if len(shape) == 3 and not _is_convolution(tensor, bias):
        return experts_split(layer.has_experts_with_outputs_last)
    groups = _groups_of_transposed(shape, bias)
    if groups is None and _is_in_columns(tensor, bias, columns):
        groups = 1
    if groups is None:
        return ROWS
    return transposed_split(shape[0], groups)


def _is_embedding(tensor: NamedTensor) -> bool:
    """Return whether a tensor without a bias belongs to an embedding, by its own name or by its layer's."""
    if is_embedding_name(tensor.tensor.lower()):
        return True
    is_layer_named_so = is_embedding_name(tensor.layer_name) or TABLE.search(tensor.layer_name) is not None
    return is_layer_named_so and (len(tensor.shape) == 2 or not tensor.is_weight)


def _is_convolution(tensor: NamedTensor, bias: Shape | None) -> bool:
    if bias is not None and len(bias) == 1:
        return True
    if EXPERTS.search(tensor.layer.lower()):
        return False
    return tensor.tensor == "weight" or "conv" in tensor.layer_name


def _groups_of_transposed(shape: Shape, bias: Shape | None) -> int | None:
    """Return the groups of a layer whose bias shows outputs in dim 1, else None."""
    if bias is None or len(bias) != 1 or bias[0] == shape[0] or bias[0] % shape[1]:
        return None
    groups = bias[0] // shape[1]
    # A matrix has no groups, and the groups of a convolution share its inputs equally.
    is_possible = groups == 1 or (len(shape) > 2 and shape[0] % groups == 0)
    return groups if is_possible else None


def _is_in_columns(tensor: NamedTensor, bias: Shape | None, columns: set[tuple[str, int]]) -> bool:
    """Return whether names show that the outputs are in dim 1, for a tensor whose bias does not decide."""
    shape = tensor.shape
    if bias is not None and bias[0] == shape[0] != shape[1]:
        return False
    is_named_so = len(shape) > 2 and TRANSPOSED.search(tensor.layer_name) is not None
    return is_named_so or (tensor.family, len(shape)) in columns


def _families_in_columns(tensors: Sequence[NamedTensor], layers: Mapping[str, NamedLayer]) -> set[tuple[str, int]]:
    """Return the families and dimensions of layers for which some bias shows outputs in dim 1, and none in dim 0."""
    rows = set()
    columns = set()
    for tensor in tensors:
        kind = (tensor.family, len(tensor.shape))
        if len(tensor.shape) < 2 or not tensor.family:
            continue
        bias = layers[tensor.layer].bias(tensor.tensor)
        if _groups_of_transposed(tensor.shape, bias) is not None or _is_gpt2_attention(tensor):
            columns.add(kind)
        elif bias is not None and bias[0] == tensor.shape[0] != tensor.shape[1]:
            rows.add(kind)
    return columns - rows


def _is_gpt2_attention(tensor: NamedTensor) -> bool:
    """Return whether this is the (n, 3n) of queries, keys and values, which a file may contain without its bias."""
    is_matrix = len(tensor.shape) == 2
    return is_matrix and tensor.layer_name == GPT2[0] and tensor.shape[1] == 3 * tensor.shape[0]
