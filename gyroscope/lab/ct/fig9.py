"""One second moment for a whole query or key matrix trains it as one for each entry does (CT Figure 9).

In a small model the two ways part at the first step, where Adam moves every entry by lr and the coarse-grained rule
each in proportion to its gradient; the loss hardly notices.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch.optim import Adam, Optimizer

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, at_least
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.models import Shape, Transformer, queries_and_keys
from gyroscope.lab.picture import COLOURS, MEASURED, PREDICTED, styled
from gyroscope.lab.text import standard_library
from gyroscope.optim import AdamS

COST = {"quick": "20 s", "paper": "a day"}
PICKED = 16


@dataclass(frozen=True)
class Config:
    """A transformer with qk-norm under Adam, with v of query and key matrices as it is or averaged over a head's."""

    layers: int = 2
    heads: int = 4
    width: int = 32
    context: int = 16
    batch: int = 8
    steps: int = 300
    lr: float = 1e-3
    seeds: int = 3

    @classmethod
    def quick(cls) -> "Config":
        """Two layers, three hundred steps."""
        return cls()

    @classmethod
    def paper(cls) -> "Config":
        """The paper's transformer, on characters."""
        return cls(layers=6, heads=6, width=384, context=256, batch=64, steps=1000, seeds=1)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Train twice from the same start on the same batches."""
    return bench.over_seeds(config, lambda seed: compare(config, seed, bench.steps(config.steps)))


def compare(config: Config, seed: int, steps: Iterable[int]) -> Values:
    """The way of sixteen entries, and how alike the ways of all entries are."""
    text, generator = standard_library(), torch.Generator().manual_seed(seed)
    shape = Shape(text.alphabet, config.layers, config.heads, config.width, config.context)
    models = [Transformer(shape, seed) for _ in range(2)]
    optimizers = [optimizers_of(model, config, coarse) for model, coarse in zip(models, (False, True), strict=True)]
    first = entries(models[0])
    picked = torch.randperm(len(first), generator=generator)[:PICKED]
    ways: list[list[FloatArray]] = [[], []]
    losses = np.zeros((2, config.steps))
    for n in steps:
        batch = text.batch(config.batch, config.context, generator)
        for i, model in enumerate(models):
            model.zero_grad()
            loss = model.loss(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers[i]:
                optimizer.step()
            losses[i, n] = loss.item()
            ways[i].append((entries(model) - first)[picked].numpy())
    plain, coarse = (entries(model) - first for model in models)
    return {
        "plain": np.stack(ways[0], 1)[:, shown(config)],
        "coarse": np.stack(ways[1], 1)[:, shown(config)],
        "r2": 1 - float((plain - coarse).square().sum() / plain.square().sum()),
        "cosine": float((plain * coarse).sum() / plain.norm() / coarse.norm()),
        "loss": losses[:, -config.steps // 5 :].mean(1),
    }


def shown(config: Config) -> NDArray[np.intp]:
    """The steps of the picture."""
    return np.unique(np.linspace(0, config.steps - 1, 80).astype(np.intp))


def optimizers_of(model: Transformer, config: Config, coarse: bool) -> list[Optimizer]:
    """Adam for all; or Adam-S, whose v is the mean of g² over a vector, here a head's matrix, for queries and keys."""
    if not coarse:
        return [Adam(model.parameters(), config.lr, eps=1e-12)]
    special = list(queries_and_keys(model))
    others = [weight for weight in model.parameters() if not any(weight is one for one in special)]
    group = {"params": special, "granularity": "group", "group_size": config.width // config.heads}
    return [Adam(others, config.lr, eps=1e-12), AdamS([group], config.lr, eps=1e-12)]


def entries(model: Transformer) -> torch.Tensor:
    """All entries of query and key matrices."""
    return torch.cat([weight.detach().flatten() for weight in queries_and_keys(model)]).clone()


def plot(result: Result[Config]) -> Figure:
    """Sixteen entries of the first seed."""
    figure = make_subplots(rows=4, cols=4, vertical_spacing=0.04, horizontal_spacing=0.04)
    n = shown(result.config)
    for i in range(PICKED):
        for name, label, line in (
            ("plain", "Adam", {"color": COLOURS[0], **MEASURED}),
            ("coarse", "one v per matrix", PREDICTED | {"color": COLOURS[1]}),
        ):
            y = result[name][0, i] / result.config.lr
            figure.add_trace(
                Scatter(x=n + 1, y=y, name=label, line=line, showlegend=i == 0), row=i // 4 + 1, col=i % 4 + 1
            )
    figure.update_xaxes(showticklabels=False)
    figure.update_yaxes(tickfont_size=10)
    return styled(figure, f"Way of 16 entries of query and key matrices, in lr, over {result.config.steps} steps")


def claims(result: Result[Config]) -> list[Claim]:
    """The ways agree, and so does the loss."""
    plain, coarse = result["plain"], result["coarse"]
    picked = 1 - ((plain - coarse) ** 2).sum((1, 2)) / (plain**2).sum((1, 2))
    return [
        at_least("R² of the way of 16 random entries over the run", 0.9, picked),
        at_least("R² of the place of all entries at the last step", 0.9, result["r2"]),
        at_least("cosine between the two ways of all entries at the last step", 0.9, result["cosine"]),
        at_least("loss with one v per entry over that with one v per matrix, the last fifth of the steps", 0.99,
                 result["loss"][:, 0] / result["loss"][:, 1]),
    ]  # fmt: skip
