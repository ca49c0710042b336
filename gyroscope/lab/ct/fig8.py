"""Under qk-norm query and key matrices stay orthogonal to their gradients, past ones nearly so (CT Figure 8).

At the step itself they are orthogonal, exactly. Earlier gradients are not: at a distance of a few steps, their products
with the weights are as large as without qk-norm.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch.optim import AdamW

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, at_least, at_most
from gyroscope.lab.experiment import Result
from gyroscope.lab.models import Shape, Transformer, per_head, queries_and_keys
from gyroscope.lab.picture import COLOURS, styled
from gyroscope.lab.text import standard_library

COST = {"quick": "30 s", "paper": "a day"}
KINDS = (True, False)
SHOWN = 80


@dataclass(frozen=True)
class Config:
    """A transformer with qk-norm and one without, under AdamW."""

    layers: int = 2
    heads: int = 4
    width: int = 32
    context: int = 16
    batch: int = 8
    steps: int = 500
    lr: float = 1e-3
    weight_decay: float = 0.01
    seeds: int = 3

    @classmethod
    def quick(cls) -> "Config":
        """Sixteen matrices, five hundred steps."""
        return cls()

    @classmethod
    def paper(cls) -> "Config":
        """The paper's transformer on characters, a thousand steps."""
        return cls(layers=6, heads=6, width=384, context=256, batch=64, steps=1000, seeds=1)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Train with qk-norm and without."""
    return bench.over_parts(config, KINDS, lambda seed, norm: train(config, norm, seed, bench.steps(config.steps)))


def train(config: Config, qk_norm: bool, seed: int, steps: Iterable[int]) -> Values:
    """|⟨W(t_N), g(t_n)⟩| and the same as a cosine, of the last weights with every earlier gradient, per matrix."""
    text, generator = standard_library(), torch.Generator().manual_seed(seed)
    shape = Shape(text.alphabet, config.layers, config.heads, config.width, config.context, qk_norm)
    model = Transformer(shape, seed)
    optimizer = AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay, fused=True)
    gradients = []
    for n in steps:
        if n == config.steps - 1:
            W = _rows(model, config, gradient=False)  # where the last gradient is taken
        optimizer.zero_grad()
        model.loss(*text.batch(config.batch, config.context, generator)).backward()  # type: ignore[no-untyped-call]
        gradients.append(_rows(model, config, gradient=True))
        optimizer.step()
    g = torch.stack(gradients)
    inner = (g * W).sum(2).abs()
    cosine = inner / (g.norm(dim=2) * W.norm(dim=1))
    shown = np.linspace(0, config.steps - 1, SHOWN).astype(int)
    return {
        "inner": inner[shown].T.numpy(),
        "last": cosine[-1].max().item(),
        "cosine": cosine.square().mean().sqrt().item(),
        "mean": inner.mean().item(),
        "chance": g.shape[2] ** -0.5,
    }


def _rows(model: Transformer, config: Config, gradient: bool) -> torch.Tensor:
    tensors = [weight.grad if gradient else weight.detach() for weight in queries_and_keys(model)]
    return torch.cat([per_head(one, config.heads) for one in tensors if one is not None]).double()


def plot(result: Result[Config]) -> Figure:
    """The inner products of every matrix of the first seed, with qk-norm and without."""
    n = np.linspace(1, result.config.steps, SHOWN).astype(int)
    figure = make_subplots(cols=2, subplot_titles=["with qk-norm", "without"], shared_yaxes=True)
    for col in range(2):
        count = result["inner"].shape[2]
        for i in range(count):
            line = {"color": COLOURS[i % len(COLOURS)], "width": 1}
            y = np.maximum(result["inner"][0, col, i], 1e-12)
            figure.add_trace(Scatter(x=n, y=y, line=line, showlegend=False), row=1, col=col + 1)
    figure.update_yaxes(type="log", dtick=2, exponentformat="power")
    figure.update_yaxes(title_text="|⟨W(t_N), g(t_n)⟩|", col=1)
    figure.update_xaxes(title_text="step n of the gradient")
    return styled(figure, "The last query and key matrices and their past gradients, a line for each matrix")


def claims(result: Result[Config]) -> list[Claim]:
    """Zero at the last step, small before it, and smaller than without qk-norm."""
    last, cosine, mean, chance = (result[name] for name in ("last", "cosine", "mean", "chance"))
    return [
        at_most("with qk-norm: largest |cos(W, g)| of a matrix and its gradient of the same step", 1e-4, last[:, 0]),
        at_least("without qk-norm: the same", 1e-2, last[:, 1]),
        at_most("with qk-norm: RMS cosine with past gradients, over that of random directions 1/sqrt(N)", 1.0,
                cosine[:, 0] / chance[:, 0]),
        at_most("mean |⟨W, g⟩| with qk-norm over that without", 1.0, mean[:, 0] / mean[:, 1]),
    ]  # fmt: skip
