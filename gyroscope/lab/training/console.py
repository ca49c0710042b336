"""A training run in a terminal: a live line while it goes on, and a table when it ends."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import StepReport, TrainResult, train
from gyroscope.planner.settings import numbers
from gyroscope.store import open_run

DEFAULT_EPOCHS = 10.0
# Share of the past in the loss that is shown: a single batch says little.
SMOOTHING = 0.95


class LossLine:
    """The bar's text: smoothed loss, and the newest scores on data held out."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress = progress
        self.task = task
        self.loss: float | None = None
        self.validation = ""

    def __call__(self, report: StepReport) -> None:
        """Show a step."""
        self.loss = report.loss if self.loss is None else SMOOTHING * self.loss + (1 - SMOOTHING) * report.loss
        scores = {name: value for name, value in report.scores.items() if name.startswith("validation")}
        if scores:
            self.validation = ", ".join(
                f"{name.removeprefix('validation_')} {value:.3f}" for name, value in scores.items()
            )
        held_out = f"; held out: {self.validation}" if self.validation else ""
        text = f"loss {self.loss:.3f}{held_out}"
        self.progress.update(self.task, completed=report.step, total=report.steps, text=text)


@contextmanager
def loss_line(console: Console) -> Iterator[LossLine]:
    """A bar with the time left, for as long as a run takes."""
    columns = (
        TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield LossLine(progress, progress.add_task("", total=1, text=""))


def settings_of(options: Mapping[str, Any]) -> TrainConfig:
    """The config that options of the command line ask for."""
    given = {field.name: options[field.name] for field in fields(TrainConfig) if field.name in options}
    if options["betas"] is not None:
        given["betas"] = tuple(numbers("betas", options["betas"]))
    if given["epochs"] is None and given["steps"] is None:
        given["epochs"] = DEFAULT_EPOCHS
    given["track"] = options["track"] == "auto"
    return TrainConfig(**given)


def train_in_terminal(config: TrainConfig, out: Path, *, resume: bool, data_root: Path | None, device: str) -> int:
    """Train with a live line; 0 when it ended, 1 when it diverged."""
    console = Console()
    with loss_line(console) as line:
        result = train(config, out, resume=resume, data_root=data_root, device=device, on_step=line)
    console.print(result_table(result))
    if config.track:
        with open_run(out / "rotation") as run:
            console.print(str(run.diagnose()), markup=False)
    if result.diverged_at is None:
        return 0
    checkpoints = out / "checkpoints"
    kept = f"; the last checkpoint before is in {checkpoints}" if checkpoints.exists() else ""
    console.print(f"The loss is not finite from step {result.diverged_at:,} on{kept}.")
    return 1


def result_table(result: TrainResult) -> Table:
    """Scores of the run, with what was trained."""
    config = result.config
    shrunk = f", images shrunk by {config.shrink}" if config.shrink > 1 else ""
    table = Table(title=f"{config.model} on {config.task}{shrunk}, {config.optimizer}, {result.steps:,} steps")
    table.add_column("step", justify="right")
    names = [name for name in (result.history[-1] if result.history else {}) if name != "step"]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in result.history:
        table.add_row(f"{row['step']:,.0f}", *(f"{row[name]:.4f}" for name in names))
    return table
