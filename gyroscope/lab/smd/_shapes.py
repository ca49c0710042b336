"""The shapes of L_t in SMD's Figures 4 and 5, weights that live through them, and what is claimed of both."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch.optim import SGD

from gyroscope.lab.bench import Values
from gyroscope.lab.claim import Claim, agrees, at_most
from gyroscope.lab.driven import drive, start
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.picture import COLOURS, MEASURED, PREDICTED, styled
from gyroscope.simulate.norm_map import sgd_map, sgdm_map
from gyroscope.theory import SGDM

SHAPES = ("constant", "noise", "drift", "steps")
PLATEAUS = (1.0, 2.0, 0.5, 1.0)
"""The steps of the last shape, over its level; a quarter of the run each."""
POINTS = 200
EARLY = 200


@dataclass(frozen=True)
class Driven:
    """The settings of both figures: SMD's lr, start and noise; L_t is about `level`."""

    momentum: float
    weight_decay: float
    steps: int
    vectors: int
    seeds: int
    lr: float = 0.1
    start: float = 10.0
    level: float = 10.0
    noise: float = 3.0
    fan_in: int = 256

    @property
    def timescale(self) -> float:
        """Steps in which the distance of ‖w‖² from its equilibrium shrinks e times (SMD 17, 20)."""
        return (1 - self.momentum) / (4 * self.lr * self.weight_decay)


D = TypeVar("D", bound=Driven)


def expected(config: Driven) -> FloatArray:
    """E L_t of every shape, (steps, shapes)."""
    t = np.arange(config.steps)
    flat = np.ones(config.steps)
    stairs = np.array(PLATEAUS)[t * len(PLATEAUS) // config.steps]
    return config.level * np.stack([flat, flat, 1 + t / config.steps, stairs], axis=1)


def follow(config: Driven, seed: int, steps: Iterable[int]) -> Values:
    """Drive weights through all shapes at once; the first has no noise."""
    generator = torch.Generator().manual_seed(seed)
    count = len(SHAPES) * config.vectors
    noise = torch.rand(config.steps, count, generator=generator, dtype=torch.float64) * 2 - 1
    noise[:, : config.vectors] = 0
    L = torch.from_numpy(np.repeat(expected(config), config.vectors, axis=1)) + config.noise * noise
    weight = start(count, config.fan_in, config.start, generator)
    optimizer = SGD([weight], lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    trace = drive(weight, optimizer, L, generator, steps, angles=False)
    norm2, h = (one.numpy().reshape(config.steps, len(SHAPES), config.vectors) for one in (trace.norm2, trace.h))
    shown = _shown(config)
    return {
        "norm2": norm2[shown, :, 0].T,
        "L": L.numpy().reshape(norm2.shape)[shown, :, 0].T,
        "norm2_early": norm2[:EARLY, :, 0].T,
        "h_early": h[:EARLY, :, 0].T,
        "settled": (norm2.mean(2) / np.sqrt(expected(config)))[_settled(config)].mean(0),
    }


def _shown(config: Driven) -> NDArray[np.intp]:
    return np.linspace(0, config.steps - 1, POINTS).astype(np.intp)


def _settled(config: Driven) -> NDArray[np.intp]:
    """Steps that lie four timescales or more behind the start and every step of the last shape."""
    since = np.arange(config.steps) % (config.steps // len(PLATEAUS))
    late = np.flatnonzero(since >= 4 * config.timescale)
    if not len(late):
        raise ValueError(f"steps={config.steps} is too short to settle: use {int(20 * config.timescale)} or more")
    return late


def _norm2(config: Driven) -> float:
    """‖w‖² in equilibrium for L = 1; it goes with sqrt(L) (SMD Theorems 1 and 2)."""
    rule = SGDM(config.lr, config.weight_decay, config.momentum)
    return float(rule.equilibrium(unit_grad_norm=1.0).norm or 0.0) ** 2


def picture(result: Result[D], title: str) -> Figure:
    """Of the first seed: L_t, the measured ‖w‖² and sqrt(E L_t) times its prediction, shape by shape."""
    config = result.config
    t = _shown(config)
    theory = (_norm2(config) * np.sqrt(expected(config)))[t]
    figure = make_subplots(rows=2, cols=2, subplot_titles=[f"L_t: {shape}" for shape in SHAPES])
    for i in range(len(SHAPES)):
        for name, y, line in (
            ("L_t", result["L"][0, i], {"color": COLOURS[4], "width": 1}),
            ("‖w‖², measured", result["norm2"][0, i], {"color": COLOURS[0], **MEASURED}),
            ("‖w‖², predicted", theory[:, i], PREDICTED),
        ):
            trace = Scatter(x=t, y=y, name=name, line=line, mode="lines", legendgroup=name, showlegend=i == 0)
            figure.add_trace(trace, row=i // 2 + 1, col=i % 2 + 1)
    figure.update_xaxes(title_text="step", row=2)
    return styled(figure, title)


def mapped(result: Result[D], seed: int, shape: int) -> FloatArray:
    """‖w‖² of the first steps by the map (130) or (131), driven by what the weights' gradients were."""
    config, h = result.config, result["h_early"][seed, shape]
    if config.momentum == 0:
        return sgd_map(h, lr=config.lr, weight_decay=config.weight_decay, norm2=config.start).norm2
    return sgdm_map(
        h, lr=config.lr, weight_decay=config.weight_decay, momentum=config.momentum, norm2=config.start
    ).norm2


def judge(result: Result[D]) -> list[Claim]:
    """Once settled, ‖w‖² is the prediction for the L of the moment; the paper's map describes the way there."""
    config, equation = result.config, "(131)" if result.config.momentum else "(130)"
    off = [
        max(float(np.abs(result["norm2_early"][s, i] / mapped(result, s, i) - 1).max()) for i in range(len(SHAPES)))
        for s in range(config.seeds)
    ]
    return [
        agrees(f"‖w‖²/sqrt(E L_t) after settling, L_t {shape}", _norm2(config), result["settled"][:, i], within=0.03)
        for i, shape in enumerate(SHAPES)
    ] + [at_most(f"largest relative distance of ‖w‖² from the map {equation} in the first {EARLY} steps", 1e-3, off)]
