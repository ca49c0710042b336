"""The training loop: short enough to read in one sitting, and whole enough to be killed at any step."""

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import gyroscope as gyro
from gyroscope._files import write_text
from gyroscope.optim.equilibrium_init import EquilibriumStart
from gyroscope.optim.schedulers import EquilibriumRescale, Scheduler
from gyroscope_lab.training import checkpoint
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.interrupts import interrupts_between_steps
from gyroscope_lab.training.optimizers import make_optimizers
from gyroscope_lab.training.problems import Problem, Scores, make_problem
from gyroscope_lab.training.processes import (
    Processes,
    gathered,
    spread_moments,
    spread_weights,
    started_processes,
)
from gyroscope_lab.training.result import ROTATION, Divergence, TrainResult, fastest_before
from gyroscope_lab.training.start import follow_bases, prepare_weights

# Checkpoints of a run, evenly spaced, beside the one at its end and one at an interruption.
CHECKPOINTS = 10
# Steps between two looks at whether the loss is finite: each look waits for the device.
FINITE_EVERY = 10


@dataclass(frozen=True)
class StepReport:
    """What is known after a step. Loss and scores may be on a device still: reading them waits for it."""

    step: int
    steps: int
    samples: int
    """Of one step."""
    loss: Tensor
    scores: Scores
    rotation: dict[str, float]
    """What the tracker measured last, by the names that its sinks get."""


class DivergedError(Exception):
    """The loss is not finite."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def train(
    config: TrainConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data_root: str | Path | None = None,
    device: str = "cpu",
    fsdp: bool = False,
    on_start: Callable[[EquilibriumStart], None] = lambda start: None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> TrainResult:
    """Train as `config` says in the folder `out`; `resume` goes on from its newest checkpoint, bit for bit.

    `on_start` gets what a start at equilibrium changed, `on_step` is called after each step. Ctrl-C writes a checkpoint
    before it ends the run. Under torchrun the processes share each batch, by DDP, or by FSDP2 with `fsdp`; the numbers
    are those of one process, and a checkpoint goes on in any number of them. The first process writes and calls back.
    """
    folder = Path("runs", datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")) if out is None else Path(out)
    with started_processes(device, fsdp) as processes:
        problem = make_problem(config, None if data_root is None else Path(data_root), processes.device)
        training = Training(config, problem, folder, processes)
        if processes.is_first:
            _prepare(folder, config, resume)
        processes.wait()
        if resume:
            training.restore()
        # A run that goes on has left its start behind.
        if training.step == 0 and training.started is not None and processes.is_first:
            on_start(training.started)
        diverged_at = None
        try:
            with training.tracked(resume) as tracker, interrupts_between_steps() as interrupted:
                training.take_steps(tracker, on_step if processes.is_first else _ignore, interrupted)
        except DivergedError as error:
            diverged_at = error.step
        # Another process reads the run of the first one only when it is whole.
        processes.wait()
        divergence = (
            None if diverged_at is None else Divergence(diverged_at, fastest_before(diverged_at, folder / ROTATION))
        )
        return training.ended(divergence)


def _ignore(report: StepReport) -> None:
    """What processes do with a step that the first one reports."""


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

    def __init__(self, config: TrainConfig, problem: Problem, out: Path, processes: Processes | None = None) -> None:
        self.config = config
        self.problem = problem
        self.out = out
        self.processes = Processes(problem.device) if processes is None else processes
        self.processes.check(config)
        self.model: nn.Module = problem.model
        self.optimizers = make_optimizers(config, self.model)
        # Every process has the whole weights and whole batches until here, and so the same start.
        self.started = prepare_weights(config, problem, self.optimizers)
        spread = self.processes.spread(self.model)
        problem.share = self.processes.share
        if self.processes.fsdp:  # which has made other parameters of them
            self.optimizers = make_optimizers(config, self.model)
        self.forward: Any = torch.compile(spread) if config.compile else spread
        self.followers = follow_bases(config, problem, self.optimizers)
        # A batch that fills half a step is not one: an epoch has the whole steps.
        per_epoch = max(problem.batches_per_epoch // config.accumulate, 1)
        self.schedule = config.multiplier(per_epoch)
        self.schedulers = [self._scheduler(optimizer) for optimizer in self.optimizers]
        self.step = 0
        # Learning rates of the last step, group by group: the schedulers have moved on to those of the next.
        self.last_step_lr: list[float] = []
        self.history: list[dict[str, float]] = []
        self.tracker: gyro.Tracker | None = None
        self.rotation: dict[str, float] = {}
        # On the device: to read every loss would make each step wait for it.
        self.first_bad_step = torch.tensor(math.inf, device=problem.device)

    def _scheduler(self, optimizer: Optimizer) -> Scheduler:
        plain = LambdaLR(optimizer, self._rate)
        return EquilibriumRescale(optimizer, plain, model=self.model) if self.config.rescale else plain

    def _rate(self, t: int) -> float:
        return float(self.schedule(min(t, self.schedule.steps - 1)))

    def take_steps(
        self,
        tracker: gyro.Tracker | None,
        on_step: Callable[[StepReport], None],
        interrupted: Callable[[], bool],
    ) -> None:
        """Take the steps that are left, with evaluations and checkpoints on the way."""
        total = self.schedule.steps
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
            # Processes must agree on the step after which they end, and to ask takes a reduction.
            asking = self.processes.world == 1 or self.step % FINITE_EVERY == 0
            if asking and self.processes.any(interrupted()):
                self._refuse_divergence()
                self.save()
                raise KeyboardInterrupt
            if saving:
                self._save_or_warn()

    def _due(self, times: int) -> bool:
        """Whether something that happens so many times, evenly over the run and at its end, happens after this step."""
        total = self.schedule.steps
        return self.step == total or self.step * times // total > (self.step - 1) * times // total

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.problem.device.type, torch.bfloat16, enabled=self.config.precision != "float32")

    def one_step(self) -> tuple[Tensor, Scores]:
        """Forward, backward, step; the mean loss over the batches of the step, and the scores of the last."""
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
        means = self.processes.mean({"loss": mean_loss, **scores})
        mean_loss = cast(Tensor, means.pop("loss"))
        bad_step = torch.where(mean_loss.isfinite(), math.inf, float(self.step))
        self.first_bad_step = torch.minimum(self.first_bad_step, bad_step)
        return mean_loss, means

    def _refuse_divergence(self) -> None:
        step = self.first_bad_step.item()
        if math.isfinite(step):
            raise DivergedError(int(step))

    @contextmanager
    def tracked(self, resume: bool) -> Iterator[gyro.Tracker | None]:
        """The tracker of the run, if there is one."""
        if not self.config.track:
            yield None
            return
        path = self.out / ROTATION
        sampling: dict[str, Any] = {} if self.config.sample_every is None else {"every": self.config.sample_every}
        with gyro.Tracker(
            self.model,
            self.optimizers,
            path,
            config=self.config.as_dict(),
            sinks=[self._keep_rotation],
            resume=resume and path.exists(),
            start=self.step,
            **sampling,
        ) as tracker:
            self.tracker = tracker
            yield tracker

    def _keep_rotation(self, step: int, numbers: dict[str, float]) -> None:
        # What training logs comes here too.
        if "gyroscope/angular_update" in numbers:
            self.rotation = numbers

    def _save_or_warn(self) -> None:
        """Save; a full disk does not end a run, for the next checkpoint may find room. The last one has no next."""
        try:
            self.save()
        except ValueError as error:
            if self.step == self.schedule.steps:
                raise
            warnings.warn(f"gyroscope: {error}; training goes on", RuntimeWarning, stacklevel=2)

    def save(self) -> None:
        """Write a checkpoint of this step. The batches to come follow from the step and the seed."""
        state = {
            "step": self.step,
            "model": gathered(self.model.state_dict()),
            "optimizers": [gathered(optimizer.state_dict()) for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "last_step_lr": self.last_step_lr,
            "followers": [follower.state_dict() for follower in self.followers],
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all(),
            "history": self.history,
        }
        if self.processes.is_first:
            # A run that is killed and resumed goes on after this step: what was measured until here must be stored.
            if self.tracker is not None:
                self.tracker.flush()
            checkpoint.save(self.out / "checkpoints", self.step, state)

    def restore(self) -> None:
        """Go on where the newest checkpoint was; from the start where there is none."""
        state = checkpoint.load_newest(self.out / "checkpoints")
        if state is None:
            return
        self.step = state["step"]
        self.model.load_state_dict(spread_weights(state["model"], self.model))
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(spread_moments(saved, optimizer))
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self.last_step_lr = state.get("last_step_lr", [])
        for follower, saved in zip(self.followers, state.get("followers", []), strict=True):
            follower.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        torch.cuda.set_rng_state_all(state["cuda_random"])
        self.history = state["history"]

    def ended(self, divergence: Divergence | None) -> TrainResult:
        """How the run ended, also as a file."""
        diverged_at = None if divergence is None else divergence.step
        steps = self.step if diverged_at is None else diverged_at
        result = TrainResult(self.out, self.config, steps, self.history, divergence)
        text = {"scores": result.scores, "steps": steps, "diverged_at": diverged_at, "history": self.history}
        if self.processes.is_first:
            write_text(self.out / "result.json", json.dumps(text, indent=1))
        return result
