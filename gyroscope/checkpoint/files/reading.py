"""Files to trees of dictionaries whose leaves are plain values and stored tensors, read on demand.

Nothing is executed: torch's files are unpickled with weights_only=True, and safetensors contain no code. Files are
mapped into memory, and the pages of each tensor are released after use, so a file may be larger than memory.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# madvise's number for releasing pages on Linux.
DONTNEED = 4

# Addresses at which a file is mapped into memory: first byte, and first byte after.
Ranges = Sequence[tuple[int, int]]


@final
@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in a file or in memory. `load` returns its values, and `release` releases its pages.

    `identity` is equal for two names of one tensor, such as tied weights, and None if unknown.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    release: Callable[[], None] = lambda: None
    identity: tuple[int, int] | None = None

    @classmethod
    def of(cls, tensor: Tensor, mapped: Ranges = ()) -> "StoredTensor":
        """Wrap a tensor that is in memory already, or in the `mapped` memory of a file."""
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        stored = cls(tuple(whole.shape), whole.dtype, lambda: _with_values(whole))
        if not _has_values(whole) or not whole.numel():
            return stored
        storage = whole.untyped_storage()
        identity = (storage.data_ptr(), int(whole.storage_offset()))
        return replace(stored, release=lambda: _give_back(storage, mapped), identity=identity)


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
        return stored(tree, _mapped_ranges(path))


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


def stored(tree: Any, mapped: Ranges = ()) -> Any:
    """Return the tree with each tensor replaced by a stored tensor. Objects that occur twice are converted once."""
    made: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if id(value) not in made:
            made[id(value)] = _converted(value, convert, mapped)
        return made[id(value)]

    return convert(tree)


def _converted(value: Any, convert: Callable[[Any], Any], mapped: Ranges) -> Any:
    if isinstance(value, Tensor):
        return StoredTensor.of(value, mapped)
    if isinstance(value, argparse.Namespace):
        return convert(vars(value))
    if isinstance(value, OrderedDict):  # as module.state_dict() returns it
        return OrderedDict((key, convert(item)) for key, item in value.items())
    if isinstance(value, Mapping):
        return {key: convert(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(convert(item) for item in value)
    return value


def _mapped_ranges(path: Path) -> Ranges:
    """Return where the file is mapped into this process. Empty on systems other than Linux."""
    if sys.platform != "linux":
        return ()
    name = os.path.realpath(path)
    ranges = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        addresses, _, _, _, _, *mapped = line.split(maxsplit=5)
        if mapped == [name]:
            first, last = addresses.split("-")
            ranges.append((int(first, 16), int(last, 16)))
    return ranges


def _give_back(storage: torch.UntypedStorage, mapped: Ranges) -> None:
    """Release the pages of a storage if the file is mapped there. A later read reads the file again."""
    start = storage.data_ptr()
    stop = start + storage.nbytes()
    # The unpickler can also create tensors in ordinary memory, whose values would be lost.
    if start == stop or not any(first <= start and stop <= last for first, last in mapped):
        return
    page_start = start // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(page_start), ctypes.c_size_t(stop - page_start), DONTNEED)
