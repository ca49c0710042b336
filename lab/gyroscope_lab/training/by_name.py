"""Training from a config that names the task, the network and the optimizer."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gyroscope.model.gradients import Loss
from gyroscope.model.selection import select
from gyroscope.optim.equilibrium_init import EquilibriumStart, to_equilibrium_
from gyroscope.optim.follow_base import BaseFollower, follow
from gyroscope.optim.schedulers import EquilibriumRescale, Scheduler
from gyroscope.theory.schedules import Schedule
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.loop import StepReport, Training
from gyroscope_lab.training.optimizers import make_optimizers
from gyroscope_lab.training.problems import Problem, make_problem
from gyroscope_lab.training.result import TrainResult, new_folder

# Batches on which gradients are measured, for optimizers whose norms depend on them.
BATCHES = 4


def train(
    config: TrainConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data_root: str | Path | None = None,
    device: str = "cpu",
    on_start: Callable[[EquilibriumStart], None] = lambda start: None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> TrainResult:
    """Train a network from a config. Ctrl-C writes a checkpoint before it ends the run.

    Arguments:
        config: the settings.
        out: folder of the run. Default: a new one below runs/.
        resume: continue from the newest checkpoint of the folder, bit for bit.
        data_root: folder of the data sets.
        device: device name, as in torch.
        on_start: called with the changes of a start at equilibrium.
        on_step: called after each step.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(TrainConfig(task="digits", model="mlp:width=8", steps=20), folder)
    >>> result.steps, sorted(result.scores)
    (20, ['validation_accuracy', 'validation_loss'])
    """
    problem = make_problem(config, None if data_root is None else Path(data_root), usable_device(device))
    training, started = named_training(config, problem, new_folder() if out is None else Path(out))
    training.prepare_folder(resume)
    if resume:
        training.restore()
    # A resumed run is past its start.
    if training.step == 0 and started is not None:
        on_start(started)
    return training.run(resume, on_step)


def usable_device(name: str) -> torch.device:
    """Return the device of this name, or raise ValueError if torch cannot compute on it here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0].split(". ")[0]
        raise ValueError(f"device={name!r} cannot be used ({reason}): choose for example cpu, cuda or mps") from None
    return device


def named_training(config: TrainConfig, problem: Problem, out: Path) -> tuple[Training, EquilibriumStart | None]:
    """Return the training of a config, and the changes of a start at equilibrium if it has one."""
    model: nn.Module = problem.model
    optimizers = make_optimizers(config, model)
    started = prepare_weights(config, problem, optimizers)
    # An epoch counts whole steps only. Batches left over do not make a step.
    schedule = config.multiplier(max(problem.batches_per_epoch // config.accumulate, 1))
    training = Training(
        config,
        problem,
        out,
        optimizers=optimizers,
        forward=torch.compile(model) if config.compile else model,
        followers=follow_bases(config, problem, optimizers),
        schedulers=[_scheduler(config, schedule, optimizer, model) for optimizer in optimizers],
        steps=schedule.steps,
    )
    return training, started


def _scheduler(config: TrainConfig, schedule: Schedule, optimizer: Optimizer, model: nn.Module) -> Scheduler:
    plain = LambdaLR(optimizer, lambda t: float(schedule(min(t, schedule.steps - 1))))
    return EquilibriumRescale(optimizer, plain, model=model) if config.rescale else plain


def prepare_weights(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> EquilibriumStart | None:
    """Change the initial weights as configured. Return the changes of a start at equilibrium if there is one."""
    turning = [weight.parameter for weight in select(problem.model, list(optimizers))]
    with torch.no_grad():
        for weight in turning:
            weight.mul_(config.init_scale)
    started = None if config.start == "initial" else _at_equilibrium(config, problem, optimizers)
    if config.precision == "pure-bf16":
        for weight in turning:
            weight.data = weight.data.bfloat16()
    return started


def follow_bases(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> list[BaseFollower]:
    """Let rotational optimizers rotate as their bases would from the current weights, if the config asks for it."""
    if not config.follow:
        return []
    return [follow(optimizer, problem.model, loss=_first_batches(problem)) for optimizer in optimizers]


def _first_batches(problem: Problem) -> Loss:
    """Return a loss that repeats the same batches, so that losses before and after a change are comparable."""
    numbers = cycle(range(BATCHES))
    return lambda model: problem.loss(model, next(numbers))[0]


def _at_equilibrium(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> EquilibriumStart:
    return to_equilibrium_(
        problem.model,
        list(optimizers),
        embeddings=config.start == "equilibrium+embeddings",
        loss=_first_batches(problem),
        batches=BATCHES,
    )
