"""Image tasks: standardised pixels, batches, and the standard augmentation on whole batches."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from gyroscope_lab.tasks import digits
from gyroscope_lab.tasks.files import DataError, data_root, find, read_cifar, read_idx

# Pixels by which an image is padded before a crop of its own size (He et al. 2016).
PADDING = 4


@dataclass(frozen=True)
class Images:
    """Images (n, channels, height, width), standardised by the training set's mean and deviation, and labels (n,)."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Images":
        """Move the images to a device."""
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class ImageTask:
    """Images for training and images for testing."""

    name: str
    train: Images
    test: Images
    classes: int
    flips: bool
    """Whether a mirrored image keeps its class. Digits do not."""
    shrunk: int = 1

    @property
    def padding(self) -> int:
        """Pixels by which these images are padded. A crop moves a shrunk image as far as a full-size one."""
        return PADDING // self.shrunk

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width


def augmented(batch: Images, flips: bool, generator: torch.Generator, padding: int = PADDING) -> Images:
    """Pad each image and crop it at random, and mirror half of them. The whole batch is processed at once."""
    count, _, height, width = batch.pixels.shape
    padded = F.pad(batch.pixels, (padding,) * 4)
    top = torch.randint(2 * padding + 1, (count, 1), generator=generator)
    left = torch.randint(2 * padding + 1, (count, 1), generator=generator)
    rows = top + torch.arange(height)  # (count, height)
    columns = left + torch.arange(width)  # (count, width)
    if flips:
        mirrored = torch.rand((count, 1), generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    place = torch.arange(count)[:, None, None]
    cropped = padded.movedim(1, 3)[place, rows[:, :, None], columns[:, None, :]]  # (count, height, width, channels)
    return Images(cropped.movedim(3, 1).contiguous(), batch.labels)


def load_images(name: str, root: Path | None = None, shrink: int = 1) -> ImageTask:
    """Load an image task by name. `shrink` averages squares of pixels: 2 halves the sides and quarters the cost."""
    if name not in IMAGE_TASKS:
        others = "stdlib, translation, text:<file> or translation:<folder>"
        raise ValueError(f"unknown task {name!r}: choose one of {', '.join(IMAGE_TASKS)}, {others}")
    train, test, classes, flips = IMAGE_TASKS[name](data_root(root))
    scaled_train = _shrunk(_scaled(train[0]), shrink)
    scaled_test = _shrunk(_scaled(test[0]), shrink)
    mean = scaled_train.mean((0, 2, 3), keepdim=True)
    deviation = scaled_train.std((0, 2, 3), keepdim=True)
    return ImageTask(
        name,
        Images((scaled_train - mean) / deviation, _labels(train[1])),
        Images((scaled_test - mean) / deviation, _labels(test[1])),
        classes,
        flips,
        shrink,
    )


Pair = tuple[np.ndarray, np.ndarray]
Loaded = tuple[Pair, Pair, int, bool]


def _scaled(pixels: np.ndarray) -> Tensor:
    """Convert bytes (n, channels, h, w) to numbers from 0 to 1."""
    return torch.from_numpy(pixels.astype(np.float32) / 255)


def _labels(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _shrunk(pixels: Tensor, shrink: int) -> Tensor:
    if shrink == 1:
        return pixels
    if shrink < 1 or pixels.shape[-1] % shrink or pixels.shape[-2] % shrink:
        size = "×".join(map(str, pixels.shape[-2:]))
        raise ValueError(f"shrink={shrink!r} does not divide images of {size} pixels: choose a divisor")
    return F.avg_pool2d(pixels, shrink)


def _load_idx(root: Path, name: str, remedy: str, flips: bool) -> Loaded:
    pairs = []
    for part in ("train", "t10k"):
        images_file = f"{part}-images-idx3-ubyte"
        labels_file = f"{part}-labels-idx1-ubyte"
        images = read_idx(find(root, (name,), images_file, remedy), 3, f"{name}/{images_file}")
        labels = read_idx(find(root, (name,), labels_file, remedy), 1, f"{name}/{labels_file}")
        if len(images) != len(labels):
            raise DataError(
                f"{name}: {len(images):,} images and {len(labels):,} labels of {part}: fetch both files again"
            )
        pairs.append((images[:, None], labels))
    return pairs[0], pairs[1], 10, flips


def _load_cifar(root: Path, folder: str, train: tuple[str, ...], test: str, labels: int, classes: int) -> Loaded:
    remedy = f"unpack the binary version of {folder.split('-b')[0].upper()} (cs.toronto.edu/~kriz/cifar.html) there"
    present = [name for name in train if any((root / place / name).is_file() for place in (folder, "."))]
    # With some of the training files the task is smaller. Without any it is an error.
    parts = [read_cifar(find(root, (folder,), name, remedy), labels, classes) for name in present or train[:1]]
    pixels = np.concatenate([images for images, _ in parts])
    classes_of = np.concatenate([found for _, found in parts])
    return (pixels, classes_of), read_cifar(find(root, (folder,), test, remedy), labels, classes), classes, True


def _digits(root: Path) -> Loaded:
    train, test = digits.load()
    return _as_bytes(train), _as_bytes(test), 10, False


def _as_bytes(part: digits.Digits) -> Pair:
    return (part.images * 255).round().byte().numpy(), part.labels.numpy()


CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
# By name: a function from the folder of data sets to (training pair, test pair, classes, whether to flip).
IMAGE_TASKS: dict[str, Callable[[Path], Loaded]] = {
    "digits": _digits,
    "fashion-mnist": lambda root: _load_idx(
        root,
        "fashion-mnist",
        "install Debian's dataset-fashion-mnist (/usr/share/datasets) or fetch the four files",
        True,
    ),
    "mnist": lambda root: _load_idx(root, "mnist", "fetch the four files of MNIST", False),
    "cifar10": lambda root: _load_cifar(root, "cifar-10-batches-bin", CIFAR10_TRAIN, "test_batch.bin", 1, 10),
    "cifar100": lambda root: _load_cifar(root, "cifar-100-binary", ("train.bin",), "test.bin", 2, 100),
}
