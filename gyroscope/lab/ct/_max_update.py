"""Training a transformer with Adam and keeping its largest update: what CT's Figures 3 and 7 share."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Adam

from gyroscope.lab.bench import Values
from gyroscope.lab.experiment import FloatArray
from gyroscope.lab.models import Shape, Transformer
from gyroscope.lab.text import standard_library
from gyroscope.theory.stability import update_bound

POINTS = 120
WINDOW = 5
"""The slope at step n is taken between n-5 and n+5, as in the paper."""


@dataclass(frozen=True)
class Training:
    """A transformer on text under Adam without weight decay; `double` trains in float64, where v does not underflow."""

    layers: int
    heads: int
    width: int
    context: int
    batch: int
    steps: int
    seeds: int
    lr: float = 1e-3
    double: bool = False

    def model(self, seed: int) -> Transformer:
        """A fresh transformer."""
        shape = Shape(standard_library().alphabet, self.layers, self.heads, self.width, self.context)
        return Transformer(shape, seed).to(torch.float64 if self.double else torch.float32)


def max_updates(config: Training, betas: tuple[float, float], seed: int, steps: Iterable[int]) -> Values:
    """The largest entry of u_n = (θ_n - θ_{n+1})/lr, and how often it belongs to one character's weights."""
    model, generator = config.model(seed), torch.Generator().manual_seed(seed)
    optimizer = Adam(model.parameters(), config.lr, betas, eps=1e-30, fused=True)
    text, largest, where = standard_library(), np.zeros(config.steps), np.zeros(config.steps, dtype=int)
    for n in steps:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        model.loss(*text.batch(config.batch, config.context, generator)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        moved = [(old - new.detach()).abs().max() for old, new in zip(before, model.parameters(), strict=True)]
        largest[n], where[n] = torch.stack(moved).max() / config.lr, torch.stack(moved).argmax()
    rows = [i for i, (name, _) in enumerate(model.named_parameters()) if name in ("token.weight", "head.weight")]
    return {
        "update": largest[shown(config)],
        "slope": slope(largest),
        "of_a_character": np.isin(where[config.steps // 2 :], rows).mean(),
        "over_bound": (largest[1:] / bound(config, betas, exact=False)[1:]).max(),
        "over_exact": (largest / bound(config, betas, exact=True)).max(),
    }


def shown(config: Training) -> NDArray[np.intp]:
    """The steps that are kept for the picture, closer together at the beginning."""
    return np.unique(np.geomspace(1, config.steps, POINTS).astype(np.intp)) - 1


def slope(largest: FloatArray) -> float:
    """d ln u/dn: the median of the slopes at all steps of the second half, each over ten steps as in the paper.

    The median, for the largest entry falls back whenever its gradient returns, and then grows anew.
    """
    log = np.log(largest[len(largest) // 2 - WINDOW :])
    return float(np.median((log[2 * WINDOW :] - log[: -2 * WINDOW]) / (2 * WINDOW)))


def bound(config: Training, betas: tuple[float, float], exact: bool) -> FloatArray:
    """The bound (5), or the exact one, at every step."""
    return np.asarray(update_bound(np.arange(config.steps), *betas, exact=exact))
