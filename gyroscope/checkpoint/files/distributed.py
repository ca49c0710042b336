"""Folders of torch.distributed.checkpoint, read without a process group and without executing anything.

A folder has a pickled index, `.metadata`, and files. Each tensor, or the part of it that one process had, is a file of
torch.save within such a file.
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from gyroscope.checkpoint.files.reading import StoredTensor, check_zip, stored

METADATA = ".metadata"
# Classes of an index: records, sizes and dtypes. No other object is made.
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


def read_distributed(folder: Path) -> tuple[Any, bool]:
    """Read the tree of dictionaries that was saved, and return whether its weights are in the model's order.

    Tensors load their parts on demand.
    """
    index = _index(folder)
    if not isinstance(index.storage_data, Mapping) or not isinstance(index.state_dict_metadata, Mapping):
        raise ValueError(f"{str(folder / METADATA)!r} names no files: it is not of torch.distributed.checkpoint")
    parts: dict[str, list[tuple[Any, Any]]] = {}
    for place, info in index.storage_data.items():
        parts.setdefault(place.fqn, []).append((place, info))
    tree: dict[Any, Any] = {}
    paths = index.planner_data if isinstance(index.planner_data, Mapping) else {}
    for name, description in index.state_dict_metadata.items():
        if name not in parts:
            raise ValueError(f"{str(folder)!r} has no part of {name!r}: the folder is not complete")
        # Some planners keep no paths. The name is then the key.
        _put(tree, tuple(paths.get(name, (name,))), _leaf(folder, name, description, parts[name]))
    # One process saves in the order of the state dict. Each of several saves its share.
    files = {str(info.relative_path) for info in index.storage_data.values()}
    return _with_lists(tree), len({file.split("_")[2] for file in files if file.startswith("__")}) <= 1


def _index(folder: Path) -> Any:
    path = folder / METADATA
    try:
        with open(path, "rb") as file:
            return _IndexUnpickler(file).load()
    except ValueError:
        raise
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(f"{str(path)!r} is truncated or damaged ({type(error).__name__})") from None


@final
class _IndexUnpickler(pickle.Unpickler):
    """An unpickler that makes the records of an index and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise ValueError(f"the index holds pickled code ({module}.{name}), which is not executed")


def _leaf(folder: Path, name: str, description: Any, parts: list[tuple[Any, Any]]) -> Any:
    if not hasattr(description, "size"):  # no tensor: a number, a list, a string
        return stored(_load_part(folder, parts[0][1]))
    shape = tuple(int(size) for size in description.size)
    dtype = description.properties.dtype
    return StoredTensor(shape, dtype, lambda: _assemble(folder, name, shape, dtype, parts))


def _assemble(folder: Path, name: str, shape: tuple[int, ...], dtype: Any, parts: list[tuple[Any, Any]]) -> Tensor:
    """Return the whole tensor from the parts of all processes."""
    if len(parts) == 1:
        return _checked(folder, name, _load_part(folder, parts[0][1]), shape)
    whole = torch.empty(shape, dtype=dtype)
    filled = 0
    for place, info in parts:
        part = _load_part(folder, info)
        region = tuple(slice(start, start + size) for start, size in zip(place.offset, part.shape, strict=True))
        _checked(folder, name, whole[region], tuple(part.shape))
        whole[region] = part
        filled += part.numel()
    if filled < whole.numel():
        raise ValueError(f"{str(folder)!r} has {filled:,} of {whole.numel():,} entries of {name!r}: parts are missing")
    return whole


def _checked(folder: Path, name: str, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
        raise ValueError(f"{str(folder)!r} is damaged: the bytes of {name!r} do not make its shape {shape}")
    return tensor


def _load_part(folder: Path, info: Any) -> Any:
    if info.relative_path != Path(info.relative_path).name:
        raise ValueError(f"{str(folder)!r} names a file outside of itself, {info.relative_path!r}, which is not read")
    path = folder / info.relative_path
    if getattr(info, "transform_descriptors", None):
        raise ValueError(f"{str(path)!r} is compressed, which is not read: save the folder without extensions")
    try:
        with open(path, "rb") as file:
            window: Any = _Window(file, int(info.offset), int(info.length))
            check_zip(window, str(path))
            window.seek(0)
            return torch.load(window, map_location="cpu", weights_only=True)
    except ValueError:
        raise
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except Exception as error:  # as of any torch file
        raise ValueError(f"{str(path)!r} is truncated or damaged ({type(error).__name__})") from None


@final
class _Window(io.RawIOBase):
    """A part of a file as a file of its own, so that its tensor is read without a copy of the bytes."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        self.file = file
        self.start = start
        self.length = length
        self.place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.length}[whence]
        return self.place

    def readinto(self, buffer: Any) -> int:
        left = max(0, min(len(buffer), self.length - self.place))
        self.file.seek(self.start + self.place)
        count = self.file.readinto(memoryview(buffer)[:left])
        self.place += count
        return int(count)


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _with_lists(tree: Any) -> Any:
    """Convert dictionaries whose keys count from 0 to lists, except the parameters of an optimizer's `state`."""
    if not isinstance(tree, dict):
        return tree
    values = {key: _with_lists(value) if key != "state" else _inner(value) for key, value in tree.items()}
    is_list = list(values) == list(range(len(values))) and len(values) > 0
    return list(values.values()) if is_list else values


def _inner(tree: Any) -> Any:
    return {key: _with_lists(value) for key, value in tree.items()} if isinstance(tree, dict) else tree
