"""The training loop: short enough to read in one sitting, and whole enough to be killed at any step."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import gyroscope as gyro
from gyroscope._files import write_text
from gyroscope.lab.training import checkpoint
from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.optimizers import make_optimizer
from gyroscope.lab.training.problems import Problem, make_problem

# Checkpoints of a run, evenly spaced, beside the one at its end and one at an interruption.
CHECKPOINTS = 10


@dataclass
class StepReport:
    """What is known after a step."""

    step: int
    steps: int
    loss: float
    scores: dict[str, float]


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: its folder, scores on data held out, and the step at which it diverged, if it did."""

    path: Path
    config: TrainConfig
    scores: dict[str, float]
    steps: int
    diverged_at: int | None = None
    history: list[dict[str, float]] = field(default_factory=list)


class DivergedError(Exception):
    """The loss is not finite."""


def train(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    data_root: Path | None = None,
    device: str = "cpu",
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> TrainResult:
    """Train as `config` says in the folder `out`; `resume` goes on from its newest checkpoint, bit for bit.

    `on_step` is called after each step. Ctrl-C writes a checkpoint before it ends the run.
    """
    problem = make_problem(config, data_root, torch.device(device))
    run = Training(config, problem, out)
    _prepare(out, config, resume)
    if resume:
        run.restore()
    with run.tracked(resume) as tracker, interrupts_between_steps() as interrupted:
        try:
            run.steps(tracker, on_step, interrupted)
        except DivergedError:
            return run.result(diverged=True)
    return run.result()


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noticed between steps, for a step cut in half could not be resumed; a second one ends at once."""
    seen: list[int] = []

    def notice(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    # Only the main thread may handle signals; elsewhere nobody presses Ctrl-C.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _prepare(out: Path, config: TrainConfig, resume: bool) -> None:
    """Make the folder and say in it what is trained; a folder with another run in it is an error."""
    file = out / "config.json"
    if file.is_file():
        before = TrainConfig.from_dict(json.loads(file.read_text(encoding="utf-8")))
        if not resume:
            raise ValueError(f"{str(out)!r} has a run already: go on with it by --resume, or choose another folder")
        if before != config:
            changed = [name for name, value in config.as_dict().items() if getattr(before, name) != value]
            raise ValueError(
                f"{str(out)!r} was begun with other settings ({', '.join(changed)}): use those, or another folder"
            )
    write_text(file, json.dumps(config.as_dict(), indent=1))


class Training:
    """The state of a run: all that a checkpoint holds."""

    def __init__(self, config: TrainConfig, problem: Problem, out: Path) -> None:
        self.config = config
        self.problem = problem
        self.out = out
        self.model: nn.Module = problem.model
        self.forward: Any = torch.compile(self.model) if config.compile else self.model
        options = {"betas": config.betas, "momentum": config.momentum, "decay_embeddings": config.decay_embeddings}
        self.optimizer = make_optimizer(
            config.optimizer, self.model, lr=config.lr, weight_decay=config.weight_decay, **options
        )
        # A batch that fills half a step is not one: an epoch has the whole steps.
        per_epoch = max(problem.batches_per_epoch // config.accumulate, 1)
        self.schedule = config.multiplier(per_epoch)
        self.scheduler = LambdaLR(self.optimizer, lambda t: float(self.schedule(min(t, self.schedule.steps - 1))))
        self.step = 0
        self.history: list[dict[str, float]] = []

    def steps(
        self,
        tracker: gyro.Tracker | None,
        on_step: Callable[[StepReport], None],
        interrupted: Callable[[], bool],
    ) -> None:
        """Take the steps that are left, with evaluations and checkpoints on the way."""
        total = self.schedule.steps
        self.model.train()
        while self.step < total:
            loss, scores = self.one_step()
            if not isfinite(loss):
                raise DivergedError
            self.step += 1
            if self._due(self.config.evaluations):
                self.history.append({"step": float(self.step), **self.problem.evaluate(self.model)})
                scores = {**scores, **self.history[-1]}
            if tracker is not None:
                tracker.log(loss=loss, **{name: value for name, value in scores.items() if name != "step"})
            on_step(StepReport(self.step, total, loss, scores))
            if self._due(CHECKPOINTS) or interrupted():
                self.save()
            if interrupted():
                raise KeyboardInterrupt

    def _due(self, times: int) -> bool:
        """Whether something that happens so many times, evenly over the run and at its end, happens after this step."""
        total = self.schedule.steps
        return self.step == total or self.step * times // total > (self.step - 1) * times // total

    def one_step(self) -> tuple[float, dict[str, float]]:
        """Forward, backward, step; the mean loss over the batches of the step."""
        self.optimizer.zero_grad()
        total = 0.0
        scores: dict[str, float] = {}
        for part in range(self.config.accumulate):
            low = self.config.precision == "bf16"
            device = next(self.model.parameters()).device.type
            with torch.autocast(device, torch.bfloat16) if low else nullcontext():
                loss, found = self.problem.loss(self.forward, self.step * self.config.accumulate + part)
            torch.autograd.backward(loss / self.config.accumulate)
            total += float(loss.detach()) / self.config.accumulate
            scores = {name: float(value) for name, value in found.items()}
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.scheduler.step()
        return total, scores

    @contextmanager
    def tracked(self, resume: bool) -> Iterator[gyro.Tracker | None]:
        """The tracker of the run, if there is one."""
        if not self.config.track:
            yield None
            return
        path = self.out / "rotation"
        going_on = resume and path.exists()
        with gyro.Tracker(
            self.model, self.optimizer, path, config=self.config.as_dict(), resume=going_on, start=self.step
        ) as tracker:
            yield tracker

    def save(self) -> None:
        """Write a checkpoint of this step."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {"last_epoch": self.scheduler.last_epoch},
            "random": torch.get_rng_state(),
            "history": self.history,
        }
        checkpoint.save(self.out / "checkpoints", self.step, state)

    def restore(self) -> None:
        """Go on where the newest checkpoint was; from the start where there is none."""
        state = checkpoint.load_newest(self.out / "checkpoints")
        if state is None:
            return
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.last_epoch = state["scheduler"]["last_epoch"]
        torch.set_rng_state(state["random"])
        self.history = state["history"]

    def result(self, diverged: bool = False) -> TrainResult:
        """How the run ended, also as a file."""
        scores = {name: value for name, value in self.history[-1].items() if name != "step"} if self.history else {}
        found = TrainResult(self.out, self.config, scores, self.step, self.step if diverged else None, self.history)
        text = {"scores": scores, "steps": self.step, "diverged_at": found.diverged_at, "history": self.history}
        write_text(self.out / "result.json", json.dumps(text, indent=1))
        return found
