"""Files to trees of dictionaries whose leaves are plain values and stored tensors, read when asked for.

Nothing is executed: torch's files are unpickled with weights_only=True, safetensors are a header and bytes. Files are
mapped into memory, and pages that were read are given back tensor by tensor, so that a file may be larger than memory.
"""

import argparse
import ctypes
import json
import mmap
import pathlib
import re
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

# Settings that Lightning and others store beside the weights; none of them does anything when it is made.
HARMLESS: list[Any] = [argparse.Namespace, pathlib.PosixPath, pathlib.PurePosixPath]
# As safetensors names them.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# The largest header that the safetensors library itself accepts.
LARGEST_HEADER = 100_000_000
# madvise's number for "give these pages back" on Linux.
DONTNEED = 4


@final
@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in a file or in memory: shape and dtype now, values when `load` is called; `release` gives pages back.

    `identity` is equal for two names of one tensor, as tied weights are; None where that cannot be told.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    release: Callable[[], None] = lambda: None
    identity: tuple[int, int] | None = None

    @classmethod
    def of(cls, tensor: Tensor, *, mapped: bool = False) -> "StoredTensor":
        """A tensor that is there already, or `mapped` from a file."""
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        identity = (whole.untyped_storage().data_ptr(), int(whole.storage_offset()))
        return cls(
            tuple(whole.shape),
            whole.dtype,
            lambda: whole.detach(),
            (lambda: _give_back(whole)) if mapped else (lambda: None),
            identity if whole.numel() else None,
        )


def read_file(path: Path) -> Any:
    """The tree in a file of torch or safetensors; a ValueError says in a sentence why not."""
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return read_safetensors(path)
    return read_torch(path)


def read_torch(path: Path) -> Any:
    """What torch.save wrote, mapped into memory."""
    try:
        with torch.serialization.safe_globals(HARMLESS):
            try:
                return stored(torch.load(path, map_location="cpu", mmap=True, weights_only=True), mapped=True)
            except RuntimeError as error:
                # Before version 1.6 torch wrote no zip files; those cannot be mapped.
                if "mmap can only be used" not in str(error):
                    raise
                return stored(torch.load(path, map_location="cpu", weights_only=True), mapped=False)
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except Exception as error:  # a file of anything makes the unpickler raise anything
        raise ValueError(_why_not(path, error)) from None


def _why_not(path: Path, error: Exception) -> str:
    code = re.search(r"(?:GLOBAL|global) `?([\w.]+)", str(error))
    if code is not None and "nsupported" in str(error):
        return (
            f"{str(path)!r} holds pickled code ({code.group(1)}), which is not executed: save dictionaries of tensors "
            "and numbers alone, such as model.state_dict() and optimizer.state_dict()"
        )
    if "zip archive" in str(error) or "central directory" in str(error):
        return f"{str(path)!r} is truncated or damaged: copy it again, or take the checkpoint before it"
    return f"{str(path)!r} is no checkpoint that torch.save or safetensors wrote ({type(error).__name__})"


def stored(value: Any, *, mapped: bool = False) -> Any:
    """The same tree with stored tensors for tensors."""
    if isinstance(value, Tensor):
        return StoredTensor.of(value, mapped=mapped)
    if isinstance(value, argparse.Namespace):
        return stored(vars(value), mapped=mapped)
    if isinstance(value, Mapping):
        return {key: stored(item, mapped=mapped) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(stored(item, mapped=mapped) for item in value) if type(value) in (list, tuple) else value
    return value


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Tensors by name: eight bytes with the length of a JSON header, the header, and the tensors' bytes."""
    with open(path, "rb") as file:
        mapping = _map(path, file)
        header, data = _safetensors_header(path, mapping)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            tensors[name] = _safetensor(path, mapping, data, name, entry)
    return tensors


def _map(path: Path, file: Any) -> mmap.mmap:
    try:
        # Copy on write: torch warns of memory that may not be written to, and nobody writes.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):
        raise ValueError(f"{str(path)!r} is empty or cannot be mapped into memory") from None


def _safetensors_header(path: Path, mapping: mmap.mmap) -> tuple[dict[str, Any], int]:
    damaged = f"{str(path)!r} is truncated or damaged: its safetensors header does not fit the file"
    length = struct.unpack("<Q", mapping[:8])[0] if len(mapping) > 8 else 0
    if not 0 < length <= min(LARGEST_HEADER, len(mapping) - 8):
        raise ValueError(damaged)
    try:
        header = json.loads(mapping[8 : 8 + length])
    except (ValueError, RecursionError):  # no JSON, or brackets without end
        raise ValueError(damaged) from None
    if not isinstance(header, dict):
        raise ValueError(damaged)
    return header, 8 + length


def _safetensor(path: Path, mapping: mmap.mmap, data: int, name: str, entry: Any) -> StoredTensor:
    try:
        shape = tuple(int(size) for size in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
        kind = str(entry["dtype"])
    except (TypeError, KeyError, ValueError, OverflowError):
        raise ValueError(f"{str(path)!r} is damaged: the header has no shape and place for {name!r}") from None
    if kind not in DTYPES:
        raise ValueError(f"{str(path)!r} has {name!r} in {kind}, which is not read: known are {', '.join(DTYPES)}")
    dtype = DTYPES[kind]
    count = prod(shape)
    fits = 0 <= first <= last <= len(mapping) - data and last - first == count * dtype.itemsize
    if not fits or min(shape, default=0) < 0:
        raise ValueError(f"{str(path)!r} is truncated or damaged: the bytes of {name!r} do not make its shape {shape}")

    def load() -> Tensor:
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(mapping, dtype=dtype, count=count, offset=data + first).view(shape)

    return StoredTensor(shape, dtype, load, lambda: _give_back(load()), (id(mapping), first) if count else None)


def _give_back(tensor: Tensor) -> None:
    """Return the pages of a tensor that is mapped from a file; whoever reads it again reads the file again."""
    # Only ever of mapped files: memory of any other kind would be lost.
    if sys.platform != "linux" or not tensor.numel():
        return
    page = mmap.PAGESIZE
    storage = tensor.untyped_storage()
    start = storage.data_ptr() // page * page
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(start), ctypes.c_size_t(storage.data_ptr() + storage.nbytes() - start), DONTNEED
    )
