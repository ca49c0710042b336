"""The demo: SGD with momentum and its rotational variant on handwritten digits, over learning rates and seeds.

It shows what a user gains: without a warmup and with an untuned learning rate, a run of 200 steps ends with a lower
loss. Settings were chosen on seeds 1000 to 1005, which the demo does not use. On these seeds, SGD is best at a learning
rate of 0.03 and with gains. So both optimizers have gains, and their runs at 0.03 are tracked.
"""

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gyroscope import Tracker, param_groups, plan
from gyroscope.nn import add_gain
from gyroscope.optim import RotationalSGD
from gyroscope.render.run_page import page
from gyroscope.render.terminal import findings_text
from gyroscope.report import gather
from gyroscope.store import Run, open_run
from gyroscope.theory import cosine
from gyroscope.tools import Array, write_text
from gyroscope_lab.demo_text import closing_sentence, loss_figure, loss_table
from gyroscope_lab.networks.registry import image_network
from gyroscope_lab.tasks import digits
from gyroscope_lab.training.optimizers import ALGORITHM_1

LRS = (0.01, 0.03, 0.1, 0.3)
TRACKED_LR = 0.03
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-3
# Factor of RotationalSGD's average of update lengths. The default, 0.99, averages over half of a run this short.
BETA = 0.9
BATCH = 64
STEPS = 200
SEEDS = 6
EVALUATE_EVERY = 20
WIDE = 64  # smallest fan-in for which the mean-field theory must hold within TOLERANCE
# Gradients shrink during training, and the average of update lengths lags behind.
TOLERANCE = 0.25
NAMES = ("sgd", "rotational_sgd")


@dataclass(frozen=True)
class LayerComparison:
    """Measured and predicted rotation of a layer over the middle third of a run, in radians per step."""

    layer: str
    fan_in: int
    rotation: float
    predicted_rotation: float

    @property
    def error(self) -> float:
        """Relative error of the predicted rotation."""
        return self.rotation / self.predicted_rotation - 1

    @property
    def fails(self) -> bool:
        """Whether the rotation of a wide layer differs from its prediction."""
        return self.fan_in >= WIDE and not abs(self.error) <= TOLERANCE  # true for NaN too


@dataclass(frozen=True)
class Scores:
    """Final scores of a training run on held-out digits, and its training loss at each step."""

    loss: float
    accuracy: float
    course: Array


def demo(out: Path, console: Console, steps: int = STEPS, seeds: int = SEEDS) -> int:
    """Run the demo. Return 0 if every wide layer of RotationalSGD rotated as predicted, else 1."""
    torch.set_num_threads(1)  # more threads are no faster for images this small, and much slower on a busy machine
    train, test = digits.load()
    for name in NAMES:  # the runs of an earlier demo
        shutil.rmtree(out / name, ignore_errors=True)
    console.print("[bold]1. Before training:[/] predictions from learning rate, weight decay and initial weights\n")
    model, optimizer = make("rotational_sgd", TRACKED_LR, seed=0)
    console.print(plan(model, optimizer, _cosine(optimizer, steps), steps=steps).text())
    console.print(
        f"\n[bold]2. Training[/] a small convolutional network on {len(train.labels):,} handwritten digits: two "
        f"optimizers, {len(LRS)} learning rates, {seeds} seeds, {steps} steps, no warmup\n"
    )
    scores = _train_all(out, train, test, steps, seeds, console)
    console.print("\n[bold]3. Rotation[/] of the tracked runs over their middle third, in radians per step\n")
    failures = _compare(out, console)
    console.print(f"\n[bold]4. Loss and accuracy[/] on {len(test.labels)} held-out digits, with 95 % intervals\n")
    losses = {name: np.array([[one.loss for one in of_rate] for of_rate in scores[name]]) for name in NAMES}
    accuracies = {name: np.array([[one.accuracy for one in of_rate] for of_rate in scores[name]]) for name in NAMES}
    console.print(loss_table(LRS, losses, accuracies))
    console.print(closing_sentence(LRS, losses, accuracies), highlight=False)
    courses = {name: np.stack([one.course for one in scores[name][LRS.index(TRACKED_LR)]]) for name in NAMES}
    write_text(out / "losses.html", loss_figure(LRS, losses, courses, TRACKED_LR))
    write_text(out / "report.html", page(gather([out / name for name in NAMES])))
    console.print(f"\n[bold]5. Look:[/] open {out / 'losses.html'} and {out / 'report.html'} in a browser")
    for failure in failures:
        console.print(failure, style="red")
    return int(bool(failures))


def make(name: str, lr: float, seed: int) -> tuple[nn.Module, Optimizer]:
    """Return a new network and its optimizer. Both optimizers get the same network for the same seed."""
    torch.manual_seed(seed)
    model = add_gain(image_network("cnn:width=16", (1, 8, 8), 10, norm="layer"))
    groups = param_groups(model, weight_decay=WEIGHT_DECAY)
    if name == "sgd":
        return model, torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM)
    return model, RotationalSGD(groups, lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, beta=BETA, **ALGORITHM_1)


def _cosine(optimizer: Optimizer, steps: int) -> LambdaLR:
    schedule = cosine(steps)
    return LambdaLR(optimizer, lambda step: float(schedule(min(step, steps - 1))))


def _train_all(
    out: Path, train: digits.Digits, test: digits.Digits, steps: int, seeds: int, console: Console
) -> dict[str, list[list[Scores]]]:
    """Train every optimizer at every learning rate with every seed, and track one run of each optimizer."""
    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), TextColumn("left"))
    scores: dict[str, list[list[Scores]]] = {name: [[] for _ in LRS] for name in NAMES}
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("training", total=len(NAMES) * len(LRS) * seeds)
        for seed in range(seeds):
            for number, lr in enumerate(LRS):
                for name in NAMES:
                    folder = out / name if lr == TRACKED_LR and seed == 0 else None
                    scores[name][number].append(_train(name, lr, seed, folder, train, test, steps))
                    progress.advance(bar)
    return scores


def _train(
    name: str, lr: float, seed: int, folder: Path | None, train: digits.Digits, test: digits.Digits, steps: int
) -> Scores:
    """Train once. The run is tracked if it has a folder."""
    model, optimizer = make(name, lr, seed)
    scheduler = _cosine(optimizer, steps)
    course = []
    tracker = nullcontext() if folder is None else Tracker(model, optimizer, folder, every=2, config={"title": name})
    with tracker as tracking:
        for step, batch in enumerate(_batches(train, seed, steps), start=1):
            optimizer.zero_grad()
            loss = cross_entropy(model(batch.images), batch.labels)
            torch.autograd.backward(loss)
            optimizer.step()
            scheduler.step()
            course.append(loss.item())
            if tracking is not None:
                held_out = test.scores(model) if step % EVALUATE_EVERY == 0 else {}
                tracking.log(loss=course[-1], **held_out)
    ended = test.scores(model)
    return Scores(ended["held_out_loss"], ended["held_out_accuracy"], np.array(course))


def _batches(train: digits.Digits, seed: int, steps: int) -> Iterator[digits.Digits]:
    """Yield as many batches as there are steps, the same for both optimizers."""
    generator = torch.Generator().manual_seed(seed)
    epochs = -(-steps // (len(train.labels) // BATCH))
    for _, batch in zip(range(steps), train.batches(BATCH, epochs, generator), strict=False):
        yield batch


def _compare(out: Path, console: Console) -> list[str]:
    """Print predicted and measured rotation of both runs with findings. Return a sentence for each failure."""
    failures = []
    for name in NAMES:
        with open_run(out / name) as run:
            comparisons = [_comparison(run, layer) for layer in run.layers]
            console.print(_table(name, comparisons))
            console.print(*findings_text(run.diagnose(), console.width), "", sep="\n")
        if name == "rotational_sgd":
            failed = [layer for layer in comparisons if layer.fails]
            failures = [f"{name}: {each.layer} differs by {each.error:+.0%} from its prediction" for each in failed]
    return failures


def _comparison(run: Run, layer: str) -> LayerComparison:
    middle = (run.steps >= run.steps[-1] / 3) & (run.steps <= 2 * run.steps[-1] / 3)
    # The theory predicts mean squares over vectors and steps.
    measured, predicted = (
        float(np.sqrt(np.nanmean(run.series(layer, quantity, stat)[middle] ** 2)))
        for quantity, stat in (("angular_update", "rms"), ("predicted_angular_update", "mean"))
    )
    return LayerComparison(layer, run.layer(layer).fan_in, measured, predicted)


def _table(title: str, comparisons: list[LayerComparison]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("layer", "fan-in", "rad/step", "predicted", "off by"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for c in comparisons:
        label = c.layer.replace("parametrizations.weight.original", "weight")
        table.add_row(label, str(c.fan_in), f"{c.rotation:.4f}", f"{c.predicted_rotation:.4f}", f"{c.error:+.1%}")
    return table
