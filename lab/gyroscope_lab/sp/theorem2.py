"""Any step is an image step on the sphere, by the effective learning rate along c⊥, exactly (SP Theorem 2, Table 1)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from gyroscope.geometry import Split
from gyroscope.optim import AdamSRT
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels, shown_steps
from gyroscope_lab.sp import _sphere
from gyroscope_lab.sp._effective_step import effective_step
from gyroscope_lab.sp._normalised_layer import PAPER_LAYER, LayerConfig, draw, generic
from gyroscope_lab.tasks.teacher_student import TeacherStudent, directions

COST = {"quick": "10 s", "paper": "1 min"}
COVERS = ("sp/table1",)
SCHEMES = ("SGD", "SGD + L2", "SGD-M", "Adam", "Adam-SRT")
# How often lr is halved to read the order of the exponential map's error.
HALVINGS = 6
POINTS = 150


@dataclass(frozen=True, kw_only=True)
class Config(LayerConfig):
    """Neurons of a normalised layer that imitate a teacher, under five optimizers."""

    steps: int = 300
    lr: float = 0.3
    adam_lr: float = 0.03
    weight_decay: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    parts: ClassVar = SCHEMES

    def optimizer(self, scheme: str, weight: Tensor) -> Optimizer:
        """Return the optimizer of a scheme, as torch or the library has it."""
        if scheme == "Adam":
            return Adam([weight], self.adam_lr, self.betas, weight_decay=self.weight_decay)
        if scheme == "Adam-SRT":
            return AdamSRT([weight], self.adam_lr, self.betas, weight_decay=self.weight_decay)
        momentum = self.momentum if scheme == "SGD-M" else 0.0
        return SGD([weight], self.lr, momentum, weight_decay=0.0 if scheme == "SGD" else self.weight_decay)


QUICK = Config()
PAPER = Config(**PAPER_LAYER, steps=1000)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure the errors of (12), (13) and Table 1 at every step of a scheme, then that of the exponential map (10)."""
    config = trial.config
    task, weight = draw(trial)
    weight.requires_grad_()
    optimizer = config.optimizer(trial.part, weight)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("angle", "direction", "radius", "table", "radial")}
    for k in trial.steps(config.steps):
        x = weight.detach().clone()
        weight.grad = task.gradient(weight)
        a, b = generic(optimizer, weight, k)
        predicted = effective_step(x.numpy(), a.numpy(), b.numpy(), optimizer.param_groups[0]["lr"])
        optimizer.step()
        after = weight.detach()
        angle = Split().angle(x, after)
        c_norm = torch.from_numpy(np.linalg.norm(predicted.direction, axis=-1))
        rows["angle"].append(angle.mean())
        rows["direction"].append((directions(weight) - torch.from_numpy(predicted.next_direction)).norm(dim=1).max())
        grown = after.norm(dim=1) / x.norm(dim=1)
        rows["radius"].append((grown / torch.from_numpy(predicted.radius_ratio) - 1).abs().max())
        effective = angle.tan() / c_norm
        rows["table"].append((effective / table1(config, trial.part, x, a, b) - 1).abs().max())
        rows["radial"].append(torch.from_numpy(1 - predicted.radial_factor).abs().max())
    worst = {name: torch.stack(values).max().item() for name, values in rows.items() if name != "angle"}
    angles = torch.stack(rows["angle"])[shown_steps(config.steps, POINTS)]
    return worst | {"angle": angles.numpy(), "map_error": _map_errors(task, weight)}


def table1(config: Config, scheme: str, x: Tensor, a: Tensor, b: Tensor) -> Any:
    """Return the effective learning rate by SP's Table 1."""
    r = x.norm(dim=1)
    rms = b.square().mean(1).sqrt()
    radial = (r.unsqueeze(1) * a / (b / rms.unsqueeze(1)) * directions(x)).sum(1)
    wd = config.weight_decay
    rates: dict[str, Callable[[], Any]] = {
        "SGD": lambda: _sphere.sgd_learning_rate(config.lr, r.numpy()),
        "SGD + L2": lambda: _sphere.sgd_learning_rate(config.lr, r.numpy(), wd),
        "SGD-M": lambda: _sphere.sgdm_learning_rate(config.lr, r.numpy(), radial.numpy()),
        "Adam": lambda: _sphere.adam_learning_rate(config.adam_lr, r.numpy(), (r * rms).numpy(), radial.numpy()),
        "Adam-SRT": lambda: _sphere.adam_srt_learning_rate(config.adam_lr, r.numpy(), (r * rms).numpy(), wd),
    }
    return torch.from_numpy(rates[scheme]())


def _map_errors(task: TeacherStudent, weight: Tensor) -> list[float]:
    """Return how far real SGD steps are from the exponential map of -η_e·c⊥, as lr is halved repeatedly."""
    x = weight.detach()
    g = task.gradient(weight)
    largest = 0.5 * float((x.norm(dim=1) / g.norm(dim=1)).min())  # rotates the fastest row by arctan(0.5)
    errors = []
    for halving in range(HALVINGS):
        lr = largest / 2**halving
        copy = x.clone().requires_grad_()
        copy.grad = g
        SGD([copy], lr).step()
        predicted = effective_step(x.numpy(), g.numpy(), 1.0, lr)
        velocity = -predicted.learning_rate[:, None] * predicted.direction
        reached = torch.from_numpy(_sphere.exponential_map(x.numpy(), velocity))
        errors.append(float((directions(copy) - reached).norm(dim=1).max()))
    return errors


def plot(result: Result[Config]) -> Figure:
    """Draw how much each scheme rotates, and how the error of the exponential map falls."""
    panels = Panels("angle per step, rad", "error of the exponential map (10)")
    t = shown_steps(result.config.steps, POINTS)
    for i, scheme in enumerate(SCHEMES):
        panels.line(0, t, result["angle"][0, i], scheme, COLOURS[i])
    halvings = 0.5 ** np.arange(1, HALVINGS + 1)
    errors = result["map_error"][0, 0]
    panels.dots(1, halvings, errors, "measured", size=9)
    panels.predicted(1, halvings, errors[-1] * (halvings / halvings[-1]) ** 3, "third order")
    panels.figure.update_yaxes(DECADES)
    panels.figure.update_xaxes(title_text="step", col=1)
    panels.figure.update_xaxes(title_text="η_e‖c⊥‖ of the fastest row", type="log", dtick=math.log10(2), col=2)
    return panels.titled("Steps of five optimizers are steps on the sphere")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the exactness of (12), (13) and Table 1, and the order of (10)."""
    factor = result["map_error"][:, 0, -2] / result["map_error"][:, 0, -1]
    return [
        at_most("largest error of the next direction (12), all schemes", 1e-9, result["direction"].max(1)),
        at_most("largest relative error of the next radius (13), all schemes", 1e-9, result["radius"].max(1)),
        *(
            at_most(f"largest relative error of Table 1's effective rate, {scheme}", 1e-6, result["table"][:, i])
            for i, scheme in enumerate(SCHEMES)
        ),
        at_most("largest |A⟨c,u⟩|, which must stay below 1, all schemes", 1.0, result["radial"].max(1)),
        agrees("error of the exponential map (10) per halving of lr, order 3", 2.0**3, factor, within=0.05),
    ]
