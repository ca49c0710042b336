"""At the end of a cosine, norms under AdamW fall and gradients grow. Corrected decay keeps both, at no loss (ours).

With λ·lr_t/lr_max instead of λ (AdamC, Defazio 2025), the equilibrium norm does not depend on lr_t. Weights start at
their equilibrium norms. Norms and gradients are those of a CNN's convolutions, which are scale-invariant because of
BatchNorm. In a run of 400 steps on a part of CIFAR-10, both norms end 13 % above their forecast, and their ratio is as
forecast.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from gyroscope.optim.schedulers import CorrectedDecay
from gyroscope.theory import AdamW, cosine, forecast
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import capped_loss
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels, shown_steps
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.optimizers import make_optimizers
from gyroscope_lab.training.problems import make_problem
from gyroscope_lab.training.start import prepare_weights

COST = {"quick": "30 s", "paper": "1 h"}
KINDS = ("plain", "corrected")
POINTS = 100
# That of a convolution with 16 input channels. The ratio of norms hardly depends on it.
FAN_IN = 144


@dataclass(frozen=True)
class Config:
    """A CNN under AdamW and a cosine to zero, with plain weight decay and with corrected."""

    base: dict[str, Any]
    steps: int
    lr: float = 1e-2
    weight_decay: float = 0.5
    seeds: int = 3
    parts: ClassVar = KINDS

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of training, without the seed."""
        rule = {"optimizer": "adamw", "lr": self.lr, "weight_decay": self.weight_decay, "start": "equilibrium"}
        return {**self.base, **rule, "steps": self.steps, "schedule": "cosine"}

    def norms(self, kind: str) -> Array:
        """Return the predicted norm after every step, from equilibrium at the peak."""
        rule = AdamW(self.lr, self.weight_decay, corrected_decay=kind == "corrected")
        norm = rule.equilibrium(fan_in=FAN_IN).norm
        assert norm is not None  # the fan-in determines it
        return np.asarray(forecast(rule, cosine(self.steps), norm=norm, fan_in=FAN_IN, unit_grad_norm=1.0).norm)


# A part of CIFAR-10 at a quarter of its resolution.
QUICK = Config({"task": "cifar10", "shrink": 4, "model": "cnn:width=16", "batch_size": 64}, steps=400, seeds=5)
PAPER = Config({"task": "cifar10", "model": "cnn:width=64"}, steps=5000, weight_decay=0.1)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure the norm of all convolutions and of their gradient at every step, and the held-out loss at the end."""
    config = trial.config
    settings = TrainConfig.from_dict({**config.settings, "seed": trial.seed})
    problem = make_problem(settings, None, torch.device("cpu"))
    [optimizer] = make_optimizers(settings, problem.model)
    prepare_weights(settings, problem, [optimizer])
    multiplier = cosine(config.steps)
    scheduler: Any = LambdaLR(optimizer, lambda step: float(multiplier(min(step, config.steps - 1))))
    if trial.part == "corrected":
        scheduler = CorrectedDecay(optimizer, scheduler)
    convolutions = [parameter for parameter in problem.model.parameters() if parameter.dim() == 4]
    norms = np.zeros(config.steps)
    gradients = np.zeros(config.steps)
    for step in trial.steps(config.steps):
        optimizer.zero_grad()
        torch.autograd.backward(problem.loss(problem.model, step)[0])
        gradients[step] = _norm([parameter.grad for parameter in convolutions])
        optimizer.step()
        scheduler.step()
        norms[step] = _norm(convolutions)
    return {
        "norm": norms[shown_steps(config.steps, POINTS)],
        "gradient": [part.mean() for part in np.array_split(gradients, POINTS)],
        "loss": capped_loss(problem.evaluate(problem.model)["validation_loss"]),
    }


def _norm(tensors: list[Any]) -> float:
    return float(torch.sqrt(sum((tensor.detach() ** 2).sum() for tensor in tensors)))


def plot(result: Result[Config]) -> Figure:
    """Draw norm and gradient over the run, as means of the seeds, and the loss at the end."""
    config = result.config
    panels = Panels("norm, over that at the start", "norm of the gradient", "loss", column_widths=[0.4, 0.4, 0.2])
    shown = shown_steps(config.steps, POINTS)
    for i, kind in enumerate(KINDS):
        norms = result["norm"][:, i]
        predicted = config.norms(kind)
        panels.line(0, shown + 1, (norms / norms[:, :1]).mean(0), f"{kind} weight decay", COLOURS[i])
        panels.predicted(0, shown + 1, predicted[shown] / predicted[0], "predicted", COLOURS[i])
        panels.line(1, shown + 1, result["gradient"][:, i].mean(0), f"{kind} weight decay", COLOURS[i])
        panels.dots(2, [kind] * config.seeds, result["loss"][:, i], colour=COLOURS[i])
    panels.figure.update_xaxes(title_text="step", col=1)
    panels.figure.update_xaxes(title_text="step", col=2)
    return panels.titled("The end of a cosine under AdamW, with plain and with corrected weight decay")


def claims(result: Result[Config]) -> list[Claim]:
    """Claim that norms end as predicted, that gradients grow only with plain decay, and that the loss is no worse."""
    half = POINTS // 2
    plain, corrected = result["gradient"][:, 0], result["gradient"][:, 1]
    rise = [kind[:, -half // 5 :].mean(1) / kind[:, half - half // 5 : half].mean(1) for kind in (plain, corrected)]
    judged = []
    for i, kind in enumerate(KINDS):
        predicted = result.config.norms(kind)
        ratio = float(predicted[-1] / predicted[0])
        measured = result["norm"][:, i, -1] / result["norm"][:, i, 0]
        judged.append(agrees(f"{kind} decay: norm at the end over that at the start", ratio, measured, within=0.1))
    return [
        *judged,
        at_least(
            "gradient in the last tenth over that before the middle: plain over corrected", 1.2, rise[0] / rise[1]
        ),
        at_most(
            "loss with corrected decay over that with plain decay", 1.0, result["loss"][:, 1] / result["loss"][:, 0]
        ),
    ]
