"""The batches of the trials are below the critical batch, where signal and noise of a gradient are equal (ours).

The tracker estimates κ², the squared signal-to-noise ratio of one batch's gradient, from AdamW's state. The critical
batch is the tuned batch over κ² (McCandlish et al. 2018, 2.9). κ² is the mean over the hidden layers and over the run
at the tuned settings, without its first tenth. It is below 0 if gradients cancel each other.
"""

import tempfile
from dataclasses import dataclass

import numpy as np

import gyroscope as gyro
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._networks import make_problem
from gyroscope_lab.transfer._training import adamw, groups_of, train
from gyroscope_lab.transfer.tuning import TUNED

COST = {"quick": "2 min", "paper": "4 min"}
SAMPLE_EVERY = 5
# The tenths of a run over which κ² is averaged. The first tenth has the warmup.
TENTHS = tuple(range(1, 10))
# The largest batch of the trials over the tuned one.
LARGEST = 4.0


@dataclass(frozen=True)
class Config:
    """The networks whose critical batch is measured."""

    parts: tuple[str, ...] = tuple(TUNED)
    seeds: int = 3


QUICK = Config()
PAPER = Config(seeds=6)


def measure(trial: Trial[Config]) -> Measurements:
    """Train at the tuned settings. Return κ² in each tenth of the run, mean over the hidden layers."""
    tuned = TUNED[trial.part]
    problem = make_problem(tuned.network, tuned.width, trial.seed)
    weights = TransferSettings(tuned.lr, tuned.weight_decay)
    settings = {"hidden": weights, "embedding": weights, "gains": TransferSettings(tuned.lr, 0.0)}
    groups = groups_of(problem.model, settings)
    hidden = [name for group in groups["hidden"] for name in group["param_names"]]
    optimizer = adamw(groups, tuned.betas)
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(problem.model, optimizer, folder, every=SAMPLE_EVERY) as tracker:
            train(trial, problem, [optimizer], batch=tuned.batch, steps=tuned.steps, seed=trial.seed)
        with tracker.run as run:
            tenths = run.steps * 10 // tuned.steps
            # A fused matrix has a layer for each part: qkv.weight[q].
            layers = [layer for layer in run.layers if layer.partition("[")[0] in hidden]
            ratios = np.array([run.series(layer, "signal_ratio") for layer in layers])
    return {"signal_ratio": [float(np.nanmean(ratios[:, tenths == tenth])) for tenth in TENTHS]}


def plot(result: Result[Config]) -> Figure:
    """Return κ² of the tuned batch in each tenth of the run, and the level at which the largest batch is critical."""
    panels = Panels("")
    for number, (name, colour) in enumerate(zip(result.config.parts, COLOURS, strict=False)):
        middles = [10 * tenth + 5 for tenth in TENTHS]
        panels.line(0, middles, result["signal_ratio"][:, number].mean(0), name, colour)
        for of_seed in result["signal_ratio"][:, number]:
            panels.dots(0, middles, of_seed, colour=colour, size=6)
    panels.level(0, 1 / LARGEST)
    panels.figure.update_xaxes(title_text="% of the run")
    panels.figure.update_yaxes(title_text="κ² of the tuned batch")
    return panels.titled("Below the dashed line, four times the batch is below the critical one")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge for each network whether the largest batch of the trials is below the critical one."""
    ratios = LARGEST * result["signal_ratio"].mean(2)
    return [
        at_most(f"{name}: largest batch of the trials over the critical one", 1.0, ratios[:, number])
        for number, name in enumerate(result.config.parts)
    ]
