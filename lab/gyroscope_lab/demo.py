"""The demo: predict a small training run, train twice, and compare what was predicted with what was measured."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gyroscope import Tracker, param_groups, plan
from gyroscope.optim import RotationalAdamW
from gyroscope.render.run_page import page
from gyroscope.render.terminal import findings_text
from gyroscope.report import gather
from gyroscope.store import Run, open_run
from gyroscope.tools import write_text
from gyroscope_lab.tasks import digits

LR = 1e-2
WEIGHT_DECAY = 0.5  # large, so that equilibrium comes within the first tenth of the run
BETAS = (0.9, 0.99)
BATCH = 128
EPOCHS = 100
# Input noise and label smoothing keep gradients noisy when every digit is learned, as theory assumes.
NOISE = 0.3
SMOOTHING = 0.1
WIDE = 64  # fan-in from which the mean-field theory is held to TOLERANCE
TOLERANCE = 0.15
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "rotational_adamw": RotationalAdamW,
}


@dataclass(frozen=True)
class LayerComparison:
    """A layer over the last quarter of a run: measured, and predicted for equilibrium."""

    layer: str
    fan_in: int
    rotation: float
    predicted_rotation: float
    norm: float
    predicted_norm: float

    @property
    def error(self) -> float:
        """Rotation measured over predicted, less 1."""
        return self.rotation / self.predicted_rotation - 1

    @property
    def fails(self) -> bool:
        """Whether a layer that theory should predict turned otherwise."""
        return self.fan_in >= WIDE and not abs(self.error) <= TOLERANCE  # also where it is not a number


def demo(out: Path, console: Console, epochs: int = EPOCHS) -> int:
    """Run the demo; 0 if every wide convolution turned as predicted, else 1."""
    torch.set_num_threads(1)  # images this small train no faster on more, and many times slower beside other programs
    train, test = digits.load()
    for name in OPTIMIZERS:  # the runs of an earlier demo
        shutil.rmtree(out / name, ignore_errors=True)
    console.print("[bold]1. Before training:[/] what lr, weight decay and the initial weights will do\n")
    model, optimizer = _fresh("adamw")
    console.print(plan(model, optimizer, steps=epochs * (len(train.labels) // BATCH)).text())
    console.print("\n[bold]2. Training[/] a convolutional network on handwritten digits, with and without control\n")
    accuracies = {name: _train(name, out, train, test, epochs, console) for name in OPTIMIZERS}
    console.print("\n[bold]3. Predicted and measured,[/] over the last quarter of each run\n")
    scores = {name: _score(accuracy, len(test.labels)) for name, accuracy in accuracies.items()}
    failures = [failure for name in OPTIMIZERS for failure in _compare(name, out, scores[name], console)]
    report = out / "report.html"
    write_text(report, page(gather([out / name for name in OPTIMIZERS])))
    console.print(f"[bold]4. Look:[/] open {report} in a browser; gyroscope watch {out} would have shown it live")
    for failure in failures:
        console.print(failure, style="red")
    return int(bool(failures))


def _fresh(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)  # both runs start from the same weights
    model = digits.network()
    groups = param_groups(model, weight_decay=WEIGHT_DECAY)
    return model, OPTIMIZERS[name](groups, lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY)


def _train(name: str, out: Path, train: digits.Digits, test: digits.Digits, epochs: int, console: Console) -> float:
    """Train with a tracker and a progress bar; the accuracy on held-out digits."""
    model, optimizer = _fresh(name)
    generator = torch.Generator().manual_seed(0)
    total = epochs * (len(train.labels) // BATCH)
    columns = (TextColumn("{task.description:17}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with (
        Progress(*columns, *times, console=console) as progress,
        Tracker(model, optimizer, out / name, every=5, config={"title": name}),
    ):
        for batch in progress.track(train.batches(BATCH, epochs, generator), total=total, description=name):
            optimizer.zero_grad()
            torch.autograd.backward(batch.noisy_loss(model, NOISE, SMOOTHING, generator))
            optimizer.step()
    return test.accuracy(model)


def _compare(name: str, out: Path, score: str, console: Console) -> list[str]:
    """Print predicted and measured of one run, and its verdict; a sentence for each convolution that fails."""
    with open_run(out / name) as run:
        comparisons = [_comparison(run, layer) for layer in run.layers]
        console.print(_table(f"{name}: {score}", comparisons))
        console.print(*findings_text(run.diagnose(), console.width), "", sep="\n")
        # The linear layer's loss depends on its scale, so its equilibrium is not predicted; the verdict says so too.
        return [
            f"{name}: {layer.layer} turned {layer.error:+.0%} from what was predicted"
            for layer in comparisons
            if layer.fails and len(run.layer(layer.layer).shape) > 2
        ]


def _comparison(run: Run, layer: str) -> LayerComparison:
    late = run.steps >= 0.75 * run.steps[-1]

    def mean(quantity: str, stat: str = "mean") -> float:
        return float(np.nanmean(run.series(layer, quantity, stat)[late]))

    return LayerComparison(
        layer,
        run.layer(layer).fan_in,
        # The law speaks of mean squares, over vectors and over steps.
        rotation=float(np.sqrt(np.nanmean(run.series(layer, "angular_update", "rms")[late] ** 2))),
        predicted_rotation=mean("predicted_angular_update"),
        norm=mean("norm", "rms"),
        predicted_norm=mean("predicted_norm"),
    )


def _score(accuracy: float, images: int) -> str:
    """The accuracy with its standard error: so few images do not tell two good networks apart."""
    error = (accuracy * (1 - accuracy) / images) ** 0.5
    return f"{100 * accuracy:.1f} ± {100 * error:.1f} % of {images} held-out digits"


def _table(title: str, comparisons: list[LayerComparison]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("layer", "fan-in", "rad/step", "predicted", "off by", "norm", "predicted"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for c in comparisons:
        rotation = (f"{c.rotation:.4f}", f"{c.predicted_rotation:.4f}", f"{c.error:+.1%}")
        table.add_row(c.layer, str(c.fan_in), *rotation, f"{c.norm:.3f}", f"{c.predicted_norm:.3f}")
    return table
