"""The map of transfer: rotation, norm and run length of every rule within 3 % for scale-invariant vectors (ours).

Weight vectors see gradients that are noise, orthogonal to them and in proportion to 1/norm, under torch's AdamW. The
noise falls as the root of the batch. Vectors start at the norm of equilibrium. The run length is measured by how fast
directions are forgotten: the cosine between a direction and itself some steps later decays as exp(-steps/memory), once
the steps are many against those that momentum averages.
"""

from dataclasses import dataclass
from math import log

import numpy as np
import torch

from gyroscope.theory import AdamW, Scale, transfer
from gyroscope.theory.scaling import TransferRow
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._rules_trial import COMPARED

COST = {"quick": "1 min", "paper": "10 min"}
WITHIN = 0.03
QUANTITIES = ("rotation", "norm", "run length")
# Rules with the axis and the factor that they are tried on. linear-lr is not in the library's table.
CHANGES = (("batch", 0.25), ("batch", 4.0), ("tokens", 0.25), ("tokens", 4.0), ("width", 2.0), ("width", 4.0))


@dataclass(frozen=True)
class Config:
    """A tuned run of vectors: memory of 1/(lr·weight_decay) steps."""

    vectors: int
    steps: int
    lr: float = 0.01
    weight_decay: float = 0.5
    betas: tuple[float, float] = (0.9, 0.99)
    batch: int = 16
    fan_in: int = 64
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[str, float, str], ...]:
        """Axis, factor and rule of each walk."""
        return tuple((axis, factor, name) for axis, factor in CHANGES for name in COMPARED[axis] if name != "linear-lr")

    def promised(self, axis: str, factor: float, name: str) -> tuple[TransferRow, Scale]:
        """Return what the map says of a rule, and the new size."""
        sizes = {"batch": self.batch, "tokens": self.batch * self.steps, "width": self.fan_in}
        base = Scale(**sizes)
        to = Scale(**{**sizes, axis: sizes[axis] * factor})
        moved = transfer(AdamW(self.lr, self.weight_decay, self.betas), base=base, to=to)
        return next(row for row in moved.rows if row.name == name), to


QUICK = Config(vectors=32, steps=2000)
PAPER = Config(vectors=64, steps=8000)


def measure(trial: Trial[Config]) -> Measurements:
    """Walk at the new size with the settings of a rule. Return rotation, norm and run length over those promised."""
    config = trial.config
    row, to = config.promised(*trial.part)
    assert row.rotation
    assert row.rms_entry
    assert row.run_length
    assert row.memory
    fan_in = round(to.width or 0)
    norm = row.rms_entry * fan_in**0.5
    generator = trial.generator()
    weights = torch.nn.Parameter(torch.randn(config.vectors, fan_in, generator=generator))
    weights.data *= norm / weights.detach().norm(dim=1, keepdim=True)
    groups = row.groups["hidden"]
    optimizer = torch.optim.AdamW([weights], lr=groups.lr, weight_decay=groups.weight_decay, betas=config.betas)
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
    forgotten = _forgetting_rate(torch.stack(directions[late:]), row.memory / to.batch)
    return {
        "over_promise": [
            np.sqrt(np.mean(angles[late:])) / row.rotation,
            np.sqrt(np.mean(squares[late:])) / norm,
            to.steps * forgotten / row.run_length,
        ]
    }


def _forgetting_rate(directions: torch.Tensor, memory: float) -> float:
    """Return 1/memory from the cosines of directions (steps, vectors, entries) over half a memory and over a whole."""
    short = max(round(memory / 2), 1)
    long = 2 * short
    logs = [log(float((directions[lag:] * directions[:-lag]).sum(2).mean())) for lag in (short, long)]
    return (logs[0] - logs[1]) / (long - short)


def plot(result: Result[Config]) -> Figure:
    """Return each quantity over its promise, by rule and change."""
    panels = Panels(*QUANTITIES, rows=3, shared_xaxes=True, vertical_spacing=0.06)
    labels = [f"{name}, {axis} × {factor:g}" for axis, factor, name in result.config.parts]
    for panel in range(len(QUANTITIES)):
        for of_seed in result["over_promise"][..., panel]:
            panels.dots(panel, labels, of_seed, colour=COLOURS[panel], size=6)
        panels.level(panel, 1.0)
    panels.figure.update_yaxes(title_text="over promise")
    return panels.titled("Scale-invariant vectors: measured over what the map promises").update_layout(height=760)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge for each change and quantity the mean distance of all rules from what was promised."""
    off = np.abs(result["over_promise"] - 1)
    judged = []
    for axis, factor in CHANGES:
        chosen = [i for i, part in enumerate(result.config.parts) if part[:2] == (axis, factor)]
        for number, quantity in enumerate(QUANTITIES):
            sentence = f"{axis} × {factor:g}: {quantity}, distance from the map, mean over rules"
            judged.append(at_most(sentence, WITHIN, off[:, chosen, number].mean(1)))
    return judged
