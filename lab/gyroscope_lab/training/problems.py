"""A task with a network: losses of numbered batches, and scores on held-out data.

Randomness depends only on (seed, step), so a resumed run draws the batches that an uninterrupted one would draw.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gyroscope.nn import add_gain
from gyroscope_lab.networks.registry import image_network, text_network, translation_network
from gyroscope_lab.networks.transformer import PADDING
from gyroscope_lab.tasks.images import Images, augmented, load_images
from gyroscope_lab.tasks.text import TEXTS, load_text
from gyroscope_lab.tasks.translation import load_translation
from gyroscope_lab.training.config import TrainConfig

Scores: TypeAlias = dict[str, Tensor | float]

# Windows of a text on which a model is validated, without overlap. They cover the last tenth of tiny Shakespeare.
VALIDATION_WINDOWS = 2000
# Images or windows in one evaluation batch.
EVALUATION_SIZE = 500


class Problem(ABC):
    """A model, its loss on a numbered batch, and its scores on held-out data."""

    model: nn.Module
    device: torch.device
    batches_per_epoch: int

    @abstractmethod
    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Return the loss and the scores on training batch `number`, counted from the start of the run."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the scores on held-out data, in evaluation mode."""


def make_problem(config: TrainConfig, data_root: Path | None, device: torch.device) -> Problem:
    """Return the problem of a config. The initial weights of the network depend only on the seed."""
    torch.manual_seed(config.seed)
    problem = _problem_class(config.task)(config, data_root, device)
    if config.gain:
        add_gain(problem.model)
    return problem


def _problem_class(task: str) -> type["ImageProblem | TextProblem | TranslationProblem"]:
    kind = task.partition(":")[0]
    if kind == "translation":
        return TranslationProblem
    return TextProblem if kind in TEXTS else ImageProblem


def _generator(*numbers: int) -> torch.Generator:
    """Return a generator for this combination of numbers. Python's hash of integers is the same in every process."""
    return torch.Generator().manual_seed(hash(numbers) % 2**63)


@final
class ShuffledBatches:
    """The samples of each training batch. An epoch has every sample once, except those that do not fill a batch."""

    def __init__(self, samples: int, kind: str, config: TrainConfig) -> None:
        self.samples = samples
        self.size = config.batch_size
        self.seed = config.seed
        self.per_epoch = samples // config.batch_size
        if not self.per_epoch:
            raise ValueError(f"batch_size={config.batch_size} exceeds the {samples:,} {kind} of {config.task}")
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def chosen(self, number: int) -> Tensor:
        """Return the indices in the training set of batch `number`."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._order = torch.randperm(self.samples, generator=_generator(self.seed, epoch))
            self._epoch = epoch
        return self._order[place * self.size : (place + 1) * self.size]


@final
class ImageProblem(Problem):
    """Images to classes."""

    def __init__(self, config: TrainConfig, data_root: Path | None, device: torch.device) -> None:
        self.task = load_images(config.task, data_root, config.shrink)
        self.model = image_network(config.model, self.task.shape, self.task.classes, config.norm).to(device)
        self.config = config
        self.device = device
        self.batches = ShuffledBatches(len(self.task.train), "images", config)
        self.batches_per_epoch = self.batches.per_epoch

    def batch(self, number: int) -> Images:
        """Return training batch `number`."""
        chosen = self.batches.chosen(number)
        images = Images(self.task.train.pixels[chosen], self.task.train.labels[chosen])
        if self.config.augment:
            images = augmented(images, self.task.flips, _generator(self.config.seed, number, 1), self.task.padding)
        return images.to(self.device)

    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Return the cross-entropy, and the share of images classified correctly."""
        batch = self.batch(number)
        logits = model(batch.pixels)
        accuracy = (logits.detach().argmax(1) == batch.labels).float().mean()
        return F.cross_entropy(logits, batch.labels), {"accuracy": accuracy}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return cross-entropy and accuracy on the test set."""
        model.eval()
        loss = 0.0
        right = 0.0
        test = self.task.test
        for start in range(0, len(test), EVALUATION_SIZE):
            part = slice(start, start + EVALUATION_SIZE)
            labels = test.labels[part].to(self.device)
            logits = model(test.pixels[part].to(self.device)).float()
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += float((logits.argmax(1) == labels).sum())
        model.train()
        return {"validation_loss": loss / len(test), "validation_accuracy": right / len(test)}


@final
class TextProblem(Problem):
    """Characters or byte pairs to the next one."""

    def __init__(self, config: TrainConfig, data_root: Path | None, device: torch.device) -> None:
        corpus = load_text(config.task, data_root)
        self.train, self.validation = corpus.split()
        self.model = text_network(config.model, corpus.alphabet).to(device)
        self.config = config
        self.device = device
        self.context = self.model.shape.context
        self.batches_per_epoch = max(len(self.train.ids) // (config.batch_size * self.context), 1)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the numbers of training batch `number`, and those that follow them."""
        generator = _generator(self.config.seed, number)
        return self.train.batch(self.config.batch_size, self.context, generator)

    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Return the cross-entropy of the next character."""
        return self._loss(model, *self.batch(number)), {}

    def _loss(self, model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
        logits = model(tokens.to(self.device))
        return F.cross_entropy(logits.flatten(0, 1), following.to(self.device).flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the cross-entropy on windows spread evenly over the validation text."""
        model.eval()
        ids = self.validation.ids
        last = len(ids) - self.context - 1
        count = min(VALIDATION_WINDOWS, last // self.context + 1)
        starts = torch.linspace(0, last, count).long()[:, None]
        total = 0.0
        for part in torch.split(starts + torch.arange(self.context), EVALUATION_SIZE):
            total += float(self._loss(model, ids[part], ids[part + 1])) * len(part)
        model.train()
        return {"validation_loss": total / count}


@final
class TranslationProblem(Problem):
    """Sentences to their translations, character by character.

    The network predicts every character from the true ones before it. If it predicts all of them, it would also write
    the sentence from its own best guesses. So `accuracy` is the share of exact translations.
    """

    def __init__(self, config: TrainConfig, data_root: Path | None, device: torch.device) -> None:
        self.task = load_translation(config.task, data_root)
        self.model = translation_network(config.model, self.task.vocabulary).to(device)
        self.config = config
        self.device = device
        context = self.model.shape.context
        if self.task.longest > context:
            raise ValueError(
                f"model={config.model!r} has context={context}, and the longest sentence of {config.task} needs "
                f"{self.task.longest:,}: write the model as transformer:context={self.task.longest}, or leave long "
                "sentences out of the files"
            )
        self.batches = ShuffledBatches(len(self.task.train), "sentences", config)
        self.batches_per_epoch = self.batches.per_epoch

    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Return the mean cross-entropy of a character, and the share of sentences translated exactly."""
        source, target = self.task.train.batch(self.batches.chosen(number).tolist())
        loss, exact = self._summed(model, source, target)
        return loss / _asked(target).sum(), {"accuracy": exact / len(target)}

    def _summed(self, model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy, summed over characters without padding, and the number of exact translations."""
        target = target.to(self.device)
        logits = model(source.to(self.device), target[:, :-1]).float()
        following = target[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=PADDING, reduction="sum")
        right = (logits.detach().argmax(2) == following) | ~_asked(target)
        return loss, right.all(1).sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the mean cross-entropy of a character and the share of exact translations on held-out sentences."""
        model.eval()
        held_out = self.task.validation
        loss = 0.0
        exact = 0.0
        characters = 0
        # As many at once as in training, because sentences of files may be long.
        for part in torch.split(torch.arange(len(held_out)), self.config.batch_size):
            source, target = held_out.batch(part.tolist())
            summed, right = self._summed(model, source, target)
            loss += float(summed)
            exact += float(right)
            characters += int(_asked(target).sum())
        model.train()
        return {"validation_loss": loss / characters, "validation_accuracy": exact / len(held_out)}


def _asked(target: Tensor) -> Tensor:
    """Return a mask of the tokens after the first of each target that are not padding."""
    return target[:, 1:] != PADDING
