"""A model's parameters: their names, and how each type of layer splits its tensors into weight vectors."""

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

# By name, so that classes of other libraries, such as LlamaRMSNorm, are recognised without being imported.
NORM = re.compile(r"Norm(\dd)?$")
EMBEDDING = re.compile(r"Embed(ding)?s?(Bag)?$")
# Names of tables in models: wte and wpe of GPT-2, tok_embeddings of Llama, mask_tokens of SAM.
EMBEDDING_NAME = re.compile(r"(?<!un)emb(s|d|ed|eds|edding|eddings|edder)?(_|$)|(^|_)(wte|wpe|tokens?$)|^shared$")
# Linear maps that are named after what they read or write: embed_out, embeddings_project, patch_embedding.
LINEAR_MAP_NAME = re.compile(r"(^|_)(proj\w*|linear|dense|fc|mapping|mlp|head|out|conv\w*|patch(es)?)(_|$)")
# `bias` as a word of its own: an "unbiased_proj" is a weight.
BIAS = re.compile(r"(^|_)bias(es)?\d*(_|$)")
SHORT_BIAS = re.compile(r"(^|_)b\d*(_|$)")
# Submodules that torch.compile, FSDP and activation checkpointing put between a layer and its parent.
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# They read their weight as an attribute at every call. An LSTM does not, because its kernel keeps a list of weights.
LINEAR_MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.MultiheadAttention, nn.Bilinear)


class Place(NamedTuple):
    """One place of a parameter in a model: its name, the layer, and the name of the layer's tensor."""

    name: str
    module: nn.Module
    tensor: str


@dataclass(eq=False)
class ModelParameter:
    """One parameter of a model, with every place that uses it. A tied parameter has several."""

    parameter: nn.Parameter
    places: list[Place] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name that `model.named_parameters()` gives it, cleaned."""
        return self.places[0].name

    @property
    def split(self) -> Split:
        """The split by the layer's type. A tied weight has one only if all its places agree."""
        splits = {layer_split(place.module, place.tensor, self.parameter) for place in self.places}
        return splits.pop() if len(splits) == 1 else NO_VECTORS

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias in some place."""
        return any(_is_bias_of(place.module, place.tensor, self.parameter) for place in self.places)

    @property
    def is_gain(self) -> bool:
        """Whether it is a learned size of a weight: a gain of `gyroscope.nn.add_gain`, or that of weight_norm."""
        # By name, because `nn` is built on this module.
        return any(
            type(place.module).__name__ == "Gain" or _is_part_of_another_tensor(*place[1:], self.parameter)
            for place in self.places
        )

    @property
    def is_embedding(self) -> bool:
        """Whether it is the table of an embedding in some place, with a row per token."""
        is_table = self.parameter.dim() == 2 and ROWS.rotates(self.parameter.shape) and not self.is_bias
        return is_table and any(_is_in_embedding(place.module, place.tensor) for place in self.places)

    @property
    def origin(self) -> str:
        """A description in words: `weight of Linear, tied to head.weight`."""
        first, *others = self.places
        origin = f"{first.tensor} of {type(first.module).__name__.removeprefix('Parametrized')}"
        return f"{origin}, tied to {', '.join(place.name for place in others)}" if others else origin


def clean_name(name: str) -> str:
    """Remove the prefixes that torch.compile, DDP, FSDP and activation checkpointing add to a name.

    >>> clean_name("_orig_mod.module.blocks.0._orig_mod.fc.weight")
    'blocks.0.fc.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    # DDP and DataParallel wrap the whole model, so only a leading "module" is theirs.
    return ".".join(parts[1:] if parts[0] == "module" and len(parts) > 1 else parts)


def model_parameters(model: nn.Module) -> list[ModelParameter]:
    """Return every parameter of the model, in the model's order, with all its places.

    >>> tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    >>> tied[1].weight = tied[0].weight
    >>> [known.origin for known in model_parameters(tied)]
    ['weight of Linear, tied to 1.weight']
    """
    known: dict[nn.Parameter, ModelParameter] = {}
    # With duplicates, because a tied parameter or a layer used twice must be known by all its names.
    modules = dict(model.named_modules(remove_duplicate=False))
    raw = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    # A model with its own submodule called "module" may have names that differ only in that prefix.
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
    """Raise ValueError for parameters that FSDP1 has flattened, because their weight vectors are lost."""
    # By the attributes that FSDP1 sets, with and without use_orig_params, because its classes take long to import.
    if any(getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False) for p in parameters):
        raise ValueError(
            "FullyShardedDataParallel (FSDP1) has made these parameters flat, so that their weight vectors are lost: "
            "shard the model by FSDP2 instead, torch.distributed.fsdp.fully_shard(model)"
        )


def layer_split(module: nn.Module, tensor: str, parameter: Tensor) -> Split:
    """Return how a layer's tensor splits into the weight vectors of its neurons, `none` if it is not a weight.

    Tensors of two or more dimensions split along dim 0, also in layers of unknown type. The exceptions:

    - Norm layers, embeddings and biases have no vectors that rotate. Neither does one value per vector, a gain.
    - ConvTranspose and Hugging Face's Conv1D keep outputs in dim 1.
    - If a parametrization has several tensors, only one of the weight's own shape is a weight.
    - In a layer of unknown type three dimensions are experts [experts, outputs, inputs], unless it is a convolution.
      A leading dimension of 1 only broadcasts, as in a ViT's class token.

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
    # A Linear(n, 1) has such a weight as well, but its leading dimension is known to count neurons.
    if parameter.shape[:1] == (1,):
        return NO_VECTORS
    if parameter.dim() == 3 and not any("conv" in name.lower() for name in names):
        return experts_split(_has_outputs_last(module, tensor, parameter))
    return ROWS


def is_embedding_name(name: str) -> bool:
    """Return whether this is the name of an embedding.

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
    """Return whether a tensor is a bias by its name and the shapes `beside` it in the same layer.

    The name has `bias` as a word of its own: `bias_k`, `down_proj_bias`. A short name, such as `b1` or `b_up`, is the
    bias [experts, outputs] of experts only if a weight of these experts and outputs is beside it.

    >>> is_bias("down_proj_bias", (4, 8), []), is_bias("b_proj", (4, 8), [(4, 8)])
    (True, False)
    """
    if BIAS.search(tensor):
        return True
    if not SHORT_BIAS.search(tensor) or len(shape) < 2:
        return False
    # The name alone is not enough, because `b_proj` may be a matrix. Nor is the shape, because a router is [experts,
    # inputs].
    experts, *_, outputs = shape
    return any(len(weight) == len(shape) + 1 and weight[0] == experts and outputs in weight[1:] for weight in beside)


def experts_split(outputs_last: bool) -> Split:
    """Return the split of [experts, outputs, inputs], or of [experts, inputs, outputs]."""
    # No view of the memory has the columns of each expert as rows. If the columns are scale-invariant, so is the whole
    # expert.
    return ROWS if outputs_last else EXPERTS


def transposed_split(inputs: int, groups: int) -> Split:
    """Return the split of a tensor (inputs, outputs / groups, …)."""
    if groups == 1:
        return COLUMNS
    # No split has a group's share of dim 0 for each index of dim 1. All neurons of a group are then one vector.
    return Split("group", 0, inputs // groups) if inputs > groups else ROWS


def _is_bias_of(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    return is_bias(tensor, parameter.shape, [each.shape for each in module.parameters(recurse=False)])


def _has_outputs_last(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    """Return whether the bias (as in GPT-OSS) or Hugging Face's flag shows [experts, inputs, outputs]."""
    bias = getattr(module, f"{tensor}_bias", None)
    by_bias = isinstance(bias, Tensor) and bias.shape[-1] == parameter.shape[2] != parameter.shape[1]
    return by_bias or getattr(module, "is_transposed", False) is True


def _is_part_of_another_tensor(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    """Return whether a parametrization computes the layer's tensor from this one and others, such as a gain."""
    chain = parametrizations(module, tensor)
    if chain is None or chain.is_tensor:
        return False
    # Only computing the tensor shows its shape, because a parametrization may do anything.
    with torch.no_grad():
        return bool(getattr(module, tensor).shape != parameter.shape)


def parametrizations(module: nn.Module, tensor: str) -> ParametrizationList | None:
    """Return the parametrizations of a layer's tensor, or None."""
    return cast(Any, module).parametrizations[tensor] if is_parametrized(module, tensor) else None


def linear_maps(model: nn.Module) -> Iterator[tuple[Place, Split]]:
    """Yield the place and the split of each weight of a Linear, convolution, attention or Conv1D layer.

    These layers read the weight as an attribute at every call, so that a parametrization takes effect.
    """
    # By layer and tensor, because a model may contain a module twice.
    weights: dict[tuple[nn.Module, str], tuple[Place, Split]] = {}
    for known in model_parameters(model):
        for place in known.places:
            split = layer_split(place.module, place.tensor, known.parameter)
            if split != NO_VECTORS and _is_linear_map(place.module):
                weights.setdefault((place.module, place.tensor), (place, split))
    yield from weights.values()


def _is_linear_map(module: nn.Module) -> bool:
    return isinstance(module, LINEAR_MAPS) or "Conv1D" in _class_names(module)


def _class_names(module: nn.Module) -> list[str]:
    return [cls.__name__ for cls in type(module).__mro__]
