"""The alarm that the first experiment chose, on new seeds and on new tasks (ours).

`second_look` has new seeds for two held-out tasks of `speed/speedometer`. Their kinds of network are not in the
choosing half, and they were fixed before the trainings. `new_tasks` has five tasks that neither chose nor judged.
`longer` has runs eight times as long as the longest of the first experiment. Four alarms are judged, all in mid-run
rotation: the one that the rule chose, those that it chooses without SGDM, with the correction and without it, and that
of a pilot. The second and third do not judge runs of SGDM, because all false alarms of the slow threshold in the first
experiment were such runs. The third was fixed beforehand as the one that a report could use. The criterion is that of
the first experiment. Intervals are over tasks and seeds.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from gyroscope_lab.framework.claims import Claim
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.speed._alarm import Confusion
from gyroscope_lab.speed._chosen import ALARMS, WITHOUT_SGD
from gyroscope_lab.speed._runs import Runs, table
from gyroscope_lab.speed._summary import write_summary as write_summary  # the runner calls it
from gyroscope_lab.speed.speedometer import (
    EMBEDDED,
    EVERYWHERE,
    MOST_REGRET,
    OPTIMIZERS,
    ROTATIONS,
    TASKS,
    Config,
    alarm_claims,
)
from gyroscope_lab.speed.speedometer import measure as measure  # the same trainings

CLAIMS = {
    "second_look": "With new seeds the alarm marks few good runs of two held-out tasks and many too slow ones (ours)",
    "new_tasks": "On five new tasks the alarm marks few good runs and many too slow ones (ours)",
    "longer": "In runs of 6,400 steps the alarm marks few good runs and many too slow ones (ours)",
}
COST = {
    "second_look": {"quick": "1 min", "paper": "10 min"},
    "new_tasks": {"quick": "1 min", "paper": "10 min"},
    "longer": {"quick": "1 min", "paper": "15 min"},
}
# The first experiment has only seeds below this one.
FIRST_SEED = 1000
SAME = {name: TASKS[name] for name in ("ViT", "ResNet, batch norm")}
# Eight times as long as the longest runs of the first experiment, on the task with the fastest steps.
LONG = {name: TASKS[name] for name in ("MLP, batch norm",)}
LONG_STEPS = 6400
FASHION = {"task": "fashion-mnist", "batch_size": 32}
NEW: dict[str, dict[str, Any]] = {
    "GPT of width 48, qk-norm": {
        "task": "stdlib",
        "batch_size": 16,
        "model": "gpt:layers=3,heads=3,width=48,context=16,qk_norm=true,fan_in_init=true",
    },
    "MLP, no norm": {**FASHION, "shrink": 2, "model": "mlp:width=96,layers=3", "norm": "none"},
    "ResNet, layer norm": {"task": "cifar10", "shrink": 4, "batch_size": 32, "model": "resnet20:width=8,blocks=1",
                           "norm": "layer"},
    "ViT on Fashion-MNIST": {**FASHION, "shrink": 2, "model": "vit:patch=7,width=64,heads=4,layers=2"},
    "CNN on digits, batch norm": {"task": "digits", "batch_size": 32, "model": "cnn:width=24,convolutions=4"},
}  # fmt: skip


def _looked_at(tasks: dict[str, dict[str, Any]], steps: int, seeds: int, optimizers: tuple[str, ...]) -> Config:
    return Config(tasks, tuple(tasks), optimizers, steps, first_seed=FIRST_SEED, seeds=seeds)


SMALL = _looked_at({"MLP, batch norm": EMBEDDED["MLP, batch norm"]}, 100, 2, ("AdamW", "SGDM", "Lion"))
QUICK = {
    "second_look": SMALL,
    "longer": replace(SMALL, steps=400, optimizers=("AdamW",)),
    "new_tasks": replace(SMALL, tasks={"CNN": NEW["CNN on digits, batch norm"]}, held_out=("CNN",)),
}
PAPER = {
    "second_look": _looked_at(SAME, 200, 3, EVERYWHERE),
    "new_tasks": _looked_at(NEW, 200, 3, EVERYWHERE),
    "longer": _looked_at(LONG, LONG_STEPS, 1, ("AdamW", "Lion")),
}


def by_task_and_seed(runs: Runs) -> list[Runs]:
    """Return the runs of each task and seed."""
    pairs = dict.fromkeys(zip(runs.task.tolist(), runs.seed.tolist(), strict=True))
    return [runs.where((runs.task == task) & (runs.seed == seed)) for task, seed in pairs]


def claims(result: Result[Config]) -> list[Claim]:
    """Judge each alarm by the criterion."""
    judged: list[Claim] = []
    for chosen in ALARMS:
        alarm, values = chosen.candidate.alarm, chosen.candidate.values
        groups = by_task_and_seed(chosen.judged(table(result)))
        rates = [Confusion.of(alarm, own, values(own)).rates for own in groups]
        judged += alarm_claims(alarm.unit, rates)
    return judged


def plot(result: Result[Config]) -> Figure:
    """Draw the regret of every run over mid-run rotation, with the slow threshold without SGDM."""
    runs = table(result)
    tasks = list(result.config.tasks)
    panels = Panels(*tasks, shared_yaxes=True, horizontal_spacing=0.03)
    for panel, task in enumerate(tasks):
        for name, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            own = runs.where((runs.task == task) & (runs.optimizer == name))
            if len(own.lr):
                regret = np.minimum(100 * own.regret, MOST_REGRET)
                panels.dots(panel, np.clip(1e3 * own.mid, *ROTATIONS), regret, name, colour, size=5, opacity=0.7)
        panels.moment(panel, 1e3 * WITHOUT_SGD.alarm.slow)
    panels.figure.update_xaxes(type="log", title_text="mrad per step")
    panels.figure.update_yaxes(title_text="loss above the best, %", col=1)
    figure = panels.titled("Loss above the best over mid-run rotation (dotted: slow threshold without SGDM)")
    figure.update_annotations(font_size=12)
    return figure.update_layout(legend={"y": -0.2})
