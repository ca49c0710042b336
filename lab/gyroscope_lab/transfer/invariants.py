"""The map of transfer: rotation, norm and run length of every rule within 3 % for scale-invariant vectors (ours).

Gradients of the weight vectors are noise, orthogonal to the vectors and proportional to 1/norm. Rules for AdamW are
tested with torch's AdamW, rules for SGD with torch's SGD with momentum, and rules of the sphere with Hyperball around
AdamW. The noise falls with the square root of the batch. Vectors start at the equilibrium norm. The run length is
measured by how fast directions are forgotten. The cosine between a direction and itself some steps later decays as
exp(-steps/memory), if there are many more steps than momentum averages over. Rules that give the same settings are
tried once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope.theory import SGDM, AdamW, Hyperball, Scale, UpdateRule, match, transfer
from gyroscope.theory.transfer_rows import TransferRow
from gyroscope.theory.transfer_rules import RULES
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._forgetting import forgetting_rate

COST = {"quick": "9 min", "paper": "1 h"}
WITHIN = 0.03
QUANTITIES = ("rotation", "norm", "run length")
CHANGES = (("batch", 0.25), ("batch", 4.0), ("tokens", 0.25), ("tokens", 4.0), ("width", 8.0))
# SGD's momentum averages weight decay too. With m = 0.9 the memory would be shorter than predicted by the share
# lr·wd·m/(1-m)², which is 9 % at four times the batch.
SGD_MOMENTUM = 0.5
# Optimizer, axis, factor and rule of a walk.
Walk = tuple[str, str, float, str]


def rules_of(family: str, axis: str) -> tuple[str, ...]:
    """Return the rules of a family that cover an axis. Copied settings count for every family.

    >>> rules_of("adam", "width"), rules_of("sgd", "batch")
    (('copy', 'mup', 'independent', 'fan'), ('copy', 'linear'))
    """
    return tuple(rule.name for rule in RULES if axis in rule.speaks_of and rule.family in ("any", family))


@dataclass(frozen=True)
class Config:
    """A tuned run of vectors, with a memory of 1/(lr·weight_decay) steps under every optimizer."""

    vectors: int
    steps: int
    lr: float = 0.01
    weight_decay: float = 0.25
    betas: tuple[float, float] = (0.9, 0.99)
    batch: int = 16
    fan_in: int = 32
    seeds: int = 3

    @property
    def parts(self) -> tuple[Walk, ...]:
        """Optimizer, axis, factor and rule of each walk."""
        changes = [(family, axis, factor) for family in ("adam", "sphere") for axis, factor in CHANGES]
        changes += [("sgd", axis, factor) for axis, factor in CHANGES if axis == "batch"]
        walks: dict[Any, Walk] = {}
        for change in changes:
            for name in rules_of(*change[:2]):
                row, _ = self.promised(*change, name)
                walks.setdefault((*change, row.lr, row.weight_decay, row.betas), (*change, name))
        return tuple(walks.values())

    def tuned(self, family: str) -> UpdateRule:
        """Return the tuned settings of a family's optimizer, with the memory of AdamW's."""
        adamw = AdamW(self.lr, self.weight_decay, self.betas)
        if family == "sphere":
            return match(adamw, Hyperball, betas=self.betas).rule
        if family == "sgd":
            return SGDM(self.lr, self.weight_decay * (1 - SGD_MOMENTUM), SGD_MOMENTUM)
        return adamw

    def promised(self, family: str, axis: str, factor: float, name: str) -> tuple[TransferRow, Scale]:
        """Return the prediction of a rule, and the new size."""
        sizes = {"batch": self.batch, "tokens": self.batch * self.steps, "width": self.fan_in}
        base = Scale(**sizes)
        to = Scale(**{**sizes, axis: sizes[axis] * factor})
        moved = transfer(self.tuned(family), base=base, to=to)
        return next(row for row in moved.rows if row.name == name), to


QUICK = Config(vectors=64, steps=6000)
PAPER = Config(vectors=128, steps=16000)


def measure(trial: Trial[Config]) -> Measurements:
    """Walk at the new size with the settings of a rule. Return rotation, norm and run length over their predictions."""
    config = trial.config
    row, to = config.promised(*trial.part)
    assert row.rotation
    assert row.run_length
    assert row.memory
    rule = row.applied_to(config.tuned(trial.part[0]))
    fan_in = round(to.width or 0)
    # Noise of variance 1/batch in all directions but one.
    settled = rule.equilibrium(fan_in=fan_in, unit_grad_norm=((fan_in - 1) / to.batch) ** 0.5)
    norm = 1.0 if settled.norm is None else float(settled.norm)
    generator = trial.generator()
    weights = torch.nn.Parameter(torch.randn(config.vectors, fan_in, generator=generator))
    weights.data *= norm / weights.detach().norm(dim=1, keepdim=True)
    optimizer = _optimizer(rule, weights)
    squares, angles, directions = [], [], []
    for _ in trial.steps(round(to.steps)):
        noise = torch.randn(weights.shape, generator=generator) / to.batch**0.5
        size = weights.detach().norm(dim=1, keepdim=True)
        unit = weights.detach() / size
        weights.grad = (noise - (noise * unit).sum(1, keepdim=True) * unit) / size
        optimizer.step()
        cosine = torch.cosine_similarity(unit, weights.detach()).clamp(max=1.0)
        angles.append(float(torch.arccos(cosine).square().mean()))
        squares.append(float(weights.detach().square().sum(1).mean()))
        directions.append(unit)
    # The first tenth is left out, in which momentum builds up.
    late = len(angles) // 10
    forgotten = forgetting_rate(torch.stack(directions[late:]), row.memory / to.batch)
    return {
        "over_promise": [
            np.sqrt(np.mean(angles[late:])) / row.rotation,
            np.sqrt(np.mean(squares[late:])) / norm,
            to.steps * forgotten / row.run_length,
        ]
    }


def _optimizer(rule: UpdateRule, weights: torch.nn.Parameter) -> Optimizer:
    """Return torch's optimizer with the settings of a rule."""
    if isinstance(rule, SGDM):
        return torch.optim.SGD([weights], lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay)
    betas = rule.settings["betas"]
    optimizer = torch.optim.AdamW([weights], lr=rule.lr, betas=betas, weight_decay=rule.weight_decay)
    if isinstance(rule, Hyperball):
        return gyro.optim.Rotational(optimizer, mode="hyperball", granularity="neuron")
    return optimizer


def plot(result: Result[Config]) -> Figure:
    """Draw each quantity over its prediction, by rule and change."""
    panels = Panels(*QUANTITIES, rows=3, shared_xaxes=True, vertical_spacing=0.06)
    labels = [_described(part) for part in result.config.parts]
    for panel in range(len(QUANTITIES)):
        for of_seed in result["over_promise"][..., panel]:
            panels.dots(panel, labels, of_seed, colour=COLOURS[panel], size=6)
        panels.level(panel, 1.0)
    panels.figure.update_yaxes(title_text="over promise")
    return panels.titled("Scale-invariant vectors: measured over what the map promises").update_layout(height=860)


def _described(part: Walk) -> str:
    family, axis, factor, name = part
    optimizer = {"adam": "", "sphere": "Hyperball, ", "sgd": "SGDM, "}[family]
    return f"{optimizer}{axis} × {factor:g}, {name}"


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the distance of each rule from its prediction."""
    off = np.abs(result["over_promise"] - 1)
    return [
        at_most(f"{_described(part)}: {quantity}, distance from the map", WITHIN, off[:, i, number])
        for i, part in enumerate(result.config.parts)
        for number, quantity in enumerate(QUANTITIES)
    ]
