"""Small tasks for many short trainings: data, a network, its loss, and its loss on held-out data."""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gyroscope.nn import add_gain
from gyroscope_lab.networks.registry import image_network, text_network
from gyroscope_lab.tasks.images import ImageTask, load_images
from gyroscope_lab.tasks.text import Corpus, load_text
from gyroscope_lab.training import TrainConfig

# Held-out images and pieces of text. All runs of a task share them, so a few are enough for a comparison.
HELD_OUT_IMAGES = 2000
HELD_OUT_PIECES = 200


class Problem(ABC):
    """A model, its loss on a random batch, and its loss on held-out data."""

    model: nn.Module

    @abstractmethod
    def loss(self, generator: torch.Generator) -> Tensor:
        """Return the mean loss of a random batch."""

    @abstractmethod
    def held_out_loss(self) -> float:
        """Return the mean loss on held-out data."""


@final
class Pictures(Problem):
    """Images to classes."""

    def __init__(self, config: TrainConfig) -> None:
        self.task = _images(config.task, config.shrink)
        self.size = config.batch_size
        self.model = image_network(config.model, self.task.shape, self.task.classes, config.norm)

    def loss(self, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of a random batch."""
        chosen = torch.randint(len(self.task.train), (self.size,), generator=generator)
        return cross_entropy(self.model(self.task.train.pixels[chosen]), self.task.train.labels[chosen])

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the cross-entropy of the first test images, in evaluation mode."""
        self.model.eval()
        test = self.task.test
        loss = cross_entropy(self.model(test.pixels[:HELD_OUT_IMAGES]), test.labels[:HELD_OUT_IMAGES])
        self.model.train()
        return float(loss)


@final
class Text(Problem):
    """Characters to the next character."""

    def __init__(self, config: TrainConfig) -> None:
        corpus = _corpus(config.task)
        self.train, self.held_out = corpus.split()
        self.size = config.batch_size
        self.model = text_network(config.model, corpus.alphabet)
        self.context = self.model.shape.context

    def loss(self, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of the next character of random pieces, in nats."""
        return self._loss(*self.train.batch(self.size, self.context, generator))

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the cross-entropy of fixed pieces of the text's last tenth."""
        pieces = self.held_out.batch(HELD_OUT_PIECES, self.context, torch.Generator().manual_seed(0))
        return float(self._loss(*pieces))

    def _loss(self, tokens: Tensor, following: Tensor) -> Tensor:
        return cross_entropy(self.model(tokens).flatten(0, 1), following.flatten())


# Only one task at a time is in use.
@lru_cache(maxsize=1)
def _images(name: str, shrink: int) -> ImageTask:
    return load_images(name, shrink=shrink)


@lru_cache(maxsize=1)
def _corpus(name: str) -> Corpus:
    return load_text(name)


def make_problem(config: TrainConfig) -> Problem:
    """Return the task of a config with a new network, whose weights depend only on the seed."""
    torch.manual_seed(config.seed)
    is_text = config.task == "stdlib" or config.task.startswith("text:")
    problem: Problem = Text(config) if is_text else Pictures(config)
    if config.gain:
        add_gain(problem.model)
    return problem
