"""Good runs rotate at similar speeds: rotation shows a learning rate that is too low or too high (ours).

Ten small tasks, five optimizers and lengths over a factor of 16. For each, a search over learning rates in half decades
continues until two lie on each side of the best. It measures medians over hidden layers: RMS rotation per step at the
peak (5 to 15 % of the run), in mid-run (40 to 60 %) and at the end (85 to 95 %), the angle between initial and final
weights, and the run length in memories. Runs have a warmup of 5 % and a linear decay to 0.

All of this was fixed before the runs. A run is good if its loss on held-out data is within 3 % of the best of the same
task, optimizer, length and seed. A run whose loss is more than 10 % above the best is too slow if its learning rate is
below the best one, and too fast if it is above. Half of the tasks choose, the other half judge. The band of a unit
contains 90 % of the good runs of the choosing half. At most 2 % of them are below its slow threshold, and at most 2 %
above its fast threshold. The alarm has the unit that marks most of the choosing half's runs that are too slow. Units
are rotation at the peak, in mid-run and at the end, the angle to the start, that angle times √fan-in, and the run
length in memories. Two more are mid-run rotation and angle times (fan-in/64)^p·(steps/200)^q. Their p and q, from -1/2
to 1/2 in quarters, are those that scatter least at the best learning rates of the choosing half. The alarm is useful if
it marks at most 5 % of the good runs of the held-out tasks and at least 40 % of those that are too slow. The baselines
are alarms by the learning rate alone, by the same rule: over the usual learning rate of the optimizer, and over the
median of its best ones on the choosing half. For an optimizer that nobody has tuned yet, a second table leaves each
optimizer out of the choosing half and judges on its runs alone. Intervals of rates are over held-out tasks.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gyroscope_lab.framework.arms import LOST
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.speed._alarm import (
    FEWEST_HITS,
    MOST_FALSE_ALARMS,
    Candidate,
    Confusion,
    baselines,
    candidates,
    chosen_candidate,
)
from gyroscope_lab.speed._lr_search import PLACES, lr_at, search
from gyroscope_lab.speed._runs import Runs, at_best, scatter, table
from gyroscope_lab.speed._suggestion import near_best, suggestions
from gyroscope_lab.speed._summary import write_summary as write_summary  # the runner calls it
from gyroscope_lab.speed._training import QUANTITIES, WARMUP, train

COST = {"quick": "3 min", "paper": "1 h"}

# Each optimizer has its usual weight decay.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw", "weight_decay": 0.1},
    "RotationalAdamW": {"optimizer": "rotational-adamw", "weight_decay": 0.1, "gain": True},
    "SGDM": {"optimizer": "sgd", "weight_decay": 5e-4},
    "Lion": {"optimizer": "lion", "weight_decay": 1.0},
    "Muon": {"optimizer": "muon", "weight_decay": 0.1},
    "AdamW, weight decay 1": {"optimizer": "adamw", "weight_decay": 1.0},
}
EVERYWHERE = tuple(OPTIMIZERS)[:5]
# Where the search for a learning rate starts, in half decades.
FIRST_PLACES = {"adamw": -5, "rotational-adamw": -4, "sgd": -2, "lion": -6, "muon": -4}
# torch's Muon takes no convolutions.
CONVOLUTIONAL = ("cnn", "resnet20")

Part = tuple[str, str, int]


@dataclass(frozen=True)
class Config:
    """Tasks with their settings, the held-out ones among them, and the optimizers and run lengths."""

    tasks: dict[str, dict[str, Any]]
    held_out: tuple[str, ...]
    optimizers: tuple[str, ...] = EVERYWHERE
    steps: int = 200
    more: tuple[Part, ...] = ()
    """Further cells: task, optimizer and steps."""
    first_seed: int = 0
    """Seed of the first training."""
    seeds: int = field(default=3, kw_only=True)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Task, optimizer and steps of each cell, the cells of a task together."""
        plain = [(task, optimizer, self.steps) for task in self.tasks for optimizer in self.optimizers_of(task)]
        order = list(self.tasks)
        return tuple(sorted((*plain, *self.more), key=lambda part: order.index(part[0])))

    def optimizers_of(self, task: str) -> list[str]:
        """Return the optimizers that train a task."""
        convolutional = self.tasks[task]["model"].partition(":")[0] in CONVOLUTIONAL
        return [name for name in self.optimizers if not (name == "Muon" and convolutional)]


def lengths(tasks: tuple[str, ...], steps: tuple[int, ...], optimizers: tuple[str, ...]) -> tuple[Part, ...]:
    """Return cells with other run lengths."""
    return tuple((task, optimizer, each) for task in tasks for optimizer in optimizers for each in steps)


EMBEDDED: dict[str, dict[str, Any]] = {
    "MLP, layer norm": {"task": "digits", "model": "mlp:width=64", "norm": "layer", "batch_size": 32},
    "CNN, batch norm": {"task": "digits", "model": "cnn:width=16,convolutions=3", "batch_size": 32},
    "MLP, batch norm": {"task": "digits", "model": "mlp:width=64", "batch_size": 32},
    "GPT of width 32": {"task": "stdlib", "model": "gpt:layers=2,heads=2,width=32,context=16", "batch_size": 8},
}
SHAKESPEARE = {"task": "text:tinyshakespeare.txt", "batch_size": 8}
CIFAR = {"task": "cifar10", "shrink": 4, "batch_size": 32}
FASHION_7 = {"task": "fashion-mnist", "shrink": 4, "batch_size": 32}
FASHION_14 = {"task": "fashion-mnist", "shrink": 2, "batch_size": 32}
TASKS: dict[str, dict[str, Any]] = {
    "GPT of width 32": {**SHAKESPEARE, "model": "gpt:layers=2,heads=2,width=32,context=32"},
    "GPT of width 128": {**SHAKESPEARE, "model": "gpt:layers=2,heads=2,width=128,context=32"},
    "CNN, batch norm": {**CIFAR, "model": "cnn:width=32,convolutions=3"},
    "MLP, layer norm": {**CIFAR, "model": "mlp:width=128,layers=3", "norm": "layer"},
    "CNN, layer norm": {**FASHION_7, "model": "cnn:width=32,convolutions=3", "norm": "layer"},
    "GPT of width 64": {"task": "stdlib", "batch_size": 8, "model": "gpt:layers=2,heads=2,width=64,context=32"},
    "CNN, group norm": {**CIFAR, "model": "cnn:width=32,convolutions=3", "norm": "group"},
    "ViT": {**CIFAR, "model": "vit:patch=4,width=48,heads=3,layers=2"},
    "ResNet, batch norm": {**FASHION_7, "model": "resnet20:width=8,blocks=1"},
    "MLP, batch norm": {**FASHION_14, "model": "mlp:width=128"},
}
HELD_OUT = ("GPT of width 64", "CNN, group norm", "ViT", "ResNet, batch norm", "MLP, batch norm")
QUICK = Config(
    EMBEDDED,
    ("MLP, batch norm", "GPT of width 32"),
    ("AdamW", "SGDM", "Lion"),
    steps=100,
    more=lengths(("MLP, layer norm", "MLP, batch norm"), (25, 400), ("AdamW", "SGDM")),
    seeds=1,
)
PAPER = Config(
    TASKS,
    HELD_OUT,
    more=(
        *lengths(("GPT of width 32", "CNN, batch norm"), (50, 800), ("AdamW", "SGDM")),
        *lengths(("GPT of width 64", "MLP, batch norm"), (50, 800), ("AdamW", "SGDM")),
        *lengths(("GPT of width 32", "MLP, batch norm"), (200,), ("AdamW, weight decay 1",)),
    ),
)


def measure(trial: Trial[Config]) -> Measurements:
    """Search the learning rate of one cell. Return each quantity by place, with NaN for places without a run."""
    task, optimizer, steps = trial.part
    settings = {
        **trial.config.tasks[task],
        **OPTIMIZERS[optimizer],
        "steps": steps,
        "warmup": max(round(WARMUP * steps), 1),
        "schedule": "linear",
        "seed": trial.config.first_seed + trial.seed,
    }
    values = {name: np.full(len(PLACES), np.nan) for name in QUANTITIES}

    def loss(place: int) -> float:
        if lr_at(place) * settings["weight_decay"] >= 1:
            # One step would remove the whole weight, which our optimizers refuse.
            values["loss"][PLACES.index(place)] = LOST
            return LOST
        measured = train({**settings, "lr": lr_at(place)})
        for name, value in measured.items():
            values[name][PLACES.index(place)] = value
        return measured["loss"]

    search(FIRST_PLACES[settings["optimizer"]], loss)
    return values


def halves(result: Result[Config]) -> tuple[Runs, Runs]:
    """Return the runs that choose and the runs that judge."""
    runs = table(result)
    judges = np.isin(runs.task, result.config.held_out)
    return runs.where(~judges), runs.where(judges)


def rates_by_task(candidate: Candidate, runs: Runs) -> list[dict[str, float]]:
    """Return the rates of an alarm in each task. A rate is NaN if the task has no runs of the kind."""
    values = candidate.values(runs)
    tasks = [runs.task == task for task in np.unique(runs.task)]
    return [Confusion.of(candidate.alarm, runs.where(own), values[own]).rates for own in tasks]


def alarm_claims(unit: str, rates: list[dict[str, float]]) -> list[Claim]:
    """Judge an alarm by its rates. A kind of runs that nobody has decides nothing, so its claim is left out."""
    sentences = [
        claim
        for side in ("slow", "fast")
        for claim in (
            (at_most, f"share of good runs marked as too {side}", MOST_FALSE_ALARMS, f"{side}_false"),
            (at_least, f"share of too {side} runs marked", FEWEST_HITS, f"{side}_hits"),
        )
    ]
    judged = []
    for judge, sentence, bound, rate in sentences:
        measured = [each[rate] for each in rates if np.isfinite(each[rate])]
        if measured:
            judged.append(judge(f"{unit}: {sentence}", bound, measured))
    return judged


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the chosen alarm and the baselines on held-out tasks, the scatter of units, and suggestions."""
    choosing, judging = halves(result)
    chosen = chosen_candidate(choosing)
    judged = alarm_claims(chosen.alarm.unit, rates_by_task(chosen, judging))
    for baseline in baselines(choosing).values():
        judged += alarm_claims(baseline.alarm.unit, rates_by_task(baseline, judging))
    tuned = baselines(choosing)["lr over the median best one"]
    for name, candidate in candidates(choosing).items():
        ratio = [_scatter(candidate, own) / _scatter(tuned, own) for own in _by_seed(judging)]
        judged.append(at_most(f"{name}: scatter at the best lr, over that of lr over the median best one", 1.0, ratio))
    for method, lrs in suggestions(choosing, judging).items():
        near = near_best(judging, lrs, 3.0)
        _, first = np.unique(judging.cell, return_index=True)
        by_task = [near[judging.task[first] == task].mean() for task in np.unique(judging.task)]
        judged.append(at_least(f"{method}: share within a factor of 3 of the best lr", 0.8, by_task))
    return judged


def _scatter(candidate: Candidate, runs: Runs) -> float:
    return scatter(at_best(runs, candidate.values(runs)))


def _by_seed(runs: Runs) -> list[Runs]:
    return [runs.where(runs.seed == seed) for seed in np.unique(runs.seed)]


# Units that are drawn: a label, a factor of the unit, and the range of the axis. Values outside are drawn at its edge.
ROTATIONS = (0.3, 100.0)
SHOWN: dict[str, tuple[str, float, tuple[float, float]]] = {
    "mid-run rotation": ("rotation per step in mid-run, mrad", 1e3, ROTATIONS),
    "angle to the start": ("angle to the start, rad", 1.0, (0.05, 1.6)),
    "run length in memories": ("run length, memories", 1.0, (1e-3, 20.0)),
}
# Largest regret on the axis, in %. Larger values are drawn at its edge.
MOST_REGRET = 60.0


def plot(result: Result[Config]) -> Figure:
    """Draw the regret of every run over three units, with their bands."""
    choosing, judging = halves(result)
    titles = [f"{half}: {label}" for half in ("choosing", "held out") for label, *_ in SHOWN.values()]
    panels = Panels(*titles, rows=2, shared_yaxes=True, horizontal_spacing=0.04, vertical_spacing=0.12)
    units = candidates(choosing)
    for row, runs in enumerate((choosing, judging)):
        for column, (unit, (_, factor, shown)) in enumerate(SHOWN.items()):
            panel = row * len(SHOWN) + column
            values = np.clip(factor * units[unit].values(runs), *shown)
            regret = np.minimum(100 * runs.regret, MOST_REGRET)
            for name, colour in zip(OPTIMIZERS, COLOURS, strict=False):
                own = runs.optimizer == name
                if own.any():
                    panels.dots(panel, values[own], regret[own], name, colour, size=4, opacity=0.7)
            for edge in units[unit].alarm.band:
                panels.moment(panel, factor * edge)
    panels.figure.update_xaxes(type="log", dtick=1)
    panels.figure.update_yaxes(title_text="loss above the best, %", col=1)
    figure = panels.titled("Loss above the best of each task and optimizer (dotted: 90 % of good choosing runs)")
    figure.update_annotations(font_size=12)
    return figure.update_layout(height=800, legend={"y": -0.06})
