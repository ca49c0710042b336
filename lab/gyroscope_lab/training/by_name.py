"""Training from a config that names the task, the network and the optimizer."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gyroscope.optim.equilibrium_init import EquilibriumStart
from gyroscope.optim.schedulers import EquilibriumRescale, Scheduler
from gyroscope.theory.schedules import Schedule
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.loop import StepReport, Training
from gyroscope_lab.training.optimizers import make_optimizers
from gyroscope_lab.training.problems import Problem, make_problem
from gyroscope_lab.training.processes import Processes, started_processes
from gyroscope_lab.training.result import TrainResult, new_folder
from gyroscope_lab.training.start import follow_bases, prepare_weights


def train_by_name(
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
    """Train a network from a config. Under torchrun, all processes train together.

    Arguments:
        config: the settings.
        out: folder of the run. Default: a new one below runs/.
        resume: continue from the newest checkpoint of the folder, bit for bit.
        data_root: folder of the data sets.
        device: device name, as in torch.
        fsdp: under torchrun, shard the weights by FSDP2 instead of copying them by DDP.
        on_start: called with the changes of a start at equilibrium.
        on_step: called after each step, in the first process.

    Ctrl-C writes a checkpoint before it ends the run. The processes of torchrun share each batch. Results are the same
    as with one process, and a checkpoint can be resumed with any number of processes.
    """
    with started_processes(device, fsdp) as processes:
        problem = make_problem(config, None if data_root is None else Path(data_root), processes.device)
        training, started = named_training(config, problem, new_folder() if out is None else Path(out), processes)
        if processes.is_first:
            training.prepare_folder(resume)
        processes.wait()
        if resume:
            training.restore()
        # A resumed run is past its start.
        if training.step == 0 and started is not None and processes.is_first:
            on_start(started)
        return training.run(resume, on_step)


def named_training(
    config: TrainConfig, problem: Problem, out: Path, processes: Processes | None = None
) -> tuple[Training, EquilibriumStart | None]:
    """Return the training of a config, and the changes of a start at equilibrium if it has one."""
    processes = Processes(problem.device) if processes is None else processes
    processes.check(config)
    model: nn.Module = problem.model
    optimizers = make_optimizers(config, model)
    # Until here every process has whole weights and whole batches, so all have the same start.
    started = prepare_weights(config, problem, optimizers)
    spread = processes.spread(model)
    problem.share = processes.share
    if processes.fsdp:  # sharding replaced the parameters
        optimizers = make_optimizers(config, model)
    # An epoch counts whole steps only. Batches left over do not make a step.
    schedule = config.multiplier(max(problem.batches_per_epoch // config.accumulate, 1))
    training = Training(
        config,
        problem,
        out,
        optimizers=optimizers,
        forward=torch.compile(spread) if config.compile else spread,
        followers=follow_bases(config, problem, optimizers),
        schedulers=[_scheduler(config, schedule, optimizer, model) for optimizer in optimizers],
        steps=schedule.steps,
        processes=processes,
    )
    return training, started


def _scheduler(config: TrainConfig, schedule: Schedule, optimizer: Optimizer, model: nn.Module) -> Scheduler:
    plain = LambdaLR(optimizer, lambda t: float(schedule(min(t, schedule.steps - 1))))
    return EquilibriumRescale(optimizer, plain, model=model) if config.rescale else plain
