"""Folders of torch.distributed.checkpoint and of the Hugging Face Trainer, read without executing anything."""

import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from gyroscope.checkpoint.files.reading import StoredTensor, check_zip, is_safetensors, read_file, refusing, stored

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
METADATA = ".metadata"
# Classes in an index: records, sizes and dtypes. No other object is created.
ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "device"},
    "torch.torch_version": {"TorchVersion"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
}


def read_folder(folder: Path) -> tuple[Any, bool]:
    """Read the tree of dictionaries in a folder, and return whether its weights are in the model's order."""
    return _read_distributed(folder) if (folder / METADATA).is_file() else _read_trainer_folder(folder)


# The Trainer's: weights, optimizer.pt, scheduler.pt, trainer_state.json and config.json.


def _read_trainer_folder(path: Path) -> tuple[dict[str, Any], bool]:
    files = _weight_files(path)
    if not files:
        raise ValueError(
            "it is not a checkpoint: it has neither .metadata of torch.distributed.checkpoint nor model.safetensors or "
            "pytorch_model.bin of the Trainer"
        )
    tree: dict[str, Any] = {"model": {key: value for file in files for key, value in dict(read_file(file)).items()}}
    for key, name in (("optimizer", "optimizer.pt"), ("scheduler", "scheduler.pt")):
        if (path / name).is_file():
            tree[key] = read_file(path / name)
    if (path / "trainer_state.json").is_file():
        tree |= read_json(path / "trainer_state.json")
    # safetensors sorts names, and torch.save keeps the order of a state dict.
    return tree, not any(map(is_safetensors, files))


def _weight_files(path: Path) -> list[Path]:
    for name in WEIGHTS:
        if (path / name).is_file():
            return [path / name]
        # A large model is in several files, with an index of which tensor is where.
        index = path / f"{name}.index.json"
        if index.is_file():
            places = read_json(index).get("weight_map", {}).values()
            return [path / Path(str(file)).name for file in dict.fromkeys(places)]
    return []


def read_json(path: Path) -> dict[str, Any]:
    """Read the dictionary in a JSON file. Return an empty one for other values."""
    with refusing(str(path)):
        value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


# torch.distributed.checkpoint's: a pickled index, `.metadata`, and files. Each tensor, or the part of it that one
# process had, is a file of torch.save within such a file.


def _read_distributed(folder: Path) -> tuple[Any, bool]:
    with open(folder / METADATA, "rb") as file:
        index = _IndexUnpickler(file).load()
    parts: dict[str, list[tuple[Any, Any]]] = {}
    for place, info in index.storage_data.items():
        parts.setdefault(place.fqn, []).append((place, info))
    tree: dict[Any, Any] = {}
    paths = index.planner_data if isinstance(index.planner_data, Mapping) else {}
    for name, description in index.state_dict_metadata.items():
        if name not in parts:
            raise ValueError(f"it has no part of {name!r}: the folder is not complete")
        # Some planners store no paths. The name is then the key.
        *path, last = paths.get(name, (name,))
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[last] = _leaf(folder, name, description, parts[name])
    # One process saves in the order of the state dict. Each of several saves its share.
    files = {str(info.relative_path) for info in index.storage_data.values()}
    return _with_lists(tree), len({file.split("_")[2] for file in files if file.startswith("__")}) <= 1


@final
class _IndexUnpickler(pickle.Unpickler):
    """An unpickler that creates only the records of an index and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise ValueError(f"the index contains pickled code ({module}.{name}), which is not executed")


def _leaf(folder: Path, name: str, description: Any, parts: list[tuple[Any, Any]]) -> Any:
    if not hasattr(description, "size"):  # no tensor: a number, a list, a string
        return stored(_load_part(folder, parts[0][1]))
    shape = tuple(int(size) for size in description.size)
    dtype = description.properties.dtype
    return StoredTensor(shape, dtype, lambda: _assemble(folder, name, shape, dtype, parts))


def _assemble(folder: Path, name: str, shape: tuple[int, ...], dtype: Any, parts: list[tuple[Any, Any]]) -> Tensor:
    """Return the whole tensor from the parts of all processes."""
    if len(parts) == 1:
        return _checked(name, _load_part(folder, parts[0][1]), shape)
    whole = torch.empty(shape, dtype=dtype)
    filled = 0
    for place, info in parts:
        part = _load_part(folder, info)
        region = tuple(slice(start, start + size) for start, size in zip(place.offset, part.shape, strict=True))
        _checked(name, whole[region], tuple(part.shape))
        whole[region] = part
        filled += part.numel()
    if filled < whole.numel():
        raise ValueError(f"it has {filled:,} of {whole.numel():,} entries of {name!r}: parts are missing")
    return whole


def _checked(name: str, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
        raise ValueError(f"it is damaged: the bytes of {name!r} do not make its shape {shape}")
    return tensor


def _load_part(folder: Path, info: Any) -> Any:
    if info.relative_path != Path(info.relative_path).name:
        raise ValueError(f"it refers to a file outside the folder, {info.relative_path!r}, which is not read")
    if getattr(info, "transform_descriptors", None):
        raise ValueError(f"{info.relative_path!r} is compressed, which is not read: save the folder without extensions")
    path = folder / info.relative_path
    with refusing(str(path)), open(path, "rb") as file:
        file.seek(info.offset)
        part = io.BytesIO(file.read(info.length))
        check_zip(part)
        part.seek(0)
        return torch.load(part, map_location="cpu", weights_only=True)


def _with_lists(tree: Any, name: Any = None) -> Any:
    """Convert dictionaries whose keys count from 0 to lists, except the parameters of an optimizer's `state`."""
    if not isinstance(tree, dict):
        return tree
    values = {key: _with_lists(value, key) for key, value in tree.items()}
    is_list = name != "state" and len(values) > 0 and list(values) == list(range(len(values)))
    return list(values.values()) if is_list else values
