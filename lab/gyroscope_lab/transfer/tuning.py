"""AdamW's settings of the trials are the best of a grid, on seeds that no trial is judged by (ours)."""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._networks import Tuned, make_problem
from gyroscope_lab.transfer._training import FIRST_TUNING_SEED, adamw, groups_of, train

CLAIMS = {
    "tuning_gpt": "GPT: the tuned settings are within 0.02 nats of the best of a grid",
    "tuning_mlp": "MLP: the tuned settings are within 0.02 nats of the best of a grid",
    "tuning_cnn": "CNN: the tuned settings are within 0.02 nats of the best of a grid",
    "tuning_fashion": "MLP on Fashion-MNIST: the tuned settings are within 0.02 nats of the best of a grid",
}
COST = {
    "tuning_gpt": {"quick": "2 min", "paper": "6 min"},
    "tuning_mlp": {"quick": "30 s", "paper": "6 min"},
    "tuning_cnn": {"quick": "2 min", "paper": "6 min"},
    "tuning_fashion": {"quick": "1 min", "paper": "3 min"},
}
WITHIN = 0.02


@dataclass(frozen=True)
class Config:
    """A network at the size of its tuned run, and the grid."""

    tuned: Tuned
    lrs: tuple[float, ...]
    weight_decays: tuple[float, ...]
    seeds: int = 2

    @property
    def parts(self) -> tuple[tuple[float, float], ...]:
        """Learning rate and weight decay of each training."""
        return tuple((lr, decay) for lr in self.lrs for decay in self.weight_decays)


TUNED = {
    "gpt": Tuned("gpt", width=32, batch=16, steps=600, lr=1e-2, weight_decay=0.3),
    "mlp": Tuned("mlp", width=64, batch=32, steps=1000, lr=3e-3, weight_decay=0.1),
    "cnn": Tuned("cnn", width=16, batch=32, steps=600, lr=1e-2, weight_decay=0.1),
    "fashion": Tuned("fashion", width=64, batch=32, steps=1000, lr=3e-3, weight_decay=0.1),
}
QUICK = {
    "tuning_gpt": Config(TUNED["gpt"], (5e-3, 1e-2, 2e-2), (0.1, 0.3, 1.0)),
    "tuning_mlp": Config(TUNED["mlp"], (1e-3, 3e-3, 1e-2), (0.03, 0.1, 0.3)),
    "tuning_cnn": Config(TUNED["cnn"], (5e-3, 1e-2, 2e-2), (0.03, 0.1, 0.3)),
    "tuning_fashion": Config(TUNED["fashion"], (1e-3, 3e-3, 1e-2), (0.03, 0.1, 0.3)),
}
PAPER = {name: replace(config, seeds=3 * config.seeds) for name, config in QUICK.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one point of the grid. Return the loss on data held out."""
    tuned = trial.config.tuned
    lr, decay = trial.part
    seed = FIRST_TUNING_SEED + trial.seed
    problem = make_problem(tuned.network, tuned.width, seed)
    weights = TransferSettings(lr, decay)
    settings = {"hidden": weights, "embedding": weights, "gains": TransferSettings(lr, 0.0)}
    optimizer = adamw(groups_of(problem.model, settings), tuned.betas)
    return {"loss": train(trial, problem, [optimizer], batch=tuned.batch, steps=tuned.steps, seed=seed)}


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the learning rate, a line for each weight decay."""
    config = result.config
    panels = Panels("")
    losses = result["loss"].reshape(-1, len(config.lrs), len(config.weight_decays))
    for i, decay in enumerate(config.weight_decays):
        panels.line(0, config.lrs, losses[..., i].mean(0), f"weight decay {decay:g}", COLOURS[i])
        for of_seed in losses[..., i]:
            panels.dots(0, config.lrs, of_seed, colour=COLOURS[i], size=6)
    panels.figure.update_xaxes(title_text="lr", type="log", tickvals=config.lrs)
    panels.figure.update_yaxes(title_text="loss on data held out")
    return panels.titled(f"{config.tuned.network}: AdamW at the size of the tuned run")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge how far the tuned settings are above the best of the grid."""
    config = result.config
    losses = result["loss"]
    chosen = losses[:, config.parts.index((config.tuned.lr, config.tuned.weight_decay))]
    lr, decay = config.parts[int(np.argmin(losses.mean(0)))]
    sentence = f"loss of lr {config.tuned.lr:g}, weight decay {config.tuned.weight_decay:g} minus the best of the grid"
    best = losses[:, config.parts.index((lr, decay))]
    return [at_most(f"{sentence} (lr {lr:g}, weight decay {decay:g})", WITHIN, chosen - best)]
