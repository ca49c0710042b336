"""Gradients L_t of four shapes, and ‖w‖² that follows them, without and with momentum (SMD Figures 4 and 5)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, MEASURED, Figure, Panels, shown_steps
from gyroscope_lab.smd._norm_map import sgd_map, sgdm_map
from gyroscope_lab.smd._prescribed_gradients import DrivenWeights, SGDConfig, equilibrium_norm2, uniform_noise

CLAIMS = {
    "fig4": "Under SGD ‖w‖² follows sqrt(L·lr/(2·wd)) whatever shape L_t has, if it changes slowly (SMD Figure 4).",
    "fig5": "Under SGD with momentum ‖w‖² follows the L of the moment too, 1/(1-α) times faster (SMD Figure 5).",
}
COST = {"fig4": {"quick": "20 s", "paper": "3 min"}, "fig5": {"quick": "10 s", "paper": "30 s"}}
SHAPES = ("constant", "noise", "drift", "steps")
# The plateaus of the shape "steps", over its level, a quarter of the run each.
PLATEAUS = (1.0, 2.0, 0.5, 1.0)
POINTS = 200
# First steps, in which ‖w‖² is compared with the paper's map.
EARLY = 200


@dataclass(frozen=True, kw_only=True)
class Config(SGDConfig):
    """SMD's lr, start and noise. L_t is about `level`."""

    steps: int
    fan_in: int = 256
    start: float = 10.0

    @property
    def timescale(self) -> float:
        """Steps in which the distance of ‖w‖² from its equilibrium shrinks by a factor e (SMD 17, 20)."""
        return (1 - self.momentum) / (4 * self.lr * self.weight_decay)

    @property
    def unit_norm2(self) -> float:
        """‖w‖² in equilibrium for L = 1. It is proportional to sqrt(L)."""
        return equilibrium_norm2(self.rule, 1.0)


QUICK = {
    # Five times the decay of the paper, to settle in a fifth of the steps.
    "fig4": Config(momentum=0.0, weight_decay=0.005, start=4.5, steps=12_000, vectors=2),
    # Long enough for every plateau to settle, with the decay of the paper.
    "fig5": Config(momentum=0.9, weight_decay=0.001, steps=6_000, vectors=4),
}
PAPER = {
    "fig4": Config(momentum=0.0, weight_decay=0.001, steps=100_000, vectors=4, seeds=5),
    "fig5": Config(momentum=0.9, weight_decay=0.001, steps=40_000, vectors=8, seeds=5),
}


def expected(config: Config) -> Array:
    """Return E L_t of every shape, (steps, shapes)."""
    t = np.arange(config.steps)
    # In the order of SHAPES.
    flat = np.ones(config.steps)
    stairs = np.array(PLATEAUS)[t * len(PLATEAUS) // config.steps]
    return config.level * np.stack([flat, flat, 1 + t / config.steps, stairs], axis=1)


def measure(trial: Trial[Config]) -> Measurements:
    """Drive weights with torch's SGD through all shapes at once."""
    config = trial.config
    generator = trial.generator()
    count = len(SHAPES) * config.vectors
    noise = uniform_noise(config.steps, count, generator)
    noise[:, : config.vectors] = 0  # the first shape is constant
    L = torch.from_numpy(np.repeat(expected(config), config.vectors, axis=1)) + config.noise * noise
    start = torch.full((count,), config.start, dtype=torch.float64)
    weights = DrivenWeights(config.rule, config.fan_in, start, generator)
    trace = weights.drive(L, trial.steps(config.steps), angles=False)
    by_shape = (config.steps, len(SHAPES), config.vectors)
    norm2 = trace.norm2.numpy().reshape(by_shape)
    shown = shown_steps(config.steps, POINTS)
    return {
        "norm2": norm2[shown, :, 0].T,
        "L": L.numpy().reshape(by_shape)[shown, :, 0].T,
        "norm2_early": norm2[:EARLY, :, 0].T,
        "h_early": trace.h.numpy().reshape(by_shape)[:EARLY, :, 0].T,
        # Over all settled steps, in units of sqrt(E L_t): one number for each shape, also for those that change.
        "settled": (norm2.mean(2) / np.sqrt(expected(config)))[_settled(config)].mean(0),
    }


def _settled(config: Config) -> NDArray[np.intp]:
    """Return the steps at least four timescales after the start and after every jump of the last shape."""
    since = np.arange(config.steps) % (config.steps // len(PLATEAUS))
    late = np.flatnonzero(since >= 4 * config.timescale)
    if not len(late):
        raise ValueError(f"steps={config.steps} is too short to settle: use {int(20 * config.timescale)} or more")
    return late


def plot(result: Result[Config]) -> Figure:
    """Draw L_t, the measured ‖w‖² and sqrt(E L_t) times its prediction of the first seed, shape by shape."""
    config = result.config
    t = shown_steps(config.steps, POINTS)
    theory = (config.unit_norm2 * np.sqrt(expected(config)))[t]
    panels = Panels(*(f"L_t: {shape}" for shape in SHAPES), rows=2)
    for i in range(len(SHAPES)):
        panels.line(i, t, result["L"][0, i], "L_t", COLOURS[4], width=1)
        panels.line(i, t, result["norm2"][0, i], "‖w‖², measured", COLOURS[0], **MEASURED)
        panels.predicted(i, t, theory[:, i], "‖w‖², predicted")
    panels.figure.update_xaxes(title_text="step", row=2)
    how = f" {1 / (1 - config.momentum):.0f} times faster" if config.momentum else ", whatever L_t does"
    return panels.titled(f"{config.optimizer_name}: ‖w‖² follows its equilibrium{how}")


def mapped(result: Result[Config], seed: int, shape: int) -> Array:
    """Return ‖w‖² of the first steps by the map (130) or (131), driven by the measured gradients."""
    config = result.config
    h = result["h_early"][seed, shape]
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "norm2": config.start}
    if config.momentum == 0:
        return sgd_map(h, **settings).norm2
    return sgdm_map(h, momentum=config.momentum, **settings).norm2


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether settled ‖w‖² is that predicted for the current L, and whether the paper's map leads there."""
    config = result.config
    settled = [
        agrees(f"‖w‖²/sqrt(E L_t) after settling, L_t {shape}", config.unit_norm2, result["settled"][:, i], within=0.03)
        for i, shape in enumerate(SHAPES)
    ]
    paths = np.array([[mapped(result, s, i) for i in range(len(SHAPES))] for s in range(config.seeds)])
    errors = np.abs(result["norm2_early"] / paths - 1).max((1, 2))
    equation = "(131)" if config.momentum else "(130)"
    sentence = f"largest relative distance of ‖w‖² from the map {equation} in the first {EARLY} steps"
    return [*settled, at_most(sentence, 1e-3, errors)]
