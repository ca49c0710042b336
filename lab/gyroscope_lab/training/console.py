"""A training run in a terminal: a live line while it trains, and a table when it ends."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gyroscope.planner.rule_settings import numbers
from gyroscope.render.terminal import findings_text
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.training import checkpoint
from gyroscope_lab.training.by_name import train
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.loop import StepReport
from gyroscope_lab.training.result import TrainResult

DEFAULT_EPOCHS = 10.0
# Weight of earlier steps in the loss that is shown, because the loss of a single batch is noisy.
SMOOTHING = 0.95
# Seconds between two updates of the line. Reading a loss waits for the device, and nobody reads faster than this.
SHOW_EVERY = 0.2


class ProgressLine:
    """The progress of a run: loss and scores of a batch and on held-out data, and rotation with its prediction."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("", total=1, text="", rate="")
        self.loss: float | None = None
        self.held_out = ""
        self.shown_at = -inf

    def __call__(self, report: StepReport) -> None:
        """Show a step, unless another one has just been shown."""
        scores = {name: value for name, value in report.scores.items() if not name.startswith("validation")}
        if len(scores) < len(report.scores):
            values = [float(report.scores[name]) for name in report.scores if name not in scores]
            self.held_out = f" (held out {', '.join(f'{value:.3f}' for value in values)})"
        elif time.monotonic() - self.shown_at < SHOW_EVERY:
            return
        self.progress.start()  # not before, so that invalid settings leave no empty line
        self.shown_at = time.monotonic()
        loss = float(report.loss)
        self.loss = loss if self.loss is None else SMOOTHING * self.loss + (1 - SMOOTHING) * loss
        shown = [f"{name} {float(value):.3f}" for name, value in {"loss": self.loss, **scores}.items()]
        text = ", ".join(shown) + self.held_out + rotation_text(report.rotation)
        speed = self.progress.tasks[self.task].speed
        rate = "" if speed is None else f"{speed * report.samples:,.0f} samples/s"
        self.progress.update(self.task, completed=report.step, total=report.steps, text=text, rate=rate)


def rotation_text(numbers: Mapping[str, float]) -> str:
    """Return the rotation of the median layer at the last sample, with its prediction if there is one."""
    angle = numbers.get("gyroscope/angular_update")
    predicted = numbers.get("gyroscope/predicted_angular_update")
    if angle is None:
        return ""
    return f", rotation {angle:.2g}" + ("" if predicted is None else f" of {predicted:.2g} predicted")


@contextmanager
def progress_line(console: Console) -> Iterator[ProgressLine]:
    """Yield a line with rate and time left, and stop it when the run ends."""
    progress = Progress(
        TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[text]}"),
        console=console,
    )
    try:
        yield ProgressLine(progress)
    finally:
        if progress.live.is_started:  # otherwise stopping it prints an empty line
            progress.stop()


def settings_of(options: Mapping[str, Any], typed: Collection[str]) -> TrainConfig:
    """Return the config for command-line options. A preset replaces the options that were not `typed`."""
    given = {field.name: options[field.name] for field in fields(TrainConfig) if field.name in options}
    if options["betas"] is not None:
        given["betas"] = tuple(numbers("betas", options["betas"]))
    given["track"] = options["track"] == "auto"
    settings = preset(options["preset"]) if options["preset"] else {}
    length = {"epochs", "steps"}  # a typed one replaces the preset's other one
    kept = {*typed, *(length if length & set(typed) else ())}
    given |= {name: value for name, value in settings.items() if name not in kept}
    if given["epochs"] is None and given["steps"] is None:
        given["epochs"] = DEFAULT_EPOCHS
    return TrainConfig.from_dict(given)


def train_in_terminal(config: TrainConfig, out: Path, *, resume: bool, data_root: Path | None, device: str) -> int:
    """Train with a live line, and return 0, or 1 if training diverged."""
    console = Console(highlight=False)
    with progress_line(console) as line:
        result = train(
            config,
            out,
            resume=resume,
            data_root=data_root,
            device=device,
            on_start=lambda start: console.print(repr(start), markup=False),
            on_step=line,
        )
    console.print(result_table(result, config))
    if config.track:
        with result.run() as run:
            console.print(*findings_text(run.diagnose(), console.width), sep="\n")
    if result.divergence is None:
        return 0
    kept = checkpoint.paths(out / "checkpoints")
    before = f" The last checkpoint before it is {kept[-1]}." if kept else ""
    console.print(f"Diverged: {result.divergence}.{before}", markup=False)
    return 1


def result_table(result: TrainResult, config: TrainConfig) -> Table:
    """Return a table of the scores of a run, titled by model, task and optimizer."""
    shrunk = f", images shrunk by {config.shrink}" if config.shrink > 1 else ""
    table = Table(title=f"{config.model} on {config.task}{shrunk}, {config.optimizer}, {result.steps:,} steps")
    table.add_column("step", justify="right")
    for name in result.scores:
        table.add_column(name.replace("_", " "), justify="right")
    for row in result.history:
        table.add_row(f"{row['step']:,.0f}", *(f"{row[name]:.4f}" for name in result.scores))
    return table
