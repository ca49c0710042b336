"""How well a random walk describes the training of a ResNet and of a GPT with AdamW (RE Figures 9 and 10).

Four assumptions are measured at a constant learning rate: gradients are orthogonal to weights and to past updates,
scaled gradients have the length √C, and their radial part adds little to weight decay. Norm and rotation in equilibrium
follow from them. The figure shows single neurons, as in the paper. The claims are about means over the neurons of a
layer. Differences from the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels and a GPT of two narrow layers on
Shakespeare. Quick runs have 500 and 1,200 steps, and products of learning rate and weight decay of 1e-2 and 2.5e-3, so
that norms settle. The medium GPT has byte pairs, the paper's learning rate and weight decay (5e-4 and 0.5, product
2.5e-4) and 12,000 steps, which is 3 times 1/(lr·wd) (paper: 3.75). The medium ResNet has a product of 1e-3 (paper:
1e-4) and 5 times 1/(lr·wd) (paper: 7.8). A GPT is judged by kind of layer, because the gradient adds to the decay of
some kinds and reduces that of others. Corrections by the measured λ_u and C_err are those of RE (89) to (91).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.theory.sensitivity import decay_error
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import train_and_read
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._correction import correct
from gyroscope_lab.re._networks import BYTE_PAIR_GPT, GPT, RESNET
from gyroscope_lab.re._tracked import (
    course,
    course_axis,
    hidden_layers,
    mean_during,
    neuron_course,
    over_prediction,
    relative_error,
)

CLAIMS = {
    "fig9": "The random walk describes convolutions of a ResNet (RE Figure 9)",
    "fig10": "The random walk describes linear layers of a small GPT, with an effective decay (RE Figure 10)",
}
COST = {
    "fig9": {"quick": "40 s", "medium": "4 min", "paper": "a day of a GPU"},
    "fig10": {"quick": "1 min", "medium": "8 min", "paper": "a day of a GPU"},
}
# Rows of the figure: quantity, statistic over the neurons, title.
ROWS = (
    ("grad_weight_cosine", "mean", "cosine of gradient and weights"),
    ("grad_momentum_cosine", "mean", "cosine of gradient and momentum"),
    ("scaled_grad_norm", "rms", "scaled gradient over √C"),
    ("lambda_u", "mean", "λ_u over weight decay"),
    ("norm", "rms", "norm"),
    ("angular_update", "rms", "angle per step, rad"),
)
SECOND_HALF = (0.5, 1.0)
# Kinds of a GPT's layers, by parts of their names.
KINDS = {
    "queries and keys": ("[q]", "[k]"),
    "values and attention output": ("[v]", "attention.out"),
    "feed-forward layers": ("feed_forward",),
}


@dataclass(frozen=True)
class Config:
    """A training at a constant learning rate, and two layers. One neuron of each is drawn."""

    settings: dict[str, Any]
    shown: tuple[str, str]
    seeds: int = 3

    @property
    def normalised(self) -> bool:
        """Whether a norm follows every hidden layer."""
        return "gpt" not in self.settings["model"]


def _config(settings: dict[str, Any], shown: tuple[str, str], seeds: int = 3) -> Config:
    return Config({**settings, "neurons": "|".join(shown)}, shown, seeds)


# λ_u of one step is mostly noise: it is measured often.
_STEPS = {"schedule": "constant", "steps": 500, "optimizer": "adamw", "sample_every": 4}
_CONVOLUTIONS = ("blocks.0.conv2.weight", "blocks.2.conv2.weight")
_LINEAR_LAYERS = ("blocks.0.feed_forward.inner.weight", "blocks.1.feed_forward.out.weight")
QUICK = {
    "fig9": _config({**RESNET, **_STEPS, "lr": 1e-2, "weight_decay": 1.0}, _CONVOLUTIONS, seeds=7),
    "fig10": _config({**GPT, **_STEPS, "lr": 2e-3, "weight_decay": 1.25, "steps": 1200}, _LINEAR_LAYERS, seeds=5),
}
MEDIUM = {
    "fig9": _config(
        {**RESNET, **_STEPS, "lr": 1e-2, "weight_decay": 0.1, "steps": 5000, "augment": True}, _CONVOLUTIONS, seeds=7
    ),
    "fig10": _config(
        {**BYTE_PAIR_GPT, **_STEPS, "lr": 5e-4, "weight_decay": 0.5, "steps": 12_000, "sample_every": 8},
        _LINEAR_LAYERS,
        seeds=5,
    ),
}
PAPER = {
    "fig9": _config(preset("re/resnet20-constant"), _CONVOLUTIONS),
    "fig10": _config(preset("re/gpt-constant"), _LINEAR_LAYERS),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Return courses of two neurons, (neurons, points), and means over the second half for all hidden layers."""
    config = trial.config
    settings = {**config.settings, "seed": trial.seed, "evaluations": 1}
    return train_and_read(trial, settings, lambda run: _assumptions(run, config.shown))


def _assumptions(run: Run, shown: tuple[str, ...]) -> Measurements:
    hidden = hidden_layers(run)
    series = {quantity: [run.series(layer, quantity, stat) for layer in hidden] for quantity, stat, _ in ROWS}
    courses = {
        f"{quantity}_course": [neuron_course(run, layer, quantity) for layer in shown] for quantity, _, _ in ROWS
    }
    means = {
        quantity: [mean_during(run, values, SECOND_HALF) for values in several] for quantity, several in series.items()
    }
    for quantity in ("norm", "angular_update"):
        predictions = [run.series(layer, f"predicted_{quantity}") for layer in shown]
        courses[f"predicted_{quantity}"] = [course(run, values) for values in predictions]
        ratios = [over_prediction(run, layer, quantity) for layer in hidden]
        means[f"{quantity}_ratio"] = [mean_during(run, values, SECOND_HALF) for values in ratios]
    kinds = [[any(part in layer for part in parts) for layer in hidden] for parts in KINDS.values()]
    return {**courses, **means, "is_kind": kinds}


def plot(result: Result[Config]) -> Figure:
    """Draw six quantities of both neurons for the first seed, with those of a random walk."""
    config = result.config
    panels = Panels(*(title for *_, title in ROWS), rows=3, vertical_spacing=0.09, horizontal_spacing=0.09)
    t, axis = course_axis(config.settings)
    for panel, (quantity, _, _) in enumerate(ROWS):
        unit = config.settings["weight_decay"] if quantity == "lambda_u" else 1.0
        for layer, (name, colour) in enumerate(zip(config.shown, COLOURS, strict=False)):
            values = result[f"{quantity}_course"][0, layer] / unit
            panels.line(panel, t, values, f"first neuron of {name}", colour, width=1.5)
            if f"predicted_{quantity}" in result.values:
                predicted = result[f"predicted_{quantity}"][0, layer]
                panels.predicted(panel, t, predicted, f"random walk, {name}", colour, width=1.2)
        if f"predicted_{quantity}" not in result.values:
            panels.level(panel, 1.0 if quantity == "scaled_grad_norm" else 0.0, width=1.2)
    panels.figure.update_xaxes(title_text=axis, row=3)
    panels.figure.update_yaxes(exponentformat="power")
    network = "ResNet" if config.normalised else "GPT"
    title = f"A random walk beside the training of a {network} with AdamW at a constant learning rate"
    return panels.titled(title).update_layout(height=900)


def corrections(result: Result[Config]) -> tuple[Array, Array]:
    """Return factors of rotation and norm that follow from the measured λ_u and C_err: (seeds, layers) each."""
    error = decay_error(result.config.settings["weight_decay"], result["lambda_u"])
    one = np.ones_like(error)
    law = correct(one, one, decay_error=error, gradient_error=result["scaled_grad_norm"] ** 2)
    return np.asarray(law.angular_update), np.asarray(law.norm)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the assumptions in a normalised network, or the gradient's share of the decay in a GPT."""
    return _normalised(result) if result.config.normalised else _poorly_normalised(result)


def _mean_errors(result: Result[Config]) -> tuple[Array, Array, Array, Array]:
    """Return errors of rotation and norm by the law, and of both with the corrections: means of layers, by seed."""
    angle = result["angular_update_ratio"]
    norm = result["norm_ratio"]
    angle_factor, norm_factor = corrections(result)
    one = np.ones_like(angle)
    pairs = ((angle, one), (norm, one), (angle, angle_factor), (norm, norm_factor))
    first, second, third, fourth = (relative_error(*pair).mean(1) for pair in pairs)
    return first, second, third, fourth


def _normalised(result: Result[Config]) -> list[Claim]:
    weight_decay = result.config.settings["weight_decay"]
    angle, norm, corrected_angle, corrected_norm = _mean_errors(result)
    return [
        at_most("largest |cosine of gradient and weights| of a layer", 0.01, np.abs(result[ROWS[0][0]]).max(1)),
        at_most("largest |cosine of gradient and momentum| of a layer", 0.1, np.abs(result[ROWS[1][0]]).max(1)),
        agrees("scaled gradient over √C, mean of the layers", 1.0, result["scaled_grad_norm"].mean(1), within=0.1),
        at_most("|λ_u| over weight decay, mean of the layers", 0.1, np.abs(result["lambda_u"]).mean(1) / weight_decay),
        at_most("error of the rotation, mean of the layers", 0.05, angle),
        at_most("error of the norm, mean of the layers", 0.05, norm),
        at_most("error of the rotation with measured λ_u", 0.05, corrected_angle),
        at_most("error of the norm with measured λ_u and C_err", 0.05, corrected_norm),
    ]


def _of_kind(result: Result[Config], quantity: str, kind: str) -> Array:
    """Return the mean over the layers of a kind, seed by seed."""
    chosen = result["is_kind"][:, list(KINDS).index(kind)]
    return np.asarray((result[quantity] * chosen).sum(1) / chosen.sum(1))


def _poorly_normalised(result: Result[Config]) -> list[Claim]:
    angle, norm, corrected_angle, corrected_norm = _mean_errors(result)
    weight_decay = result.config.settings["weight_decay"]
    by_kind = []
    for kind in KINDS:
        lambda_u = _of_kind(result, "lambda_u", kind) / weight_decay
        rotation = _of_kind(result, "angular_update_ratio", kind)
        by_kind += [
            at_most(f"λ_u over weight decay, {kind}: below 0", 0.0, lambda_u),
            at_most(f"rotation over prediction, {kind}: below 1", 1.0, rotation),
        ]
    return [
        *by_kind,
        at_most("scaled gradient over √C, mean of the layers: below 1", 1.0, result["scaled_grad_norm"].mean(1)),
        at_most("cosine of gradient and momentum, mean of the layers: below 0", 0.0, result[ROWS[1][0]].mean(1)),
        at_most("error of the rotation, mean of the layers", 0.1, angle),
        at_most("error of the norm, mean of the layers", 0.1, norm),
        at_least("error of the rotation less that with measured λ_u", 0.0, angle - corrected_angle),
        at_least("error of the norm less that with measured λ_u, C_err", 0.0, norm - corrected_norm),
    ]
