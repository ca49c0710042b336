"""What a model's parameters are called, and where each kind of layer keeps the weight vectors of its neurons."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from gyroscope.geometry import Split

NEVER = Split("none")
ROWS = Split("neuron", 0)
COLUMNS = Split("neuron", 1)

# By name, so that other libraries' LlamaRMSNorm, LayerNorm2d or ViTEmbeddings count without being imported.
NORM_OR_EMBEDDING = re.compile(r"Norm(\dd)?$|Embed(ding)?s?(Bag)?$")
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Entry:
    """One parameter of a model: every place that holds it, by name, module and the name of the tensor there."""

    parameter: nn.Parameter
    places: list[tuple[str, nn.Module, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name that `model.named_parameters()` gives it, cleaned."""
        return self.places[0][0]

    @property
    def split(self) -> Split:
        """How the tensor splits into weight vectors by default; a tied weight only where all its places agree."""
        splits = {layer_split(module, tensor, self.parameter) for _, module, tensor in self.places}
        return splits.pop() if len(splits) == 1 else NEVER


def clean_name(name: str) -> str:
    """The name without the prefixes that torch.compile, DDP, FSDP and activation checkpointing add.

    >>> clean_name("_orig_mod.module.blocks.0._orig_mod.fc.weight")
    'blocks.0.fc.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    return ".".join(parts[1:] if parts[0] == "module" and len(parts) > 1 else parts)


def parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """The cleaned name of every parameter; tied ones once, by their first name.

    >>> tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    >>> tied[1].weight = tied[0].weight
    >>> list(parameter_names(tied).values())
    ['0.weight']
    """
    return {entry.parameter: entry.name for entry in entries(model)}


def entries(model: nn.Module) -> list[Entry]:
    """Every parameter of the model, in the model's order, with all its places."""
    found: dict[nn.Parameter, Entry] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    raw = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    # A model with a submodule of its own called "module" may have names that only that prefix tells apart.
    clean = clean_name if len({clean_name(name) for name in raw}) == len(raw) else str
    for path, module in modules.items():
        for name, parameter in module.named_parameters(path, recurse=False, remove_duplicate=False):
            owner, tensor = module, name.rpartition(".")[2]
            if isinstance(module, ParametrizationList):  # <owner>.parametrizations.<tensor>.original
                owner_path, _, tensor = path.rpartition("parametrizations.")
                owner = modules[owner_path.removesuffix(".")]
            entry = found.setdefault(parameter, Entry(parameter))
            entry.places.append((clean(name), owner, tensor))
    return list(found.values())


def layer_split(module: nn.Module, tensor: str, parameter: Tensor) -> Split:
    """How a layer's tensor splits into the weight vectors of its neurons; `none` for what is not a weight.

    Tensors of two or more dimensions split along dim 0, in layers of unknown type too. The exceptions: norm layers,
    embeddings and attention's bias_k and bias_v are no weights; ConvTranspose and Hugging Face's Conv1D keep
    outputs in dim 1; of several tensors behind a parametrization only one of the weight's own shape is a weight; in a
    layer of unknown type a leading dimension of 1 is there to broadcast, as a ViT's class token and positions have it.
    One value per vector is a gain, with no direction to turn.

    >>> layer_split(nn.ConvTranspose2d(8, 4, 3), "weight", torch.ones(8, 4, 3, 3)).axis
    1
    """
    split = _split_by_type(module, tensor, parameter)
    return split if split.rotates(parameter.shape) else NEVER


def _split_by_type(module: nn.Module, tensor: str, parameter: Tensor) -> Split:
    names = [cls.__name__ for cls in type(module).__mro__]
    if any(NORM_OR_EMBEDDING.search(name) for name in names):
        return NEVER
    if isinstance(module, nn.MultiheadAttention) and not tensor.endswith("proj_weight"):
        return NEVER
    if _is_part_of_another_tensor(module, tensor, parameter):
        return NEVER
    if not _reads_attribute(module) and parameter.shape[:1] == (1,):
        return NEVER
    if isinstance(module, TRANSPOSED):
        return _transposed(module)
    return COLUMNS if "Conv1D" in names and hasattr(module, "nf") else ROWS


def _transposed(module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> Split:
    """Weight (in, out / groups, …): a neuron is an index of dim 1 and, with groups, one group's share of dim 0.

    No split says the latter when both are above 1: all neurons of a group are then one vector, which is as invariant
    to its scale as they are.
    """
    inputs = module.in_channels // module.groups
    if module.groups == 1:
        return COLUMNS
    return Split("group", 0, inputs) if inputs > 1 else ROWS


def _is_part_of_another_tensor(module: nn.Module, tensor: str, parameter: Tensor) -> bool:
    """Whether a parametrization makes the layer's tensor of this one and others, as weight_norm does of its gain."""
    chain = parametrizations(module, tensor)
    if chain is None or chain.is_tensor:
        return False
    with torch.no_grad():
        return bool(getattr(module, tensor).shape != parameter.shape)


def parametrizations(module: nn.Module, tensor: str) -> ParametrizationList | None:
    """What acts on a layer's tensor; None on a plain one."""
    return cast(Any, module).parametrizations[tensor] if is_parametrized(module, tensor) else None


def weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Split]]:
    """Each weight of a Linear, convolution, attention or Conv1D layer: its name, layer, tensor and split.

    Only layers that read the weight as an attribute at every call, so that a parametrization takes effect: not an LSTM,
    whose kernel keeps its own list of weights.
    """
    seen: set[tuple[nn.Module, str]] = set()
    for entry in entries(model):
        for name, module, tensor in entry.places:
            split = layer_split(module, tensor, entry.parameter)
            if split != NEVER and _reads_attribute(module) and (module, tensor) not in seen:
                seen.add((module, tensor))  # a module may stand in the model twice
                yield name, module, tensor, split


def _reads_attribute(module: nn.Module) -> bool:
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.MultiheadAttention, nn.Bilinear)
    return isinstance(module, layers) or "Conv1D" in [cls.__name__ for cls in type(module).__mro__]
