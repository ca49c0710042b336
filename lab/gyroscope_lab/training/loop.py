"""The training loop, with evaluations and checkpoints. A run may be killed at any step and resumed."""

import json
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope.optim.follow_base import BaseFollower
from gyroscope.optim.schedulers import Scheduler
from gyroscope.tools import write_text
from gyroscope_lab.training import checkpoint
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.problems import Problem, Scores
from gyroscope_lab.training.result import ROTATION, Divergence, TrainResult, fastest_before

# Checkpoints of a run, evenly spaced. One more is written at an interruption.
CHECKPOINTS = 10
# Steps between two checks that the loss is finite. Each check waits for the device.
FINITE_EVERY = 10


@dataclass(frozen=True)
class StepReport:
    """The state of a run after a step. Loss and scores may still be on a device, and reading them waits for it."""

    step: int
    steps: int
    samples: int
    """Samples of one step."""
    loss: Tensor
    scores: Scores
    rotation: dict[str, float]
    """The newest measurement of the tracker, by the names that its sinks get."""


class DivergedError(Exception):
    """The loss is not finite."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Training:
    """The state of a run: everything that a checkpoint contains."""

    def __init__(
        self,
        config: TrainConfig,
        problem: Problem,
        out: Path,
        *,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Scheduler],
        steps: int,
        forward: Any,
        followers: Sequence[BaseFollower],
    ) -> None:
        """Assemble the parts of a run.

        Arguments:
            config: settings of the loop, for example how often to evaluate and to sample.
            problem: the model with its loss and its scores.
            out: folder of the run.
            optimizers: called one after the other in each step.
            schedulers: one for each optimizer.
            steps: length of the run.
            forward: the model as it is called in training, which may be compiled.
            followers: states of `gyro.optim.follow`, for checkpoints.
        """
        self.config = config
        self.problem = problem
        self.out = out
        self.model: nn.Module = problem.model
        self.optimizers = optimizers
        self.schedulers = schedulers
        self.steps = steps
        self.forward = forward
        self.followers = followers
        self.step = 0
        # Learning rates of the last step by group. The schedulers already have those of the next step.
        self.last_step_lr: list[float] = []
        self.history: list[dict[str, float]] = []
        self.tracker: gyro.Tracker | None = None
        self.rotation: dict[str, float] = {}
        # On the device, because reading every loss would make each step wait for it.
        self.first_bad_step = torch.tensor(math.inf, device=problem.device)

    def prepare_folder(self, resume: bool) -> None:
        """Write the config to the folder, or raise ValueError if the folder has another run."""
        file = self.out / "config.json"
        if file.is_file():
            before = TrainConfig.from_dict(json.loads(file.read_text(encoding="utf-8")))
            if not resume:
                raise ValueError(
                    f"{str(self.out)!r} already has a run: continue it with --resume, or choose another folder"
                )
            if before != self.config:
                old = before.as_dict()
                changed = [name for name, value in self.config.as_dict().items() if old[name] != value]
                raise ValueError(
                    f"{str(self.out)!r} has a run with other settings ({', '.join(changed)}): "
                    "use the same ones, or choose another folder"
                )
        write_text(file, json.dumps(self.config.as_dict(), indent=1))

    def run(self, resume: bool, on_step: Callable[[StepReport], None]) -> TrainResult:
        """Take the remaining steps with a tracker, and return the result."""
        diverged_at = None
        try:
            with self.tracked(resume) as tracker, interrupts_between_steps() as interrupted:
                self.take_steps(tracker, on_step, interrupted)
        except DivergedError as error:
            diverged_at = error.step
        if diverged_at is None:
            return self.ended(None)
        return self.ended(Divergence(diverged_at, fastest_before(diverged_at, self.out / ROTATION)))

    def take_steps(
        self,
        tracker: gyro.Tracker | None,
        on_step: Callable[[StepReport], None],
        interrupted: Callable[[], bool],
    ) -> None:
        """Take the remaining steps, with evaluations and checkpoints."""
        total = self.steps
        samples = self.config.batch_size * self.config.accumulate
        self.model.train()
        while self.step < total:
            loss, scores = self.one_step()
            self.step += 1
            evaluating = self._due(self.config.evaluations)
            saving = self._due(CHECKPOINTS)
            if evaluating or saving or self.step % FINITE_EVERY == 0:
                self._refuse_divergence()
            if evaluating:
                with self._precision():
                    held_out = self.problem.evaluate(self.model)
                self.history.append({"step": self.step, **held_out})
                scores |= held_out
            if tracker is not None:
                tracker.log(loss=loss, **scores)
            on_step(StepReport(self.step, total, samples, loss, scores, self.rotation))
            if interrupted():
                self._refuse_divergence()
                self.save()
                raise KeyboardInterrupt
            if saving:
                self._save_or_warn()

    def _due(self, times: int) -> bool:
        """Return whether an event that happens `times` times, evenly over the run, is due after this step."""
        total = self.steps
        return self.step == total or self.step * times // total > (self.step - 1) * times // total

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.problem.device.type, torch.bfloat16, enabled=self.config.precision != "float32")

    def one_step(self) -> tuple[Tensor, Scores]:
        """Take one optimizer step. Return the mean loss over its batches, and the scores of the last batch."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        mean_loss = torch.zeros((), device=self.problem.device)
        scores: Scores = {}
        for part in range(self.config.accumulate):
            number = self.step * self.config.accumulate + part
            with self._precision():
                loss, scores = self.problem.loss(self.forward, number)
            torch.autograd.backward(loss / self.config.accumulate)
            mean_loss += loss.detach() / self.config.accumulate
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.last_step_lr = [float(group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups]
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        bad_step = torch.where(mean_loss.isfinite(), math.inf, float(self.step))
        self.first_bad_step = torch.minimum(self.first_bad_step, bad_step)
        return mean_loss, scores

    def _refuse_divergence(self) -> None:
        step = self.first_bad_step.item()
        if math.isfinite(step):
            raise DivergedError(int(step))

    @contextmanager
    def tracked(self, resume: bool) -> Iterator[gyro.Tracker | None]:
        """Yield the tracker of the run, or None if the run is not tracked."""
        if not self.config.track:
            yield None
            return
        path = self.out / ROTATION
        sampling: dict[str, Any] = {} if self.config.sample_every is None else {"every": self.config.sample_every}
        with gyro.Tracker(
            self.model,
            list(self.optimizers),
            path,
            config=self.config.as_dict(),
            sinks=[self._keep_rotation],
            resume=resume and path.exists(),
            start=self.step,
            raw=self.config.neurons,
            **sampling,
        ) as tracker:
            self.tracker = tracker
            yield tracker

    def _keep_rotation(self, step: int, numbers: dict[str, float]) -> None:
        # Values that training logs arrive here too.
        if "gyroscope/angular_update" in numbers:
            self.rotation = numbers

    def _save_or_warn(self) -> None:
        """Save a checkpoint, or warn if the disk is full. Only a failure to save the last checkpoint raises."""
        try:
            self.save()
        except ValueError as error:
            if self.step == self.steps:
                raise
            warnings.warn(f"gyroscope: {error}. Training continues.", RuntimeWarning, stacklevel=2)

    def save(self) -> None:
        """Write a checkpoint of this step. Later batches are determined by the step and the seed."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "last_step_lr": self.last_step_lr,
            "followers": [follower.state_dict() for follower in self.followers],
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all(),
            "history": self.history,
        }
        # A run that is killed resumes after this step, so measurements until here must be stored.
        if self.tracker is not None:
            self.tracker.flush()
        checkpoint.save(self.out / "checkpoints", self.step, state)

    def restore(self) -> None:
        """Load the newest checkpoint, if there is one."""
        state = checkpoint.load_newest(self.out / "checkpoints")
        if state is None:
            return
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self.last_step_lr = state.get("last_step_lr", [])
        for follower, saved in zip(self.followers, state.get("followers", []), strict=True):
            follower.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        torch.cuda.set_rng_state_all(state["cuda_random"])
        self.history = state["history"]

    def ended(self, divergence: Divergence | None) -> TrainResult:
        """Return the result of the run, and write it to result.json."""
        diverged_at = None if divergence is None else divergence.step
        steps = self.step if diverged_at is None else diverged_at
        result = TrainResult(self.out, self.config, steps, self.history, divergence)
        text = {"scores": result.scores, "steps": steps, "diverged_at": diverged_at, "history": self.history}
        write_text(self.out / "result.json", json.dumps(text, indent=1))
        return result


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. A second Ctrl-C ends the run at once.

    A run that is interrupted in the middle of a step could not be resumed.
    """
    seen: list[int] = []

    def notice(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
