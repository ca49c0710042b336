"""Files to trees of dictionaries whose leaves are plain values and stored tensors, read on demand.

Nothing is executed: torch's files are unpickled with weights_only=True, and safetensors contain no code. Files are
mapped into memory, so a file may be larger than memory.
"""

import argparse
import json
import pathlib
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from safetensors import safe_open
from torch import Tensor

# Classes of settings that Lightning and others store. Creating these objects has no side effect.
HARMLESS: list[Any] = [argparse.Namespace, pathlib.PosixPath, pathlib.PurePosixPath]
# Most entries of a tensor that repeats its memory, as after `expand`. 10⁸ are read within a second.
MAX_REPEATED_ENTRIES = 10**8
NOT_OURS = "this file was not written by torch.save or safetensors"


@final
@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in a file or in memory. `load` returns its values.

    `memory_address` is equal for two names of one tensor, such as tied weights, and None if unknown.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    memory_address: tuple[int, int] | None = None  # of the storage, and offset in it

    @classmethod
    def of(cls, tensor: Tensor) -> "StoredTensor":
        """Wrap a tensor that is in memory already, or in a mapped file."""
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        stored = cls(tuple(whole.shape), whole.dtype, lambda: _with_values(whole))
        if not _has_values(whole) or not whole.numel():
            return stored
        return replace(stored, memory_address=(whole.untyped_storage().data_ptr(), int(whole.storage_offset())))


def _has_values(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type != "meta"


def _with_values(tensor: Tensor) -> Tensor:
    """Return the tensor for reading. Raise ValueError if it has no values, or repeats a few values too often."""
    if not _has_values(tensor):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} in the file is sparse or has no values")
    repeated = tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()
    if repeated and tensor.numel() > MAX_REPEATED_ENTRIES:
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} repeats {tensor.untyped_storage().nbytes():,} bytes of the file: "
            "save tensor.contiguous()"
        )
    return tensor.detach()


class CheckpointError(ValueError):
    """A checkpoint that cannot be examined. The message names the file and the reason."""


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Convert any exception into one that names the file, because damaged files raise anything."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {name!r}: {error.strerror or error}") from error
    except Exception as error:
        # These are the library's own errors. Errors of decoding are ValueErrors too, but give no remedy.
        if isinstance(error, ValueError) and not isinstance(error, UnicodeError | json.JSONDecodeError):
            raise CheckpointError(f"{name!r}: {error}") from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(
            f"{name!r} is truncated or damaged, or is not a checkpoint of torch.save, safetensors or "
            f"torch.distributed.checkpoint ({reason})"
        ) from error


def read_file(path: Path) -> Any:
    """Read the tree in a file of torch or safetensors, mapped into memory. Raise ValueError if that is impossible."""
    with refusing(str(path)):
        tree = _read_safetensors(path) if is_safetensors(path) else _read_torch(path)
        return stored(tree)


def is_safetensors(path: Path) -> bool:
    """Return whether a file is one of safetensors, by its name or by the brace that opens its header."""
    with refusing(str(path)), open(path, "rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dictionary


def _read_torch(path: Path) -> Any:
    check_zip(path)
    try:
        with torch.serialization.safe_globals(HARMLESS):
            # torch cannot map files that it wrote before version 1.6, because they are not zip files.
            return torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes the unpickler raise anything
        raise ValueError(_why_not(str(error)) or NOT_OURS) from None


def check_zip(file: Any) -> None:
    """Raise ValueError if parts of a zip file are compressed, because they may unpack to any size."""
    # torch has a better error for a damaged archive.
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError(f"{NOT_OURS}: its parts are compressed")


def _why_not(error: str) -> str:
    code = re.search(r"(?:GLOBAL|global) `?([\w.]+)", error)
    if code is not None and "nsupported" in error:
        return (
            f"it contains pickled code ({code.group(1)}), which is not executed: save only dictionaries of tensors and "
            "numbers, such as model.state_dict() and optimizer.state_dict()"
        )
    is_cut = "zip archive" in error or "central directory" in error
    return "it is truncated or damaged: copy it again, or take the checkpoint before it" if is_cut else ""


def stored(tree: Any) -> Any:
    """Return the tree with each tensor replaced by a stored tensor. Objects that occur twice are converted once."""
    made: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if id(value) not in made:
            made[id(value)] = _converted(value, convert)
        return made[id(value)]

    return convert(tree)


def _converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, Tensor):
        return StoredTensor.of(value)
    if isinstance(value, argparse.Namespace):
        return convert(vars(value))
    if isinstance(value, OrderedDict):  # as module.state_dict() returns it
        return OrderedDict((key, convert(item)) for key, item in value.items())
    if isinstance(value, Mapping):
        return {key: convert(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(convert(item) for item in value)
    return value
