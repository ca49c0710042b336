"""In a GPT under Muon and AdamW, scale-invariant matrices turn within 10 % of prediction in small batches (ours).

One run, one tracker: Muon steps the matrices of the blocks, AdamW the embedding and the head. Predictions are those of
the update rules, from lr, weight decay and shapes alone. They assume gradients that are noise: in a larger batch the
signal is a larger part, and the distance from the prediction is claimed to grow. The embedding and the head are not
scale-invariant. They are shown.
"""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import AdamW, Optimizer

import gyroscope as gyro
from gyroscope import theory
from gyroscope._types import Array
from gyroscope.lab.beyond._normalised_gpt import MATRICES, NormalisedGPT
from gyroscope.lab.claims import Claim, agrees, at_least
from gyroscope.lab.experiment import Measurements, Result, Trial
from gyroscope.lab.figures import COLOURS, INK, Figure, Panels
from gyroscope.lab.tasks.text import standard_library
from gyroscope.store import Run
from gyroscope.theory.law import Equilibrium

COST = {"quick": "2 min", "paper": "1 h"}
# How far a matrix may be off its prediction.
WITHIN = 0.1
# Steps from one sample to the next.
SAMPLE_EVERY = 5
# Layers of AdamW: not scale-invariant.
OTHERS = ("token.weight", "head.weight")


@dataclass(frozen=True)
class Config:
    """A small GPT at several batch sizes, the smallest first; both optimizers forget in the same number of steps."""

    steps: int
    batches: tuple[int, ...]
    seeds: int = 3
    blocks: int = 2
    width: int = 64
    heads: int = 2
    context: int = 32
    decay: float = 5e-3
    """lr·λ of both optimizers: what a step takes away of every weight."""
    muon_lr: float = 0.05
    adamw_lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)

    @property
    def parts(self) -> tuple[int, ...]:
        """One batch size after the other."""
        return self.batches

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the scale-invariant ones, which Muon steps."""
        return tuple(f"blocks.{block}.{name}.weight" for block in range(self.blocks) for name in MATRICES)

    @property
    def layers(self) -> tuple[str, ...]:
        """All that is measured and predicted."""
        return self.matrices + OTHERS

    def predicted(self, layer: str) -> Equilibrium:
        """By the rule of the layer's optimizer."""
        if layer in OTHERS:
            rule = theory.AdamW(self.adamw_lr, self.decay / self.adamw_lr, self.betas)
            return rule.equilibrium(fan_in=self.width)
        return theory.Muon(self.muon_lr, self.decay / self.muon_lr).equilibrium(shape=self.shape(layer))

    def predicted_norm(self, layer: str) -> float:
        """Of one neuron, as it is measured; Muon's equilibrium is that of the whole matrix."""
        norm = float(self.predicted(layer).norm or 0.0)
        return norm if layer in OTHERS else norm / self.shape(layer)[0] ** 0.5

    def shape(self, matrix: str) -> tuple[int, int]:
        """Rows and columns."""
        _, _, name, _ = matrix.split(".")
        rows = 4 * self.width if name == "up" else self.width
        columns = 4 * self.width if name == "down" else self.width
        return rows, columns


# Five times the 200 steps in which weights are forgotten.
QUICK = Config(steps=1000, batches=(2, 32))
PAPER = Config(steps=8000, batches=(2, 8, 32, 128), decay=1e-3, blocks=4, width=128, heads=4, context=64)


def measure(trial: Trial[Config]) -> Measurements:
    """RMS rotation and RMS norm of every layer, over the second half of the run; the mean loss there."""
    config = trial.config
    text, _ = standard_library().split()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        model = NormalisedGPT(
            text.alphabet, blocks=config.blocks, width=config.width, heads=config.heads, context=config.context
        )
    muon, adamw = make_optimizers(config, model)
    generator = trial.generator()
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(model, [muon, adamw], folder, every=SAMPLE_EVERY) as tracker:
            for _ in trial.steps(config.steps):
                model.zero_grad()
                loss = model.loss(*text.batch(trial.part, config.context, generator))
                torch.autograd.backward(loss)
                muon.step()
                adamw.step()
                tracker.log(loss=loss.detach())
        with tracker.run as run:
            return read(run, config.layers)


def make_optimizers(config: Config, model: NormalisedGPT) -> tuple[Optimizer, Optimizer]:
    """torch's Muon for the blocks, torch's AdamW for the rest; positions are no weight, and do not decay."""
    muon = torch.optim.Muon(model.blocks.parameters(), lr=config.muon_lr, weight_decay=config.decay / config.muon_lr)
    weights = [model.token.weight, model.head.weight]
    groups = [
        {"params": weights, "weight_decay": config.decay / config.adamw_lr},
        {"params": [model.position], "weight_decay": 0.0},
    ]
    return muon, AdamW(groups, lr=config.adamw_lr, betas=config.betas)


def read(run: Run, layers: tuple[str, ...]) -> Measurements:
    """What was measured of these layers in the second half of a run."""
    late = run.steps >= run.steps[-1] / 2

    def rms(layer: str, quantity: str) -> float:
        return float(np.sqrt(np.mean(run.series(layer, quantity, "rms")[late] ** 2)))

    steps, losses = run.scalar("loss")
    return {
        "angle": [rms(layer, "angular_update") for layer in layers],
        "norm": [rms(layer, "norm") for layer in layers],
        "loss": losses[steps >= steps[-1] / 2].mean(),
    }


def ratios(result: Result[Config], quantity: str) -> Array:
    """Measured over predicted, (seeds, batches, layers)."""
    config = result.config
    if quantity == "angle":
        predicted = [config.predicted(layer).angular_update for layer in config.layers]
    else:
        predicted = [config.predicted_norm(layer) for layer in config.layers]
    return result[quantity] / np.array(predicted, float)


def plot(result: Result[Config]) -> Figure:
    """Rotation and norm of every layer over their predictions, at each batch size; a dot for each seed."""
    config = result.config
    panels = Panels("rotation", "norm", rows=2, shared_xaxes=True, vertical_spacing=0.08)
    names = [layer.removesuffix(".weight").removeprefix("blocks.") for layer in config.layers]
    for panel, quantity in enumerate(("angle", "norm")):
        of_all = ratios(result, quantity)
        for i, batch in enumerate(config.batches):
            # Batches side by side within the place of a layer.
            place = np.arange(len(names)) + 0.5 * ((i + 0.5) / len(config.batches) - 0.5)
            symbols = ["circle" if layer in config.matrices else "circle-open" for layer in config.layers]
            for of_seed in of_all[:, i]:
                panels.dots(panel, place, of_seed, f"batch {batch}", COLOURS[i], symbol=symbols, size=7)
        panels.level(panel, 1.0)
    panels.figure.add_hrect(1 - WITHIN, 1 + WITHIN, fillcolor=INK, opacity=0.07, line_width=0, **panels.place(0))
    panels.figure.update_xaxes(tickvals=np.arange(len(names)), ticktext=names)
    panels.figure.update_yaxes(title_text="over prediction")
    title = "A GPT under Muon and AdamW; filled: scale-invariant; shaded: within 10 %"
    return panels.titled(title).update_layout(height=680)


def claims(result: Result[Config]) -> list[Claim]:
    """Each matrix within 10 % in the smallest batch; all of them together farther off in the largest."""
    config = result.config
    judged = []
    for i, layer in enumerate(config.matrices):
        angle = float(config.predicted(layer).angular_update or 0.0)
        sentence = f"batch {config.batches[0]}: rotation of {layer}, rad per step"
        judged.append(agrees(sentence, angle, result["angle"][:, 0, i], within=WITHIN))
    off = np.abs(ratios(result, "angle")[..., : len(config.matrices)] - 1).mean(-1)
    farther = off[:, -1] - off[:, 0]
    sentence = f"mean distance of a matrix from its prediction, batch {config.batches[-1]} minus {config.batches[0]}"
    return [*judged, at_least(sentence, 0.0, farther)]
