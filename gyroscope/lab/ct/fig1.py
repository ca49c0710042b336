"""Adam's differential equation follows the weights of a real training run (CT Figure 1)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.optim import AdamW

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, at_least
from gyroscope.lab.experiment import Result
from gyroscope.lab.models import Shape, Transformer
from gyroscope.lab.picture import COLOURS, MEASURED, PREDICTED, styled
from gyroscope.lab.text import standard_library
from gyroscope.simulate.flow import flow

COST = {"quick": "1 min", "paper": "a week"}
PICKED = 16


@dataclass(frozen=True)
class Config:
    """A transformer with qk-norm under AdamW, and its flow with K = `substeps` per step."""

    layers: int = 1
    heads: int = 4
    width: int = 32
    context: int = 16
    batch: int = 8
    steps: int = 100
    substeps: int = 20
    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    seeds: int = 3

    @classmethod
    def quick(cls) -> "Config":
        """One layer, K = 20."""
        return cls()

    @classmethod
    def paper(cls) -> "Config":
        """The paper's transformer on characters, K = 100."""
        return cls(layers=6, heads=6, width=384, context=256, batch=64, substeps=100, seeds=1)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Train, and let the flow run over the same batches."""
    return bench.over_seeds(config, lambda seed: both(config, seed, bench.steps(config.steps)))


def both(config: Config, seed: int, steps: Iterable[int]) -> Values:
    """Sixteen weights along both ways, and the distance of all weights."""
    text, generator = standard_library(), torch.Generator().manual_seed(seed)
    model = Transformer(Shape(text.alphabet, config.layers, config.heads, config.width, config.context), seed)
    batches = [text.batch(config.batch, config.context, generator) for _ in range(config.steps)]
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = AdamW(model.parameters(), config.lr, config.betas, eps=1e-30, weight_decay=config.weight_decay)
    states = iter(flow(lambda weights, *batch: loss(model, weights, *batch), first, lr=config.lr, steps=config.steps,
                       weight_decay=config.weight_decay, betas=config.betas, substeps=config.substeps,
                       batches=lambda n: batches[n]))  # fmt: skip
    start = flat(first)
    picked = torch.randperm(len(start), generator=generator)[:PICKED]
    discrete, continuous, distance, moved = [], [], [], []
    for n in steps:
        optimizer.zero_grad()
        model.loss(*batches[n]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        here, there = flat(dict(model.named_parameters())), flat(next(states).parameters)
        discrete.append((here - start)[picked].tolist())
        continuous.append((there - start)[picked].tolist())
        distance.append(float((here - there).square().sum()))
        moved.append(float((here - start).square().sum()))
    return {"discrete": np.array(discrete).T, "flow": np.array(continuous).T, "distance2": distance, "moved2": moved}


def loss(model: Transformer, weights: dict[str, Tensor], characters: Tensor, following: Tensor) -> Tensor:
    """The model's loss as a function of its weights."""
    logits: Any = functional_call(model, weights, (characters,))
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def flat(weights: dict[str, Any]) -> Tensor:
    """All weights in one vector."""
    return torch.cat([weight.detach().flatten() for weight in weights.values()]).double()


def plot(result: Result[Config]) -> Figure:
    """Sixteen weights of the first seed: training as lines, the flow as dashes."""
    t = np.arange(1, result.config.steps + 1)
    figure = make_subplots(rows=4, cols=4, vertical_spacing=0.04, horizontal_spacing=0.04)
    for i in range(PICKED):
        for name, label, line in (
            ("discrete", "training", {"color": COLOURS[0], **MEASURED}),
            ("flow", "differential equation", PREDICTED | {"color": COLOURS[1]}),
        ):
            y = result[name][0, i] / result.config.lr
            trace = Scatter(x=t, y=y, name=label, line=line, showlegend=i == 0)
            figure.add_trace(trace, row=i // 4 + 1, col=i % 4 + 1)
    figure.update_xaxes(showticklabels=False)
    figure.update_yaxes(tickfont_size=10)
    return styled(figure, f"Way of 16 weights from their start, in lr, over {result.config.steps} steps").update_layout(
        height=700
    )


def claims(result: Result[Config]) -> list[Claim]:
    """How much of the way of the weights the equation explains."""
    picked = 1 - ((result["flow"] - result["discrete"]) ** 2).sum((1, 2)) / (result["discrete"] ** 2).sum((1, 2))
    everything = 1 - result["distance2"].sum(1) / result["moved2"].sum(1)
    last = 1 - result["distance2"][:, -1] / result["moved2"][:, -1]
    return [
        at_least("R² of the way of 16 random weights over all steps", 0.9, picked),
        at_least("R² of the way of all weights over all steps", 0.9, everything),
        at_least("R² of the place of all weights at the last step", 0.9, last),
    ]
