"""A transformer on characters of text, as in most of CT's figures: settings, model and one step of training."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gyroscope.lab.tasks.models import Transformer, TransformerShape, per_head, queries_and_keys
from gyroscope.lab.tasks.text import standard_library

# The paper's transformer, on characters.
PAPER_MODEL: dict[str, Any] = {"layers": 6, "heads": 6, "width": 384, "context": 256, "batch": 64, "seeds": 1}
# Weights that are drawn, one in each panel.
PANELS = 16


@dataclass(frozen=True, kw_only=True)
class TextTraining:
    """A small transformer and its batches; figures add what they vary."""

    layers: int = 2
    heads: int = 4
    width: int = 32
    context: int = 16
    batch: int = 8
    seeds: int = 3

    def model(self, seed: int, *, qk_norm: bool = True) -> Transformer:
        """A fresh transformer."""
        alphabet = standard_library().alphabet
        shape = TransformerShape(alphabet, self.layers, self.heads, self.width, self.context, qk_norm)
        return Transformer(shape, seed)

    def random_batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Characters, and the character that follows each."""
        return standard_library().batch(self.batch, self.context, generator)


def train_step(model: Transformer, batch: tuple[Tensor, Tensor], *optimizers: Optimizer) -> float:
    """One step of each optimizer on the batch; the loss before it."""
    model.zero_grad()
    loss = model.loss(*batch)
    torch.autograd.backward(loss)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def query_and_key_rows(model: Transformer, heads: int, *, gradient: bool = False) -> Tensor:
    """All query and key matrices, or their gradients, as flat rows: (matrices, entries)."""
    tensors = [weight.grad if gradient else weight.detach() for weight in queries_and_keys(model)]
    return torch.cat([per_head(tensor, heads) for tensor in tensors if tensor is not None]).clone()
