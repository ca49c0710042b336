"""The networks of the trials, and their settings, which were tuned on other seeds than those judged."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gyroscope.theory import AdamW
from gyroscope_lab.networks.gpt import GPT, GPTShape
from gyroscope_lab.networks.mlp import MLP
from gyroscope_lab.networks.registry import image_network
from gyroscope_lab.tasks import digits
from gyroscope_lab.tasks.images import Images, ImageTask, augmented, load_images
from gyroscope_lab.tasks.text import Corpus, load_text

CONTEXT = 32
# Held-out pieces of the text.
PIECES = 1000
# Deviation of the noise on digits, which keeps gradients noisy to the end.
NOISE = 0.5
# Width at which a GPT has the initial norms of GPT-2. Other widths have the same norms.
INIT_WIDTH = 64


@dataclass(frozen=True)
class Tuned:
    """A network, the size of its run, and AdamW's best settings for it."""

    network: str
    width: int
    batch: int
    steps: int
    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.95)

    @property
    def rule(self) -> AdamW:
        """The settings as a rule of the theory."""
        return AdamW(self.lr, self.weight_decay, self.betas)


# AdamW's settings are the best of a grid on seeds that no trial is judged by (records transfer/tuning_*).
TUNED = {
    "gpt": Tuned("gpt", width=32, batch=16, steps=600, lr=1e-2, weight_decay=0.3),
    "mlp": Tuned("mlp", width=64, batch=32, steps=1000, lr=3e-3, weight_decay=0.1),
    "cnn": Tuned("cnn", width=16, batch=32, steps=600, lr=1e-2, weight_decay=0.1),
    "fashion": Tuned("fashion", width=64, batch=32, steps=1000, lr=3e-3, weight_decay=0.1),
}


class Problem(ABC):
    """A model, its loss on a random batch, and its loss on data held out."""

    model: nn.Module

    @abstractmethod
    def loss(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the mean loss of a random batch."""

    @abstractmethod
    def validation_loss(self) -> float:
        """Return the mean loss on data held out."""


class Characters(Problem):
    """A GPT on the characters of a text."""

    model: GPT

    def __init__(self, name: str, width: int, **shape: bool) -> None:
        self.train, self.held_out = _text(name)
        self.model = GPT(GPTShape(self.train.alphabet, CONTEXT, layers=2, heads=2, width=width, tied=False, **shape))

    def loss(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of the next character, in nats."""
        return self.model.loss(*self.train.batch(size, CONTEXT, generator))

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the cross-entropy of fixed pieces of the text's last tenth."""
        pieces = self.held_out.batch(PIECES, CONTEXT, torch.Generator().manual_seed(0))
        return float(self.model.loss(*pieces))


@final
class Shakespeare(Characters):
    """A GPT from GPT-2's 0.02 on tiny Shakespeare."""

    def __init__(self, width: int) -> None:
        super().__init__("text:tinyshakespeare.txt", width)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if parameter.dim() == 2 and name.split(".")[0] not in ("token", "position"):
                    parameter.mul_((INIT_WIDTH / width) ** 0.5)


@final
class Code(Characters):
    """A GPT from 1/√fan_in, with qk-norm, on Python's standard library."""

    def __init__(self, width: int) -> None:
        super().__init__("stdlib", width, qk_norm=True, fan_in_init=True)


@final
class NoisyDigits(Problem):
    """An MLP with layer norm on digits with noise."""

    def __init__(self, width: int) -> None:
        self.train, self.held_out = _digits()
        self.model = MLP(64, 10, width, 2, "layer")

    def loss(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of noisy digits."""
        chosen = torch.randint(len(self.train.labels), (size,), generator=generator)
        batch = digits.Digits(self.train.images[chosen], self.train.labels[chosen])
        return self._noisy_loss(batch, generator)

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the cross-entropy of held-out digits with fixed noise."""
        return float(self._noisy_loss(self.held_out, torch.Generator().manual_seed(0)))

    def _noisy_loss(self, batch: digits.Digits, generator: torch.Generator) -> Tensor:
        noisy = batch.images + NOISE * torch.randn(batch.images.shape, generator=generator)
        return cross_entropy(self.model(noisy), batch.labels)


class Pictures(Problem):
    """A network on CIFAR-10 at a quarter of its resolution."""

    def __init__(self, network: str) -> None:
        self.task = _pictures()
        self.model = image_network(network, self.task.shape, self.task.classes)

    def loss(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of a random batch, cropped and mirrored at random."""
        images = self.task.train
        chosen = torch.randint(len(images), (size,), generator=generator)
        batch = Images(images.pixels[chosen], images.labels[chosen])
        batch = augmented(batch, self.task.flips, generator, self.task.padding)
        return cross_entropy(self.model(batch.pixels), batch.labels)

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the cross-entropy of the test images, with the averages of batch norm."""
        self.model.eval()
        loss = cross_entropy(self.model(self.task.test.pixels), self.task.test.labels)
        self.model.train()
        return float(loss)


@final
class PicturesCNN(Pictures):
    """A CNN with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__(f"cnn:width={width}")


@final
class PicturesViT(Pictures):
    """A vision transformer of 16 patches, from 1/√fan_in."""

    def __init__(self, width: int) -> None:
        super().__init__(f"vit:width={width},layers=2,heads=2,patch=2,fan_in_init=true")


@final
class Clothes(Problem):
    """An MLP with layer norm on Fashion-MNIST at half of its resolution."""

    def __init__(self, width: int) -> None:
        self.task = _clothes()
        self.model = MLP(math.prod(self.task.shape), self.task.classes, width, 2, "layer")

    def loss(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of random images."""
        images = self.task.train
        chosen = torch.randint(len(images), (size,), generator=generator)
        return cross_entropy(self.model(images.pixels[chosen]), images.labels[chosen])

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the cross-entropy of the test images."""
        return float(cross_entropy(self.model(self.task.test.pixels), self.task.test.labels))


@cache
def _text(name: str) -> tuple[Corpus, Corpus]:
    return load_text(name).split()


@cache
def _digits() -> tuple[digits.Digits, digits.Digits]:
    return digits.load()


@cache
def _pictures() -> ImageTask:
    return load_images("cifar10", shrink=4)


@cache
def _clothes() -> ImageTask:
    return load_images("fashion-mnist", shrink=2)


NETWORKS: dict[str, Callable[[int], Problem]] = {
    "gpt": Shakespeare,
    "code": Code,
    "mlp": NoisyDigits,
    "cnn": PicturesCNN,
    "vit": PicturesViT,
    "fashion": Clothes,
}


def make_problem(network: str, width: int, seed: int) -> Problem:
    """Return a network with initial weights of this seed, and its data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[network](width)
