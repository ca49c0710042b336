"""Ten incidents are named with their step and cause, and trainings without any raise no alarm.

A digits network with batch norm under AdamW and a plain one under SGD with momentum train for 1,500 steps, sampled
every ten. Before step 1,000, a sampled one, or 1,003, between two samples: the learning rate × 10 for three steps, a
batch of noise, shuffled labels for 50 steps, a layer frozen, the weights of one × 2, weight decay × 100, other betas,
one layer's gradient × 100 for five steps or for one, twenty steps skipped as by a GradScaler. Each is searched for with
the logged loss and without. All of a network branch off from one training at step 990: a test asserts that this gives
the numbers of whole trainings. Twenty trainings without an incident count false alarms.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gyroscope.advice.incidents import Incident, incidents
from gyroscope.store import open_run
from gyroscope_lab.beyond._planted import EVERY, PLANTED, RUN, BranchedRun, train_beginning, train_planted
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, styled
from gyroscope_lab.training.config import TrainConfig

COST = {"quick": "7 min", "paper": "18 min"}

DIGITS = {"evaluations": 1, "batch_size": 32}
CNN = {**DIGITS, "model": "cnn:width=8"}
MLP = {**DIGITS, "model": "mlp:width=64,layers=3"}
PLAIN = {**MLP, "norm": "none"}
GPT = {"evaluations": 1, "task": "stdlib", "model": "gpt:layers=2,width=32,context=32", "batch_size": 16}

# Networks in which incidents are planted, and the layer that is frozen or doubled.
NETWORKS: dict[str, tuple[dict[str, Any], str]] = {
    "cnn": (
        {**CNN, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.1, "schedule": "cosine", "warmup": 100},
        "features.3.weight",
    ),
    "mlp": (
        {**PLAIN, "optimizer": "sgd", "lr": 0.05, "weight_decay": 5e-4, "schedule": "constant"},
        "features.4.weight",
    ),
}
# A sampled step, and one between two samples.
PLACES = (1000, 1003)
# The last sampled step before them.
BRANCH = 990
CLEAN: tuple[dict[str, Any], ...] = (
    {**CNN, "optimizer": "adamw", "schedule": "constant", "lr": 3e-3},
    {**CNN, "optimizer": "adamw", "schedule": "cosine", "warmup": 100, "lr": 3e-3},
    {**CNN, "optimizer": "adamw", "schedule": "step", "lr": 3e-3},
    {**CNN, "optimizer": "sgd", "schedule": "constant"},
    {**CNN, "optimizer": "sgd", "schedule": "cosine"},
    {**CNN, "optimizer": "sgd", "schedule": "step"},
    {**CNN, "optimizer": "lion", "schedule": "cosine", "lr": 1e-3},
    {**CNN, "optimizer": "rotational-adamw", "schedule": "constant", "lr": 3e-3},
    {**CNN, "optimizer": "rotational-adamw", "schedule": "step", "lr": 3e-3},
    {**PLAIN, "optimizer": "adamw", "schedule": "cosine", "warmup": 100},
    {**PLAIN, "optimizer": "sgd", "schedule": "constant", "lr": 0.05},
    {**PLAIN, "optimizer": "sgd", "schedule": "step", "lr": 0.05},
    {**MLP, "optimizer": "lion", "schedule": "constant"},
    {**MLP, "optimizer": "muon", "schedule": "cosine"},
    {**MLP, "optimizer": "rotational-adamw", "schedule": "cosine", "warmup": 100},
    {**GPT, "optimizer": "adamw", "schedule": "cosine", "warmup": 100, "lr": 3e-3},
    {**GPT, "optimizer": "adamw", "schedule": "constant"},
    {**GPT, "optimizer": "sgd", "schedule": "cosine"},
    {**GPT, "optimizer": "lion", "schedule": "step", "lr": 3e-4},
    {**GPT, "optimizer": "muon", "schedule": "constant", "warmup": 100, "lr": 3e-3},
)
# What was planted, and what it must be called.
CAUSES = {
    "learning rate": "lr",
    "garbage batch": "batches",
    "shuffled labels": "batches",
    "frozen layer": "frozen",
    "doubled weights": "weights",
    "weight decay": "weight_decay",
    "betas": "betas",
    "layer's gradient": "layer_gradient",
    "layer's gradient once": "layer_gradient",
    "skipped steps": "skipped",
}
# Without a loss, a batch between two samples leaves only what momentum and second moments keep of it.
HIDDEN = ("garbage batch",)


@dataclass(frozen=True)
class Config:
    """Trainings of so many steps."""

    steps: int = 1500
    seeds: int = 1

    @property
    def parts(self) -> tuple[str, ...]:
        """The trainings by name, planted/network/step or clean/number."""
        planted = [f"{what}/{name}/{at}" for name in NETWORKS for at in PLACES for what in PLANTED]
        return (*planted, *(f"clean/{number}" for number in range(len(CLEAN))))


QUICK = Config(seeds=2)
PAPER = Config(seeds=5)


class WithoutLoss:
    """A run of which nothing was logged."""

    scalars: tuple[str, ...] = ()

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


@lru_cache(maxsize=1)  # the trainings of a network and seed follow each other
def beginning_of(config: TrainConfig) -> "tempfile.TemporaryDirectory[str]":
    """A training up to the last sample before anything is planted, from which all others with its config branch off."""
    folder = tempfile.TemporaryDirectory()
    train_beginning(config, Path(folder.name), BRANCH)
    return folder


def measure(trial: Trial[Config]) -> Measurements:
    """Whether the planted incident was named, with the loss and without, and how many others were."""
    what, _, rest = str(trial.part).partition("/")
    common: dict[str, Any] = {"steps": trial.config.steps, "seed": trial.seed}
    with tempfile.TemporaryDirectory() as folder:
        if what == "clean":
            config = TrainConfig(**CLEAN[int(rest)], **common)
            with open_run(train_planted(config, Path(folder), report=trial.report)) as run:
                return judged(run, what, 0)
        network, place = rest.split("/")
        settings, layer = NETWORKS[network]
        config = TrainConfig(**settings, **common)
        beginning = Path(beginning_of(config).name)
        path = train_planted(
            config,
            Path(folder),
            planted=what,
            at=int(place),
            layer=layer,
            beginning=beginning,
            report=trial.report,
        )
        with open_run(beginning / RUN) as first, open_run(path) as run:
            return judged(BranchedRun(first, run), what, int(place))


def judged(record: Any, what: str, at: int) -> Measurements:
    """What is found in a run, with the loss and without."""
    found = [incidents(view) for view in (record, WithoutLoss(record))]
    named = [[is_named(incident, what, at) for incident in each] for each in found]
    return {"named": [any(each) for each in named], "others": [len(each) - sum(each) for each in named]}


def is_named(incident: Incident, what: str, at: int) -> bool:
    """Whether this is what was planted at a step, with its cause and its step within one sample."""
    return incident.cause == CAUSES.get(what) and abs(incident.step - at) <= EVERY


def _of(result: Result[Config], what: str) -> Iterator[int]:
    """Places of the trainings whose names begin so."""
    return (number for number, part in enumerate(result.config.parts) if part.startswith(what))


def _planted(result: Result[Config], at: int, *, without_hidden: bool) -> list[int]:
    hidden = HIDDEN if without_hidden else ()
    return [
        number
        for number, part in enumerate(result.config.parts)
        if part.endswith(f"/{at}") and part.partition("/")[0] in set(PLANTED) - set(hidden)
    ]


def false_alarms(result: Result[Config], view: int) -> float:
    """False alarms in 10,000 steps of training without an incident, over all seeds: single counts are too small."""
    clean = list(_of(result, "clean/"))
    alarms = result["others"][:, clean, view]
    return float(1e4 * alarms.sum() / (alarms.size * result.config.steps))


def plot(result: Result[Config]) -> Figure:
    """Share of the trainings in which each incident was named, with the loss and without."""
    figure = Figure()
    for at in PLACES:
        for view, name in enumerate(("with the loss", "without")):
            shares = [
                float(
                    np.mean(
                        [result["named"][:, number, view] for number in _of(result, f"{what}/") if number in members]
                    )
                )
                for what in PLANTED
                for members in [_planted(result, at, without_hidden=False)]
            ]
            label = f"step {at:,}, {name}"
            colour = COLOURS[2 * PLACES.index(at) + view]
            figure.add_bar(x=shares, y=list(PLANTED), orientation="h", name=label, marker_color=colour)
    figure.update_xaxes(range=[0, 1.05], title_text="share named")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=640, margin={"l": 150})
    return styled(figure, "Planted incidents that were named with their step and cause")


def claims(result: Result[Config]) -> list[Claim]:
    """All planted incidents, and at most one false alarm in twenty trainings."""
    made = []
    for at in PLACES:
        every = _planted(result, at, without_hidden=False)
        with_loss = result["named"][:, every, 0].mean(1)
        made.append(
            at_least(f"share of the {len(every)} incidents planted at step {at:,} that is named", 1.0, with_loss)
        )
        known = _planted(result, at, without_hidden=at != PLACES[0])
        made.append(
            at_least(
                f"the same without a logged loss{'' if at == PLACES[0] else ', but for single batches'}",
                1.0,
                result["named"][:, known, 1].mean(1),
            )
        )
    for view, name in enumerate(("with the loss", "without")):
        # One in twenty trainings of 1,500 steps.
        made.append(at_most(f"false alarms in 10,000 clean steps, {name}", 1 / 3, [false_alarms(result, view)]))
    return made
