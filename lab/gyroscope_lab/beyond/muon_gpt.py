"""In a GPT under Muon and AdamW, scale-invariant matrices rotate within 10 % of prediction in small batches (ours).

Each run has one tracker. Muon updates the matrices of the blocks, and AdamW the embedding and the head. Predictions
follow from the update rules, with lr, weight decay and shapes alone. They assume that gradients are noise. In a larger
batch the signal is a larger part, so the distance from the prediction is claimed to grow. The embedding and the head
are not scale-invariant. They are compared with a forecast from their initial norms, because they are far from
equilibrium.

At first AdamW forgot as fast as Muon, and one matrix was more than 10 % off. After that, AdamW got its usual weight
decay of 0.1. The original setting is kept as the third.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import AdamW, Optimizer

import gyroscope as gyro
from gyroscope import theory
from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.beyond._normalised_gpt import MATRICES, NormalisedGPT
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels
from gyroscope_lab.tasks.text import standard_library

COST = {"quick": "3 min", "paper": "1 h"}
# How far a matrix may be off its prediction.
WITHIN = 0.1
# Steps from one sample to the next.
SAMPLE_EVERY = 5
# The layers of AdamW, and RMS norms of their rows before the first step: torch's initialisation.
INITIAL_SIZES: dict[str, Callable[[int], float]] = {
    "token.weight": lambda width: width**0.5,
    "head.weight": lambda width: 3**-0.5,
}


@dataclass(frozen=True)
class BatchAndDecay:
    """The settings that differ between runs: the batch, and the weight decay of AdamW."""

    batch: int
    adamw_weight_decay: float = 0.1


@dataclass(frozen=True)
class Config:
    """A small GPT: in a small batch, in a large one, and in the small one with AdamW as forgetful as Muon."""

    steps: int
    small: int = 2
    large: int = 32
    seeds: int = 3
    blocks: int = 2
    width: int = 64
    heads: int = 2
    context: int = 32
    muon_lr: float = 0.05
    muon_weight_decay: float = 0.1
    adamw_lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)

    @property
    def parts(self) -> tuple[BatchAndDecay, ...]:
        """One run after the other."""
        as_muon = self.muon_lr * self.muon_weight_decay / self.adamw_lr
        return BatchAndDecay(self.small), BatchAndDecay(self.large), BatchAndDecay(self.small, as_muon)

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the scale-invariant matrices, which Muon updates."""
        return tuple(f"blocks.{block}.{name}.weight" for block in range(self.blocks) for name in MATRICES)

    @property
    def layers(self) -> tuple[str, ...]:
        """All that is measured and predicted."""
        return (*self.matrices, *INITIAL_SIZES)

    def shape(self, matrix: str) -> tuple[int, int]:
        """Return the numbers of rows and columns."""
        _, _, name, _ = matrix.split(".")
        rows = 4 * self.width if name == "up" else self.width
        columns = 4 * self.width if name == "down" else self.width
        return rows, columns

    def predicted(self, layer: str, setting: BatchAndDecay) -> tuple[float, float]:
        """Return rotation and norm in the second half of the run, by the rule of the layer's optimizer."""
        if layer not in INITIAL_SIZES:
            eq = theory.Muon(self.muon_lr, self.muon_weight_decay).equilibrium(shape=self.shape(layer))
            return float(eq.angular_update or 0.0), float(eq.norm or 0.0)
        rule = theory.AdamW(self.adamw_lr, setting.adamw_weight_decay, self.betas)
        norm = INITIAL_SIZES[layer](self.width)
        forecast = theory.forecast(rule, steps=self.steps, norm=norm, fan_in=self.width)
        late = slice(self.steps // 2, None)
        return root_mean_square(forecast.angular_update[late]), root_mean_square(forecast.norm[late])


# Four times the 200 steps in which Muon's weights are forgotten.
QUICK = Config(steps=800)
PAPER = Config(steps=8000, muon_lr=0.02, blocks=4, width=128, heads=4, context=64)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure RMS rotation and RMS norm of every layer and the mean loss, over the second half of the run."""
    config = trial.config
    text, _ = standard_library().split()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        model = NormalisedGPT(
            text.alphabet, blocks=config.blocks, width=config.width, heads=config.heads, context=config.context
        )
    muon, adamw = make_optimizers(config, trial.part, model)
    generator = trial.generator()
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(model, [muon, adamw], folder, every=SAMPLE_EVERY) as tracker:
            for _ in trial.steps(config.steps):
                model.zero_grad()
                loss = model.loss(*text.batch(trial.part.batch, config.context, generator))
                torch.autograd.backward(loss)
                muon.step()
                adamw.step()
                tracker.log(loss=loss.detach())
        with tracker.run as run:
            return read(run, config.layers)


def make_optimizers(config: Config, setting: BatchAndDecay, model: NormalisedGPT) -> tuple[Optimizer, Optimizer]:
    """Return torch's Muon for the blocks and torch's AdamW for the rest. Positions do not decay."""
    muon = torch.optim.Muon(model.blocks.parameters(), lr=config.muon_lr, weight_decay=config.muon_weight_decay)
    groups = [
        {"params": [model.token.weight, model.head.weight], "weight_decay": setting.adamw_weight_decay},
        {"params": [model.position], "weight_decay": 0.0},
    ]
    return muon, AdamW(groups, lr=config.adamw_lr, betas=config.betas)


def read(run: Run, layers: tuple[str, ...]) -> Measurements:
    """Return the measurements of these layers in the second half of a run."""
    late = run.steps >= run.steps[-1] / 2
    steps, losses = run.scalar("loss")
    return {
        "angle": [root_mean_square(run.series(layer, "angular_update", "rms")[late]) for layer in layers],
        "norm": [root_mean_square(run.series(layer, "norm", "rms")[late]) for layer in layers],
        "loss": losses[steps >= steps[-1] / 2].mean(),
    }


def root_mean_square(values: Array) -> float:
    """Return √(mean of squares)."""
    return float(np.sqrt(np.mean(values**2)))


def ratios(result: Result[Config]) -> Array:
    """Return rotation and norm over their predictions, (2, seeds, settings, layers)."""
    config = result.config
    predicted = np.array([[config.predicted(layer, part) for layer in config.layers] for part in config.parts])
    return np.stack([result["angle"] / predicted[..., 0], result["norm"] / predicted[..., 1]])


def plot(result: Result[Config]) -> Figure:
    """Draw rotation and norm of every layer over their predictions in each setting, a dot for each seed."""
    config = result.config
    panels = Panels("rotation", "norm", rows=2, shared_xaxes=True, vertical_spacing=0.08)
    names = [layer.removesuffix(".weight").removeprefix("blocks.") for layer in config.layers]
    symbols = ["circle" if layer in config.matrices else "circle-open" for layer in config.layers]
    for panel, of_all in enumerate(ratios(result)):
        for i, part in enumerate(config.parts):
            # Settings side by side within the place of a layer.
            place = np.arange(len(names)) + 0.25 * (i - 1)
            label = f"batch {part.batch}, weight decay of AdamW {part.adamw_weight_decay:.3g}"
            for of_seed in of_all[:, i]:
                panels.dots(panel, place, of_seed, label, COLOURS[i], symbol=symbols, size=7)
        panels.level(panel, 1.0)
    panels.figure.add_hrect(1 - WITHIN, 1 + WITHIN, fillcolor=INK, opacity=0.07, line_width=0, **panels.place(0))
    panels.figure.update_xaxes(tickvals=np.arange(len(names)), ticktext=names)
    panels.figure.update_yaxes(title_text="over prediction", type="log", tickvals=[0.2, 0.5, 0.8, 1, 1.25, 2, 5])
    title = "A GPT under Muon and AdamW (filled: scale-invariant, shaded: within 10 %)"
    return panels.titled(title).update_layout(height=680)


def claims(result: Result[Config]) -> list[Claim]:
    """Claim that each matrix is within 10 % in the small batch, and that all are farther off in the large one."""
    config = result.config
    small, large, _ = config.parts
    judged = []
    for i, matrix in enumerate(config.matrices):
        angle, _ = config.predicted(matrix, small)
        sentence = f"batch {small.batch}: rotation of {matrix}, rad per step"
        judged.append(agrees(sentence, angle, result["angle"][:, 0, i], within=WITHIN))
    off = np.abs(ratios(result)[0, ..., : len(config.matrices)] - 1)
    farther = off[:, 1].mean(-1) - off[:, 0].mean(-1)
    sentence = f"mean distance of a matrix from its prediction, batch {large.batch} minus {small.batch}"
    judged.append(at_least(sentence, 0.0, farther))
    sentence = f"batch {small.batch}, AdamW as forgetful as Muon: the matrix farthest off its prediction"
    return [*judged, at_most(sentence, WITHIN, off[:, 2].max(-1))]
