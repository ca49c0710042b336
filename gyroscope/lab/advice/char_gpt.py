"""A char-GPT in nanoGPT's setting for a CPU, as it stands and started at equilibrium, with AdamW and RotationalAdamW.

Tiny Shakespeare, read from the folder of data sets; 4 layers, width 128, 2,000 steps, embeddings decay. With X = 0.11
the run is far shorter than its memory, and no matrix is scale-invariant: a rotational variant keeps the norms that the
network starts at.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from plotly.graph_objects import Figure

from gyroscope.advice.findings import MARKS
from gyroscope.lab.claims import Claim, at_most
from gyroscope.lab.experiment import Measurements, Result, Trial
from gyroscope.lab.figures import COLOURS, styled
from gyroscope.lab.training import TrainConfig, train

CLAIMS = {
    "char_gpt": "A start at equilibrium does not raise the loss of a char-GPT, with AdamW nor with RotationalAdamW",
    "char_gpt_lr": "Nor does it at three times the learning rate",
}
COST = {"char_gpt": {"quick": "20 min", "paper": "20 min"}, "char_gpt_lr": {"quick": "10 min", "paper": "10 min"}}
TEXT = "text:tinyshakespeare.txt"
STOCK: dict[str, Any] = {
    "task": TEXT,
    "model": "gpt",
    "steps": 2000,
    "batch_size": 12,
    "weight_decay": 0.1,
    "betas": (0.9, 0.99),
    "decay_embeddings": True,
    "warmup": 100,
    "final": 0.1,
    "clip": 1.0,
    "evaluations": 1,
}
ARMS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw"},
    "AdamW, hidden weights at equilibrium": {"optimizer": "adamw", "start": "equilibrium"},
    "AdamW, embeddings too": {"optimizer": "adamw", "start": "equilibrium+embeddings"},
    "RotationalAdamW": {"optimizer": "rotational-adamw"},
    "RotationalAdamW, hidden weights at equilibrium": {"optimizer": "rotational-adamw", "start": "equilibrium"},
    "RotationalAdamW, embeddings too": {"optimizer": "rotational-adamw", "start": "equilibrium+embeddings"},
}


@dataclass(frozen=True)
class Config:
    """nanoGPT's setting at a learning rate; `arms` are names in `ARMS`."""

    lr: float
    arms: tuple[str, ...] = tuple(ARMS)
    seeds: int = 3

    @property
    def parts(self) -> tuple[str, ...]:
        """One arm after the other."""
        return self.arms


QUICK = {
    "char_gpt": Config(lr=1e-3),
    "char_gpt_lr": Config(lr=3e-3, arms=("AdamW", "AdamW, hidden weights at equilibrium", "AdamW, embeddings too")),
}
PAPER = QUICK


def measure(trial: Trial[Config]) -> Measurements:
    """Loss on the whole validation text, and the severest finding of the run (0 bad … 3 good)."""
    settings = {**STOCK, "lr": trial.config.lr, "seed": trial.seed, **ARMS[trial.part]}
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            TrainConfig(**settings), Path(folder) / "run", on_step=lambda at: trial.report(at.step / at.steps)
        )
        with result.run() as run:
            severity = run.diagnose()[0].severity
    return {"loss": result.scores["validation_loss"], "severity": float(list(MARKS).index(severity))}


def plot(result: Result[Config]) -> Figure:
    """The loss of each arm, seed by seed."""
    figure = Figure()
    for number, arm in enumerate(result.config.arms):
        figure.add_scatter(
            x=result["loss"][:, number],
            y=[arm] * len(result["loss"]),
            mode="markers",
            marker={"color": COLOURS[number % len(COLOURS)], "size": 10},
            showlegend=False,
        )
    figure.update_xaxes(title_text="loss on the validation text, nats per character")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return styled(figure, f"char-GPT on Shakespeare, lr {result.config.lr:g}")


def claims(result: Result[Config]) -> list[Claim]:
    """Each arm that starts at equilibrium against the same optimizer as it stands, seed by seed."""
    judged = []
    arms = result.config.arms
    for number, arm in enumerate(arms):
        base = arm.split(",")[0]
        if arm != base:
            change: np.ndarray[Any, Any] = result["loss"][:, number] - result["loss"][:, arms.index(base)]
            judged.append(at_most(f"{arm}: loss minus that of {base}", 0.0, change))
    return judged
