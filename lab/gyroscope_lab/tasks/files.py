"""Data files in their official formats: search paths and integrity checks. Nothing is unpickled."""

import gzip
import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Environment variable with the folder of data sets, used without --data-root.
ROOT_VARIABLE = "GYROSCOPE_DATA"

CIFAR_IMAGE = 3 * 32 * 32

# Hashes of the decompressed files, because archives of the same data are compressed in different ways.
SHA256 = {
    "fashion-mnist/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "fashion-mnist/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "fashion-mnist/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "fashion-mnist/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


class DataError(ValueError):
    """A data set that is missing or damaged. The message names the folders that were searched, or the file."""


def data_root(root: Path | None) -> Path:
    """Return the folder of data sets: the given one, else that of the environment, else ./data."""
    return root if root is not None else Path(os.environ.get(ROOT_VARIABLE, "data"))


def find(root: Path, folders: tuple[str, ...], name: str, remedy: str) -> Path:
    """Find a file in the root or in one of the folders below it, compressed or not."""
    tried = [root / folder / (name + suffix) for folder in (*folders, ".") for suffix in ("", ".gz")]
    for path in tried:
        if path.is_file():
            return path
    places = " or ".join(str(root / folder) for folder in (*folders, "."))
    raise DataError(
        f"no file {name!r} (or {name}.gz) in {places}: {remedy}, and set the folder by --data-root or {ROOT_VARIABLE}"
    )


def read(path: Path) -> bytes:
    """Read the bytes of a file, decompressed if its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is damaged ({error}): fetch it again") from None
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """Read a text file in UTF-8."""
    try:
        return read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is not UTF-8 ({error}): convert it first") from None


def read_idx(path: Path, dimensions: int, known: str = "") -> Bytes:
    """Read an IDX file of bytes (MNIST's format) as an array. `known` is its key in SHA256.

    Format: two zero bytes, 8 for unsigned bytes, the number of dimensions, each size as a big-endian 32-bit integer,
    and the entries (yann.lecun.com/exdb/mnist).
    """
    data = read(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{str(path)!r} is not an IDX file of {dimensions}-dimensional bytes: fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, offset=4))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise DataError(f"{str(path)!r} has {len(data):,} bytes, but its header says {expected:,}: fetch it again")
    if known in SHA256 and hashlib.sha256(data).hexdigest() != SHA256[known]:
        raise DataError(f"{str(path)!r} is not the published file (its SHA-256 differs): fetch it again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_cifar(path: Path, labels: int, classes: int) -> tuple[Bytes, Bytes]:
    """Read images (n, 3, 32, 32) and labels (n,) from a file of CIFAR's binary version, with any number of records.

    A record is `labels` bytes, of which the last is the class (CIFAR-100 has a coarse class before it), and
    3 × 32 × 32 bytes of pixels, channel by channel.
    """
    data = np.frombuffer(read(path), np.uint8)
    record = labels + CIFAR_IMAGE
    if data.size == 0 or data.size % record:
        raise DataError(
            f"{str(path)!r} has {data.size:,} bytes, not a multiple of a record's {record:,}: fetch it again"
        )
    records = data.reshape(-1, record)
    classes_found = records[:, labels - 1]
    if classes_found.max() >= classes:
        raise DataError(
            f"{str(path)!r} has a label {classes_found.max()}, but the last class is {classes - 1}: fetch it again"
        )
    return records[:, labels:].reshape(-1, 3, 32, 32), classes_found
