"""A GPT on characters, as in most of CT's figures: settings, model, one step of training, sixteen panels."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.tools import Array
from gyroscope_lab.framework.figures import COLOURS, MEASURED, Figure, Panels
from gyroscope_lab.networks.attention import TransformerBlock
from gyroscope_lab.networks.gpt import GPT, GPTShape
from gyroscope_lab.tasks.text import standard_library

# The paper's transformer, on characters.
PAPER_MODEL: dict[str, Any] = {"layers": 6, "heads": 6, "width": 384, "context": 256, "batch": 64, "seeds": 1}
# Weights that are drawn, one in each panel.
PANELS = 16


@dataclass(frozen=True, kw_only=True)
class TextTraining:
    """A small GPT and its batches. Figures add the settings that they vary."""

    layers: int = 2
    heads: int = 4
    width: int = 32
    context: int = 16
    batch: int = 8
    seeds: int = 3

    def model(self, seed: int, *, qk_norm: bool = True) -> GPT:
        """Return a new GPT. Its embedding is not tied, so a character that does not occur has no gradient."""
        shape = GPTShape(
            standard_library().alphabet,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            qk_norm=qk_norm,
            tied=False,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return GPT(shape)

    def random_batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return characters, and the next character of each."""
        return standard_library().batch(self.batch, self.context, generator)


def train_step(model: GPT, batch: tuple[Tensor, Tensor], *optimizers: Optimizer) -> float:
    """Take one step of each optimizer on the batch, and return the loss before it."""
    model.zero_grad()
    loss = model.loss(*batch)
    torch.autograd.backward(loss)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def qkv_layers(model: GPT) -> Iterator[nn.Linear]:
    """Yield the layer of each block whose weight contains queries, keys and values, one below the other."""
    for block in model.blocks:
        assert isinstance(block, TransformerBlock)
        yield block.attention.qkv


def query_and_key_rows(model: GPT, *, gradient: bool = False) -> Tensor:
    """Return all query and key matrices, or their gradients, as flat rows: (layers · 2 · heads, entries)."""
    weights = [layer.weight for layer in qkv_layers(model)]
    tensors = [weight.grad if gradient else weight.detach() for weight in weights]
    heads = model.shape.heads
    return torch.cat([x[: 2 * model.shape.width].reshape(2 * heads, -1) for x in tensors if x is not None]).clone()


def draw_courses(courses: dict[str, Array], steps: NDArray[Any], title: str, unit: str) -> Figure:
    """Draw sixteen panels, each with the course of one weight in two trainings, the second dashed.

    `courses` are {label: (16, steps)}, and `unit` is the label of all vertical axes.
    """
    panels = Panels(*[""] * PANELS, rows=4, vertical_spacing=0.04, horizontal_spacing=0.04)
    first, second = courses
    for panel in range(PANELS):
        panels.line(panel, steps, courses[first][panel], first, COLOURS[0], **MEASURED)
        panels.predicted(panel, steps, courses[second][panel], second, COLOURS[1])
    panels.figure.update_xaxes(showticklabels=False, nticks=4)
    panels.figure.update_xaxes(showticklabels=True, tickfont_size=10, title_text="step", title_standoff=4, row=4)
    panels.figure.update_yaxes(tickfont_size=10)
    panels.figure.add_annotation(
        text=unit, textangle=-90, x=0, y=0.5, xref="paper", yref="paper", xshift=-52, showarrow=False
    )
    return panels.titled(title).update_layout(height=700)
