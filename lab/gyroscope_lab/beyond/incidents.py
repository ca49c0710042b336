"""Ten incidents are named with their step and cause from step 60 on, and trainings without any raise no alarm.

Three networks train with a schedule of 1,500 steps: digits with batch norm under AdamW, digits without norm under SGD
with momentum, and a GPT on Python's standard library under AdamW. They are sampled at the first 20 steps and then every
ten. One of ten incidents is planted before step 60, 300, 503 or 1,203: the learning rate × 10 for three steps, a batch
of noise, shuffled targets for 50 steps, a frozen layer, the weights of a layer × 2, weight decay × 100, other betas,
one layer's gradient × 100 for five steps or for one, or twenty steps skipped as by a GradScaler. Each training then
goes on for 130 steps. The search for incidents runs with the logged loss and without it. All trainings of a network and
step branch off from one training, and a test asserts that this gives the numbers of whole trainings. Twenty trainings
without an incident count false alarms. The thresholds were chosen with seeds 10 to 12, and are judged here with seeds
from 100 on.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gyroscope.advice.incidents import Incident, incidents
from gyroscope.store import open_run
from gyroscope_lab.beyond._planted import EVERY, PLANTED, RUN, BranchedRun, train_beginning, train_planted
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, styled
from gyroscope_lab.training.config import TrainConfig

COST = {"quick": "8 min", "paper": "40 min"}

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
    "gpt": (
        {**GPT, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.1, "schedule": "cosine", "warmup": 100},
        "blocks.1.feed_forward.inner.weight",
    ),
}
# Sampled steps and steps between two samples, in the early stage of the baselines and after it.
PLACES = (60, 300, 503, 1203)
# Steps that a training takes after the incident.
AFTER = 130
# Seed of the first trainings, which no threshold was chosen with.
FIRST_SEED = 100
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
# At step 60 the networks know so little that batches of noise are like others.
INVISIBLE = ("garbage batch", "shuffled labels")
# Without a loss, a batch between two samples leaves only what momentum and second moments keep of it, and early ones
# are judged by few samples.
HIDDEN = ("garbage batch", "shuffled labels")
# Settings are read at every step.
SETTINGS = ("learning rate", "weight decay", "betas")


@dataclass(frozen=True)
class Config:
    """Trainings of `steps` steps."""

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
    """A run without logged values."""

    scalars: tuple[str, ...] = ()

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


@lru_cache(maxsize=1)  # the trainings of a network, step and seed follow each other
def beginning_of(config: TrainConfig, at: int) -> "tempfile.TemporaryDirectory[str]":
    """Train up to the last sample before step `at`, from which all trainings with an incident there branch off."""
    folder = tempfile.TemporaryDirectory()
    train_beginning(config, Path(folder.name), (at - 1) // EVERY * EVERY)
    return folder


def measure(trial: Trial[Config]) -> Measurements:
    """Measure whether the planted incident was named, with the loss and without, and how many others were."""
    what, _, rest = str(trial.part).partition("/")
    common: dict[str, Any] = {"steps": trial.config.steps, "seed": FIRST_SEED + trial.seed}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if what == "clean":
            config = TrainConfig(**CLEAN[int(rest)], **common)
            with open_run(train_planted(config, out, report=trial.report)) as run:
                return judged(run, what, 0)
        network, _, place = rest.partition("/")
        at = int(place)
        settings, layer = NETWORKS[network]
        config = TrainConfig(**settings, **common)
        begun = Path(beginning_of(config, at).name)
        path = train_planted(
            config, out, planted=what, at=at, layer=layer, until=at + AFTER, beginning=begun, report=trial.report
        )
        with open_run(begun / RUN) as first, open_run(path) as run:
            return judged(BranchedRun(first, run), what, at)


def judged(record: Any, what: str, at: int) -> Measurements:
    """Judge a run with the loss and without: was it named, with its exact step, and how many others were found."""
    views = [incidents(view) for view in (record, WithoutLoss(record))]
    named = [[incident for incident in found if is_named(incident, what, at)] for found in views]
    return {
        "named": [bool(each) for each in named],
        "exact": [any(incident.step == at for incident in each) for each in named],
        "others": [len(found) - len(each) for found, each in zip(views, named, strict=True)],
    }


def is_named(incident: Incident, what: str, at: int) -> bool:
    """Return whether this is the planted incident: the same cause, and its step within one sample."""
    return incident.cause == CAUSES.get(what) and abs(incident.step - at) <= EVERY


def false_alarms(result: Result[Config], view: int) -> float:
    """Return the false alarms in 10,000 steps without an incident, over all seeds because each has few."""
    clean = [number for number, part in enumerate(result.config.parts) if part.startswith("clean/")]
    alarms = result["others"][:, clean, view]
    return float(1e4 * alarms.sum() / (alarms.size * result.config.steps))


def _parts(result: Result[Config], kinds: Iterable[str], at: int) -> list[int]:
    """Return the places of the trainings of all networks with incidents of these kinds at a step."""
    wanted = {f"{what}/{name}/{at}" for what in kinds for name in NETWORKS}
    return [number for number, part in enumerate(result.config.parts) if part in wanted]


def plot(result: Result[Config]) -> Figure:
    """Draw the share of the networks in which each incident was named with the logged loss, by step."""
    figure = Figure()
    for at, colour in zip(PLACES, COLOURS, strict=False):
        shares = [float(result["named"][:, _parts(result, [what], at), 0].mean()) for what in PLANTED]
        figure.add_bar(x=shares, y=list(PLANTED), orientation="h", name=f"step {at:,}", marker_color=colour)
    figure.update_xaxes(range=[0, 1.05], title_text="share named")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=640, margin={"l": 150})
    return styled(figure, "Planted incidents that were named with their step and cause")


def claims(result: Result[Config]) -> list[Claim]:
    """Claim nine in ten incidents, every setting with its exact step, and at most one false alarm in 30,000 steps."""
    made = []
    for at in PLACES:
        visible = [what for what in PLANTED if at > PLACES[0] or what not in INVISIBLE]
        for view, name in enumerate(("with the loss", "without")):
            kinds = [what for what in visible if view == 0 or what not in HIDDEN]
            numbers = _parts(result, kinds, at)
            text = f"share of {len(numbers)} incidents ({len(kinds)} kinds) named at step {at:,}, {name}"
            made.append(at_least(text, 0.9, result["named"][:, numbers, view].mean(1)))
    settings = [number for at in PLACES for number in _parts(result, SETTINGS, at)]
    exact = result["exact"][:, settings, 0].mean(1)
    made.append(at_least(f"share of {len(settings)} jumps of settings named with their exact step", 1.0, exact))
    for view, name in enumerate(("with the loss", "without")):
        made.append(at_most(f"false alarms in 10,000 clean steps, {name}", 1 / 3, [false_alarms(result, view)]))
    return made
