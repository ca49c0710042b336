"""Scale-sensitive layers follow an effective weight decay: a CNN without norms and one standardised (RE Figure 11).

Differences from the paper: four narrow convolutions on a part of CIFAR-10 of 8 × 8 pixels replace VGG-13. The optimizer
is SGDM too, with ten times the weight decay, so that norms settle within 800 steps. Medium runs have 4,000 steps, 20
times the time in which a norm adapts (paper: 39). Values are means over the neurons of a convolution. The paper shows
two neurons. λ_u is measured from the gradient (94), and λ_e = λ + λ_u replaces λ. λ_u of one step is mostly noise, so
it is averaged over 22 % of the run in the figure and over mid-run in the claims.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.theory.sensitivity import decay_error
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._correction import correct
from gyroscope_lab.re._tracked import course, course_axis, hidden_layers, mean_during, relative_error, smoothed

COST = {"quick": "1 min", "medium": "6 min", "paper": "2 h of a GPU"}
ARMS: dict[str, dict[str, Any]] = {"without norms": {"norm": "none"}, "weights standardised": {"norm": "weight"}}
QUANTITIES = {"angle": "angular_update", "norm": "norm"}
# Points of a course over which λ_u is averaged for the figure.
SMOOTHING = 11


@dataclass(frozen=True)
class Config(Arms):
    """The same convolutions without norms, and with standardised weights."""


_SETTINGS = {
    "task": "cifar10",
    "shrink": 4,
    "model": "cnn:width=16",
    # He's initial norms for ReLU, of which torch's are the part 1/√3.
    "init_scale": 1.7,
    "batch_size": 32,
    "steps": 800,
    "warmup": 50,
    "optimizer": "sgd",
    "lr": 0.1,
    "weight_decay": 5e-3,
    # λ_u of one step is mostly noise.
    "sample_every": 2,
}
QUICK = Config(_SETTINGS, ARMS, seeds=5)
MEDIUM = Config({**_SETTINGS, "steps": 4000, "warmup": 250}, ARMS, seeds=10)
PAPER = Config(preset("re/vgg13"), ARMS)


def measure(trial: Trial[Config]) -> Measurements:
    """Return courses of each convolution, (layers, points), and means over mid-run, (layers,)."""
    return train_arm(trial, _dynamics)


def _dynamics(run: Run) -> Measurements:
    hidden = hidden_layers(run)
    series = {name: [run.series(layer, of, "rms") for layer in hidden] for name, of in QUANTITIES.items()}
    series |= {f"predicted_{name}": [run.series(layer, f"predicted_{of}") for layer in hidden]
               for name, of in QUANTITIES.items()}  # fmt: skip
    series["lambda_u"] = [run.series(layer, "lambda_u") for layer in hidden]
    return {
        **{f"{name}_course": [course(run, values) for values in several] for name, several in series.items()},
        **{name: [mean_during(run, values) for values in several] for name, several in series.items()},
    }


def _lambda_err(result: Result[Config], arm: str) -> Array:
    """Return λ_e/λ of the layers in mid-run, averaged over their neurons."""
    return np.asarray(decay_error(result.config.base["weight_decay"], of_arm(result, "lambda_u", arm)))


def _lambda_err_course(result: Result[Config], arm: str) -> Array:
    """Return λ_e/λ of the layers over time, averaged over their neurons and `SMOOTHING` points."""
    courses = smoothed(of_arm(result, "lambda_u_course", arm), SMOOTHING)
    return np.asarray(decay_error(result.config.base["weight_decay"], courses))


def corrected(result: Result[Config], arm: str, quantity: str) -> Array:
    """Return predicted rotation or norm in mid-run with λ_e instead of λ."""
    angle, norm = (of_arm(result, f"predicted_{name}", arm) for name in QUANTITIES)
    law = correct(angle, norm, decay_error=_lambda_err(result, arm), norm_power=0.25)
    return np.asarray(law.angular_update if quantity == "angle" else law.norm)


def corrected_course(result: Result[Config], arm: str, quantity: str) -> Array:
    """Return the same over time. Norms depend on gradient norms, which are averaged over `SMOOTHING` points too."""
    angle, norm = (of_arm(result, f"predicted_{name}_course", arm) for name in QUANTITIES)
    law = correct(angle, smoothed(norm, SMOOTHING), decay_error=_lambda_err_course(result, arm), norm_power=0.25)
    return np.asarray(law.angular_update if quantity == "angle" else law.norm)


def plot(result: Result[Config]) -> Figure:
    """Draw λ_u, norm and rotation of the convolutions with the least and the most radial gradient."""
    radial = np.abs(of_arm(result, "lambda_u", "without norms")).mean(0)
    layers = (int(radial.argmin()), int(radial.argmax()))
    rows = ("λ_u over weight decay", "norm", "angle per step, rad")
    titles = [f"{row}, convolution {layer + 1}" for row in rows for layer in layers]
    panels = Panels(*titles, rows=3, vertical_spacing=0.09)
    t, axis = course_axis(result.config.base)
    for arm, colour in zip(result.config.parts, COLOURS, strict=False):
        for column, layer in enumerate(layers):
            share = _lambda_err_course(result, arm)[0, layer] - 1
            panels.line(column, t, share, arm, colour)
            for row, quantity in ((1, "norm"), (2, "angle")):
                panel = 2 * row + column
                panels.line(panel, t, of_arm(result, f"{quantity}_course", arm)[0, layer], arm, colour)
                predicted = corrected_course(result, arm, quantity)[0, layer]
                panels.predicted(panel, t, predicted, f"predicted with λ_e, {arm}", colour, width=1.3)
    panels.figure.update_xaxes(title_text=axis, row=3)
    return panels.titled("SGDM on a network without norms, and with standardised weights").update_layout(height=900)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether standardised weights follow λ, and whether weights without a norm follow λ_e."""
    plain = "without norms"
    standardised = "weights standardised"
    share = np.abs(_lambda_err(result, plain) - 1)
    course_share = np.abs(_lambda_err_course(result, plain) - 1).mean(1)
    late_less_early = course_share[:, -10:].mean(1) - course_share[:, :10].mean(1)
    judged = [
        at_most(
            f"largest |λ_u| of a layer over λ, {standardised}",
            0.05,
            np.abs(_lambda_err(result, standardised) - 1).max(1),
        ),
        at_least(f"largest |λ_u| of a layer over λ, {plain}", 0.2, share.max(1)),
        at_least(f"|λ_u| over λ, last fifth of the run less the first, {plain}", 0.0, late_less_early),
    ]
    for quantity, words in (("angle", "rotation"), ("norm", "norm")):
        ratio = of_arm(result, quantity, standardised) / of_arm(result, f"predicted_{quantity}", standardised)
        judged.append(
            agrees(f"{words} over prediction, mean of layers, {standardised}", 1.0, ratio.mean(1), within=0.1)
        )
        measured = of_arm(result, quantity, plain)
        by_decay = relative_error(measured, of_arm(result, f"predicted_{quantity}", plain)).mean(1)
        by_effective = relative_error(measured, corrected(result, plain, quantity)).mean(1)
        judged += [
            at_most(f"error of the {words} with λ_e, mean of layers, {plain}", 0.1, by_effective),
            at_least(f"error of the {words} with λ less that with λ_e, {plain}", 0.0, by_decay - by_effective),
        ]
    return judged
