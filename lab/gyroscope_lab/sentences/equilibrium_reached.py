"""A run reaches equilibrium when the forecast says: rotation is then as predicted, if a norm follows the layer (ours).

The forecast is made from hyper-parameters and initial norms. A layer settles at the first step at which its norm is
within 10 % of its equilibrium. The experiment compares the share of the run until then, forecast and measured, in the
median layer. After that step, and until two thirds of the run, rotation should be that of equilibrium. Layers without a
norm after them are the contrast. Their loss depends on their scale, so the theory does not cover them. Runs have a
warmup of 5 % and a cosine. Tolerances were fixed before the run: 10 points of the run, and 15 % of the angle.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_and_read
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.sentences._networks import NETWORKS
from gyroscope_lab.sentences.short_run import weight_decay_for

COST = {"quick": "3 min", "paper": "1 h"}
# Relative distance of a norm from its equilibrium at which a layer counts as settled, as in `theory.forecast`.
SETTLED = 0.1
# Largest difference of the settling time, as a share of the run.
TIME_TOLERANCE = 0.1
ANGLE_TOLERANCE = 0.15
# Share of the run after which a cosine lets layers fall out of equilibrium.
LATE = 2 / 3
LENGTHS = (1.0, 6.0)
# Layers that a norm follows, by network.
NORMALISED = {"GPT": r"\[[qk]\]$", "ResNet-8": r"conv", "MLP": r"^features"}
# Here every network has norms, and the memory of its second moment is shorter than its run.
CHANGES: dict[str, dict[str, Any]] = {
    "GPT": {"model": "gpt:layers=2,width=64,context=32,qk_norm=true", "lr": 3e-3, "steps": 1000},
    "ResNet-8": {"steps": 800},
    "MLP": {"norm": "batch", "steps": 1600},
}


@dataclass(frozen=True)
class Config(Arms):
    """Arms are a network and a run length in memories."""

    networks: tuple[str, ...] = ()
    lengths: tuple[float, ...] = ()


def _name(network: str, length: float) -> str:
    return f"{network}, {length:g} memories"


def compared(
    networks: dict[str, dict[str, Any]], lengths: tuple[float, ...] = LENGTHS, times: int = 1, seeds: int = 3
) -> Config:
    """Return every network at every run length, in so many times its steps."""
    arms: dict[str, dict[str, Any]] = {}
    for network, settings in networks.items():
        steps = times * settings["steps"]
        timed = {**settings, "betas": (0.9, 0.95), "steps": steps, "warmup": steps // 20}
        for length in lengths:
            arms[_name(network, length)] = {**timed, "weight_decay": weight_decay_for(timed, length)}
    return Config({"optimizer": "adamw", "evaluations": 1}, arms, seeds, tuple(networks), lengths)


TRIED = {name: {**settings, **CHANGES[name]} for name, settings in NETWORKS.items()}
QUICK = compared(TRIED)
PAPER = compared(TRIED, times=10)


def measure(trial: Trial[Config]) -> Measurements:
    """Train one arm, and compare settling times and rotation with the forecast."""
    network = trial.part.partition(",")[0]
    settings = {**trial.config.base, **trial.config.arms[trial.part], "seed": trial.seed}
    measured = train_and_read(trial, settings, lambda run: read(run, NORMALISED[network], settings["steps"]))
    return {name: value for name, value in measured.items() if name != "accuracy"}


def read(run: Run, normalised: str, steps: int) -> Measurements:
    """Return settling times and rotation over prediction, for layers before a norm and for all others."""
    before_norm = [layer for layer in run.layers if re.search(normalised, layer)]
    others = [layer for layer in run.layers if layer not in before_norm]
    settling = np.array([settling_shares(run, layer, steps) for layer in before_norm])
    forecast, measured = np.median(settling, axis=0)
    return {
        "forecast_share": forecast,
        "measured_share": measured,
        "rotation": rotation_ratio(run, before_norm, forecast * steps, steps),
        "other_rotation": rotation_ratio(run, others, forecast * steps, steps),
    }


def settling_shares(run: Run, layer: str, steps: int) -> tuple[float, float]:
    """Return the share of the run until a layer settles, forecast and measured. It is 1 if it never settles."""
    equilibrium = run.series(layer, "predicted_norm")
    shares = []
    for norm in (run.series(layer, "forecast_norm"), run.series(layer, "norm", "rms")):
        settled = np.abs(norm / equilibrium - 1) <= SETTLED
        shares.append(float(run.steps[settled.argmax()] / steps) if settled.any() else 1.0)
    return shares[0], shares[1]


def rotation_ratio(run: Run, layers: list[str], settled: float, steps: int) -> float:
    """Return rotation over prediction of the median layer in equilibrium, or NaN if the run does not reach it."""
    window = (run.steps >= settled) & (run.steps <= LATE * steps)
    if not window.any():
        return float("nan")
    ratios = []
    for layer in layers:
        angle = run.series(layer, "angular_update", "rms")[window]
        predicted = run.series(layer, "predicted_angular_update")[window]
        ratios.append(np.sqrt(np.mean((angle / predicted) ** 2)))
    return float(np.median(ratios))


def differences(result: Result[Config], arm: str) -> Array:
    """Return how far the measured settling time is from the forecast, as a share of the run."""
    return np.abs(of_arm(result, "measured_share", arm) - of_arm(result, "forecast_share", arm))


def plot(result: Result[Config]) -> Figure:
    """Draw the measured settling time over the forecast, and rotation in equilibrium."""
    panels = Panels("settling time, % of the run", "rotation over prediction, after it")
    for network, colour in zip(result.config.networks, COLOURS, strict=False):
        for length in result.config.lengths:
            arm = _name(network, length)
            forecast = 100 * of_arm(result, "forecast_share", arm)
            panels.dots(0, forecast, 100 * of_arm(result, "measured_share", arm), network, colour)
            at = np.full(len(forecast), length)
            panels.dots(1, at, of_arm(result, "rotation", arm), network, colour)
            hollow = {"symbol": "circle-open"}
            panels.dots(1, at, of_arm(result, "other_rotation", arm), f"{network}, no norm after it", colour, **hollow)
    panels.predicted(0, [0, 100], [0, 100], "forecast")
    panels.level(1, 1.0)
    panels.figure.update_xaxes(title_text="forecast", row=1, col=1)
    panels.figure.update_yaxes(title_text="measured", row=1, col=1)
    panels.figure.update_xaxes(title_text="run length in memories", type="log", row=1, col=2)
    return panels.titled("When a run reaches equilibrium")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the settling time of each arm, and its rotation afterwards if it is forecast to settle."""
    judged = []
    for arm in result.config.parts:
        sentence = f"{arm}: distance of the settling time from the forecast, as a share of the run"
        judged.append(at_most(sentence, TIME_TOLERANCE, differences(result, arm)))
        if of_arm(result, "forecast_share", arm).max() < LATE:
            sentence = f"{arm}: rotation over prediction in equilibrium"
            judged.append(agrees(sentence, 1.0, of_arm(result, "rotation", arm), within=ANGLE_TOLERANCE))
    return judged
