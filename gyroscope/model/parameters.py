"""What a model's parameters are called, and where each kind of layer keeps the weight vectors of its neurons."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from gyroscope.geometry import Split

NO_VECTORS = Split("none")
ROWS = Split("neuron", 0)
COLUMNS = Split("neuron", 1)
# One vector per expert and neuron of [experts, outputs, inputs].
EXPERTS = Split("neuron", (0, 1))

# By name, so that other libraries' LlamaRMSNorm, LayerNorm2d or ViTEmbeddings count without being imported.
NORM = re.compile(r"Norm(\dd)?$")
EMBEDDING = re.compile(r"Embed(ding)?s?(Bag)?$")
# Tables by the names that models give them: wte and wpe of GPT-2, tok_embeddings of Llama, mask_tokens of SAM.
EMBEDDING_NAME = re.compile(r"(?<!un)emb(s|d|ed|eds|edding|eddings|edder)?(_|$)|(^|_)(wte|wpe|tokens?$)|^shared$")
# Linear maps that are named after what they read or write: embed_out, embeddings_project, patch_embedding.
LINEAR_MAP_NAME = re.compile(r"(^|_)(proj\w*|linear|dense|fc|mapping|mlp|head|out|conv\w*|patch(es)?)(_|$)")
# `bias` as a word of its own: an "unbiased_proj" is a weight.
BIAS = re.compile(r"(^|_)bias(es)?\d*(_|$)")
SHORT_BIAS = re.compile(r"(^|_)b\d*(_|$)")
# Submodules that torch.compile, FSDP and activation checkpointing put between a layer and its parent.
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# They read their weight as an attribute at every call. An LSTM does not: its kernel keeps a list of weights.
LINEAR_MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.MultiheadAttention, nn.Bilinear)


class Place(NamedTuple):
    """Where a model holds a parameter: under which name, in which layer, and as which tensor of the layer."""

    name: str
    module: nn.Module
    tensor: str


@dataclass(eq=False)
class ModelParameter:
    """One parameter of a model, with every place that holds it: a tied parameter has several."""

    parameter: nn.Parameter
    places: list[Place] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name that `model.named_parameters()` gives it, cleaned."""
        return self.places[0].name

    @property
    def split(self) -> Split:
        """How the layer's type splits the tensor into weight vectors; a tied weight only where all places agree."""
        splits = {layer_split(place.module, place.tensor, self.parameter) for place in self.places}
        return splits.pop() if len(splits) == 1 else NO_VECTORS

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias in some place."""
        return any(_is_bias_of(place.module, place.tensor, self.parameter) for place in self.places)

    @property
    def is_embedding(self) -> bool:
        """Whether it is the table of an embedding in some place, a row per token: an output layer may be tied to it."""
        is_table = self.parameter.dim() == 2 and ROWS.rotates(self.parameter.shape) and not self.is_bias
        return is_table and any(_is_in_embedding(place.module, place.tensor) for place in self.places)

    @property
    def origin(self) -> str:
        """What the parameter is, in words: `weight of Linear, tied to head.weight`."""
        first, *others = self.places
        origin = f"{first.tensor} of {type(first.module).__name__.removeprefix('Parametrized')}"
        return f"{origin}, tied to {', '.join(place.name for place in others)}" if others else origin


def clean_name(name: str) -> str:
    """The name without the prefixes that torch.compile, DDP, FSDP and activation checkpointing add.

    >>> clean_name("_orig_mod.module.blocks.0._orig_mod.fc.weight")
    'blocks.0.fc.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    # DDP and DataParallel wrap the whole model, so that "module" is theirs only at the front.
    return ".".join(parts[1:] if parts[0] == "module" and len(parts) > 1 else parts)


def parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """The cleaned name of every parameter; tied ones once, by their first name.

    >>> tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    >>> tied[1].weight = tied[0].weight
    >>> list(parameter_names(tied).values())
    ['0.weight']
    """
    return {known.parameter: known.name for known in model_parameters(model)}


def model_parameters(model: nn.Module) -> list[ModelParameter]:
    """Every parameter of the model, in the model's order, with all its places."""
    known: dict[nn.Parameter, ModelParameter] = {}
    # With duplicates: a tied parameter, or a layer used twice, must be known under all its names.
    modules = dict(model.named_modules(remove_duplicate=False))
    raw = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    # A model with a submodule of its own called "module" may have names that only that prefix tells apart.
    clean = clean_name if len({clean_name(name) for name in raw}) == len(raw) else str
    for path, module in modules.items():
        for name, parameter in module.named_parameters(path, recurse=False, remove_duplicate=False):
            place = Place(clean(name), module, name.rpartition(".")[2])
            if isinstance(module, ParametrizationList):  # <owner>.parametrizations.<tensor>.original
                owner_path, _, tensor = path.rpartition("parametrizations.")
                place = Place(clean(name), modules[owner_path.removesuffix(".")], tensor)
            known.setdefault(parameter, ModelParameter(parameter)).places.append(place)
    refuse_flat(known)
    return list(known.values())


def refuse_flat(parameters: Iterable[Tensor]) -> None:
    """Raise for what FSDP1 makes of parameters: pieces of a flat tensor, in which no weight vector can be found."""
    # By the marks that FSDP1 leaves, with and without use_orig_params: its classes take long to import.
    if any(getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False) for p in parameters):
        raise ValueError(
            "FullyShardedDataParallel (FSDP1) has made these parameters flat, so that their weight vectors are lost: "
            "shard the model by FSDP2 instead, torch.distributed.fsdp.fully_shard(model)"
        )


def layer_split(module: nn.Module, tensor: str, parameter: Tensor) -> Split:
    """How a layer's tensor splits into the weight vectors of its neurons; `none` for what is not a weight.

    Tensors of two or more dimensions split along dim 0, in layers of unknown type too. The exceptions:

    - norm layers, embeddings and biases (`is_bias`) are no weights, nor is a parameter of a layer of unknown type that
      has the name of an embedding;
    - ConvTranspose and Hugging Face's Conv1D keep outputs in dim 1;
    - of several tensors behind a parametrization only one of the weight's own shape is a weight;
    - three dimensions in a layer of unknown type that is no convolution are experts [experts, outputs, inputs], with
      one vector per expert and output;
    - in a layer of unknown type a leading dimension of 1 is there to broadcast, as in a ViT's class token;
    - one value per vector is a gain, with no direction to turn.

    >>> layer_split(nn.ConvTranspose2d(8, 4, 3), "weight", torch.ones(8, 4, 3, 3)).axis
    1
    """
    split = _split_by_type(module, tensor, parameter)
    return split if split.rotates(parameter.shape) else NO_VECTORS


def _split_by_type(module: nn.Module, tensor: str, parameter: Tensor) -> Split:
    names = _class_names(module)
    if any(NORM.search(name) for name in names) or _is_in_embedding(module, tensor):
        return NO_VECTORS
    if _is_bias_of(module, tensor, parameter) or _is_part_of_another_tensor(module, tensor, parameter):
        return NO_VECTORS
    if isinstance(module, TRANSPOSED):
        return transposed_split(module.in_channels, module.groups)
    if _is_linear_map(module):
        return COLUMNS if "Conv1D" in names and hasattr(module, "nf") else ROWS
    # A Linear(n, 1) has such a weight as well, but there the leading dimension is known to count neurons.
    if parameter.shape[:1] == (1,):
        return NO_VECTORS
    is_convolution = any("conv" in name.lower() for name in names)
    if parameter.dim() == 3 and not is_convolution:
        return experts_split(_has_outputs_last(module, tensor, parameter))
    return ROWS


def is_embedding_name(name: str) -> bool:
    """Return whether a layer or a parameter of its own is called an embedding.

    >>> [is_embedding_name(name) for name in ("tok_embeddings", "pos_emb", "wte", "patch_embed", "unembed")]
    [True, True, True, False, False]
    """
    return EMBEDDING_NAME.search(name) is not None and LINEAR_MAP_NAME.search(name) is None


def _is_in_embedding(module: nn.Module, tensor: str) -> bool:
    """Return whether a tensor belongs to an embedding by its layer's type, or by its name if the type is unknown."""
    if any(EMBEDDING.search(name) for name in _class_names(module)):
        return True
    return not _is_linear_map(module) and is_embedding_name(tensor.lower())


def is_bias(tensor: str, shape: Sequence[int], beside: Iterable[Sequence[int]]) -> bool:
    """Return whether a layer's tensor is a bias by its name. A bias of experts has the shape [experts, outputs].

    The name has `bias` as a word of its own: `bias`, `bias_k`, `down_proj_bias`. `b`, `b1`, `b_up` or `up_b` is a bias
    if one of the shapes `beside` it in the same layer has one dimension more, with as many experts and, in another
    dimension, as many outputs.

    >>> is_bias("down_proj_bias", (4, 8), []), is_bias("b_proj", (4, 8), [(4, 8)])
    (True, False)
    """
    if BIAS.search(tensor):
        return True
    if not SHORT_BIAS.search(tensor) or len(shape) < 2:
        return False
    # The name alone says too little: `b_proj` may be a matrix. Its shape alone too: a router is [experts, inputs].
    experts, *_, outputs = shape
    return any(len(weight) == len(shape) + 1 and weight[0] == experts and outputs in weight[1:] for weight in beside)


def experts_split(outputs_last: bool) -> Split:
    """Return the neurons of each expert of [experts, outputs, inputs], or each expert of [experts, inputs, outputs].

    Columns of every expert are no rows of any view of the memory. An expert as a whole is as invariant to its scale as
    they are.
    """
    return ROWS if outputs_last else EXPERTS


def transposed_split(inputs: int, groups: int) -> Split:
    """Return the split of (in, out / groups, …): an index of dim 1 and, with groups, one group's share of dim 0.

    No split expresses the latter if both are above 1: all neurons of a group are then one vector, which is as invariant
    to its scale as they are.
    """
    if groups == 1:
        return COLUMNS
    return Split("group", 0, inputs // groups) if inputs > groups else ROWS


def _is_bias_of(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    return is_bias(tensor, parameter.shape, [each.shape for each in module.parameters(recurse=False)])


def _has_outputs_last(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    """Return whether experts are [experts, inputs, outputs]: by the bias, as in GPT-OSS, or by Hugging Face's flag."""
    bias = getattr(module, f"{tensor}_bias", None)
    by_bias = isinstance(bias, Tensor) and bias.shape[-1] == parameter.shape[2] != parameter.shape[1]
    return by_bias or getattr(module, "is_transposed", False) is True


def _is_part_of_another_tensor(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    """Whether a parametrization makes the layer's tensor of this one and others, as weight_norm does of its gain."""
    chain = parametrizations(module, tensor)
    if chain is None or chain.is_tensor:
        return False
    # The shape of the tensor is known only by making it: a parametrization may do anything.
    with torch.no_grad():
        return bool(getattr(module, tensor).shape != parameter.shape)


def parametrizations(module: nn.Module, tensor: str) -> ParametrizationList | None:
    """What acts on a layer's tensor; None on a plain one."""
    return cast(Any, module).parametrizations[tensor] if is_parametrized(module, tensor) else None


def linear_maps(model: nn.Module) -> Iterator[tuple[Place, Split]]:
    """The place and the split of each weight of a Linear, convolution, attention or Conv1D layer.

    These layers read the weight as an attribute at every call, so that a parametrization takes effect.
    """
    seen: set[tuple[nn.Module, str]] = set()
    for known in model_parameters(model):
        for place in known.places:
            split = layer_split(place.module, place.tensor, known.parameter)
            layer = (place.module, place.tensor)
            # A module may stand in the model twice.
            if split != NO_VECTORS and _is_linear_map(place.module) and layer not in seen:
                seen.add(layer)
                yield place, split


def _is_linear_map(module: nn.Module) -> bool:
    return isinstance(module, LINEAR_MAPS) or "Conv1D" in _class_names(module)


def _class_names(module: nn.Module) -> list[str]:
    return [cls.__name__ for cls in type(module).__mro__]
