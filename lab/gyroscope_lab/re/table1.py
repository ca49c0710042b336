"""Norm, rotation and update size in equilibrium: AdamW and SGDM (RE Table 1), Lion (70-72), Adam with L2 (84, 87)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gyroscope.theory import UpdateRule
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels
from gyroscope_lab.re._appendix_j import NAMES, layer_equilibrium, optimizers, relative_spread
from gyroscope_lab.simulate import Trajectory, network, random_gammas, random_walk, unit_grad_norm

COST = {"quick": "40 s", "paper": "40 min"}
# From the simplest to the one of the paper's Figure 8.
SYSTEMS = ("white noise", "unit gammas", "random gammas")
LOSS_SCALES = (0.1, 1.0, 10.0)
QUANTITIES = ("norm", "angle", "update")
# Where RE has the leading order of each optimizer.
SOURCES = {"AdamW": "Table 1", "SGDM": "Table 1", "Lion": "(70)-(72)", "Adam+L2": "(84), (87)"}


@dataclass(frozen=True)
class Config:
    """Tangent white noise, and the simple system with unit and with random gammas.

    A batch of 128 gives nearly Gaussian gradients, which Lion's prediction assumes (results/beyond/lion_batch.json).
    """

    speedup: float
    steps: int
    vectors: int
    seeds: int = 3
    fan_in: int = 128
    batch: int = 128
    parts: ClassVar = SYSTEMS

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight matrix."""
        return self.vectors, self.fan_in

    @property
    def settings(self) -> list[tuple[UpdateRule, float]]:
        """Every optimizer at every loss scale."""
        return [(rule, scale) for rule in optimizers(self.speedup) for scale in LOSS_SCALES]


# Ten times the decay of the paper, fewer vectors.
QUICK = Config(speedup=10, steps=6000, vectors=48)
# The decay and the vectors of Appendix J, longer.
PAPER = Config(speedup=1, steps=50_000, vectors=128)


def measure(trial: Trial[Config]) -> Measurements:
    """Return (optimizers, loss scales) of the second half of a run, after three timescales or more, by vector.

    The update is the whole step ‖w' - w‖. Table 1 gives only the gradient's part, which is larger by about a²/(2η_r²),
    with the decay per step a. That is half a percent at the quick size, and one percent under Lion.
    """
    settled = _walk(trial).averages(after=trial.config.steps // 2)
    values = {
        "norm": settled.layer_norm,
        "angle": settled.layer_angular_update,
        "update": settled.layer_step_length,
        "gradient": settled.unit_grad_norm,
        "spread": relative_spread(settled.angular_update),
    }
    return {name: value.reshape(len(NAMES), len(LOSS_SCALES), *value.shape[1:]) for name, value in values.items()}


def _walk(trial: Trial[Config]) -> Trajectory:
    """Simulate all optimizers and loss scales at once, in the system of the trial."""
    config = trial.config
    rules, scales = (list(column) for column in zip(*config.settings, strict=True))
    options: dict[str, Any] = {"shape": config.shape, "every": 20, "average": 4, **trial.walk(config.steps)}
    if trial.part == "white noise":
        gradients = [unit_grad_norm(config.shape, config.batch, scale) for scale in scales]
        return random_walk(rules, norm=0.6, unit_grad_norm=gradients, **options)
    gammas = random_gammas(config.shape, trial.seed) if trial.part == "random gammas" else None
    return network(rules, batch=config.batch, gammas=gammas, loss_scale=scales, **options)


def predicted(result: Result[Config], system: str, leading_order: bool) -> dict[str, Array]:
    """Return norm, angle and update size, (optimizers, loss scales).

    They follow from hyper-parameters alone. Only random gammas need the measured gradient norm of every vector.
    """
    config = result.config
    gradients = np.array([[unit_grad_norm(config.shape, config.batch, scale)] for _, scale in config.settings])
    if system == "random gammas":
        measured = result["gradient"][:, SYSTEMS.index(system)]
        gradients = measured.transpose(1, 2, 0, 3).reshape(len(config.settings), -1)
    values = [
        layer_equilibrium(rule, config.fan_in, gradient, leading_order)
        for (rule, _), gradient in zip(config.settings, gradients, strict=True)
    ]
    shaped = np.array(values).T.reshape(3, len(NAMES), len(LOSS_SCALES))
    return dict(zip(QUANTITIES, shaped, strict=True))


def plot(result: Result[Config]) -> Figure:
    """Draw measured over predicted by the paper's leading order (circles) and by the exact law (crosses)."""
    titles = [f"{quantity}: {system}" for quantity in ("norm", "angle") for system in SYSTEMS]
    panels = Panels(*titles, rows=2, shared_yaxes=True, horizontal_spacing=0.03)
    x: Any = [np.repeat(NAMES, len(LOSS_SCALES)), [f"{scale:g}" for scale in LOSS_SCALES] * len(NAMES)]
    for panel in range(len(titles)):
        row, system = divmod(panel, len(SYSTEMS))
        quantity = QUANTITIES[row]
        for leading, symbol, name in ((True, "circle-open", "paper"), (False, "x-thin-open", "exact law")):
            ratio = result[quantity][:, system] / predicted(result, SYSTEMS[system], leading)[quantity]
            colour = COLOURS[0 if leading else 1]
            panels.dots(panel, x, ratio.mean(0).ravel(), name, colour, symbol=symbol, size=9, line={"width": 2})
    panels.figure.add_hline(y=1, line={"width": 1, "color": INK})
    panels.figure.update_xaxes(tickfont={"size": 10}, tickangle=0)
    return panels.titled("Measured over predicted, by optimizer and loss scale").update_layout(height=700)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the paper's formulas and the exact law, dependence on the gradient's scale, and evenness over vectors."""
    return [*_values(result), *_scales(result), *_evenness(result)]


def _values(result: Result[Config]) -> list[Claim]:
    """Judge values at loss scale 1 with unit gammas."""
    system = SYSTEMS.index("unit gammas")
    scale = LOSS_SCALES.index(1.0)
    paper, exact = (predicted(result, "unit gammas", leading) for leading in (True, False))
    judged = []
    for i, name in enumerate(NAMES):
        for quantity in QUANTITIES:
            value = result[quantity][:, system, i, scale]
            sentence = f"{quantity} under {name} ({SOURCES[name]})"
            judged.append(agrees(sentence, paper[quantity][i, scale], value, within=0.05))
            if quantity != "update":  # its size comes from the rule, and only its share of the norm from the law
                law = exact[quantity][i, scale]
                judged.append(agrees(f"{quantity} under {name} (exact, ours)", law, value, within=0.02))
    return judged


def _scales(result: Result[Config]) -> list[Claim]:
    sentence = "largest over smallest angle of all loss scales"
    judged = []
    for system, gammas in enumerate(SYSTEMS[1:], start=1):
        angle = result["angle"][:, system]
        ratio = angle.max(2) / angle.min(2)
        judged += [at_most(f"{sentence}, {name}, {gammas}", 1.02, ratio[:, i]) for i, name in enumerate(NAMES[:3])]
    law = predicted(result, "unit gammas", False)["angle"][3]
    angle = result["angle"][:, 1, 3]
    ratio = angle.max(1) / angle.min(1)
    return [*judged, agrees(f"{sentence}, Adam+L2, unit gammas (ours)", law.max() / law.min(), ratio, within=0.03)]


def _evenness(result: Result[Config]) -> list[Claim]:
    scale = LOSS_SCALES.index(1.0)
    spread = result["spread"][:, :, :, scale]
    even = np.maximum(spread[:, 1, 0], spread[:, 1, 1])
    unit, random = (_error(result, system, scale) for system in (1, 2))
    return [
        at_most("spread of the angle over vectors, AdamW, unit gammas", 0.02, spread[:, 1, 0]),
        at_most("spread of the angle over vectors, SGDM, unit gammas", 0.02, spread[:, 1, 1]),
        at_least("spread under Adam+L2 with random gammas over the larger of these", 5.0, spread[:, 2, 3] / even),
        at_least("error of (87) for Adam+L2 with random gammas less that with unit gammas", 0.0, random - unit),
    ]


def _error(result: Result[Config], system: int, scale: int) -> Array:
    """Return the error of (87) for Adam+L2, seed by seed, because each seed has other gammas."""
    rule = optimizers(result.config.speedup)[3]
    gradients = result["gradient"][:, system, 3, scale]
    predictions = [
        layer_equilibrium(rule, result.config.fan_in, gradient, leading_order=True) for gradient in gradients
    ]
    angles = np.array([angle for _, angle, _ in predictions])
    return np.asarray(np.abs(result["angle"][:, system, 3, scale] / angles - 1))
