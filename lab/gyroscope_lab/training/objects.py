"""Training from a model, an optimizer and a loss that are given as objects."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gyroscope.optim.schedulers import Scheduler
from gyroscope.tools import check_count
from gyroscope_lab.training.loop import StepReport, Training
from gyroscope_lab.training.problems import Problem, Scores
from gyroscope_lab.training.processes import Processes
from gyroscope_lab.training.result import TrainResult, new_folder

Evaluate = Callable[[nn.Module], Mapping[str, float]]


@final
@dataclass(frozen=True)
class ObjectsConfig:
    """The record of a run whose parts are objects: their classes, and the settings of the loop."""

    model: str
    optimizers: tuple[str, ...]
    steps: int
    evaluations: int = 10
    track: bool = True
    sample_every: int | None = None
    # The loss chooses batches and precision. The loop takes one batch per step.
    batch_size: ClassVar[int] = 1
    accumulate: ClassVar[int] = 1
    clip: ClassVar[float | None] = None
    precision: ClassVar[str] = "float32"
    neurons: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps, at_least=1)
        check_count("evaluations", self.evaluations, at_least=1)
        if self.sample_every is not None:
            check_count("sample_every", self.sample_every, at_least=1)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ObjectsConfig":
        """Return the config of a file."""
        return cls(**{**values, "optimizers": tuple(values["optimizers"])})


@final
class ObjectsProblem(Problem):
    """A model with a loss that draws a fresh batch at each call."""

    batches_per_epoch = 1

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor], evaluate: Evaluate | None) -> None:
        self.model = model
        parameter = next(model.parameters(), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self._loss = loss
        self._evaluate = evaluate

    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Return the loss on a fresh batch."""
        return self._loss(model), {}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the scores on held-out data, in evaluation mode."""
        if self._evaluate is None:
            return {}
        model.eval()
        scores = {name: float(value) for name, value in self._evaluate(model).items()}
        model.train()
        return scores


def train_objects(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loss: Callable[[nn.Module], Tensor],
    *,
    steps: int,
    scheduler: Scheduler | Sequence[Scheduler] | None = None,
    evaluate: Evaluate | None = None,
    evaluations: int = 10,
    out: str | Path | None = None,
    resume: bool = False,
    track: bool = True,
    sample_every: int | None = None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> TrainResult:
    """Train a model for `steps` steps, with the tracker, the checkpoints and the result of `gyroscope train`.

    Arguments:
        model: any module, on its device.
        optimizer: any torch optimizer over its parameters, or several.
        loss: loss(model) draws a fresh batch and returns a scalar.
        steps: length of the run.
        scheduler: one for each optimizer, called after each step. None: constant learning rates.
        evaluate: evaluate(model) returns scores on held-out data, by name.
        evaluations: number of calls of `evaluate`, evenly over the run.
        out: folder of the run. Default: a new one below runs/.
        resume: continue from the newest checkpoint of the folder. It restores torch's global random state, so the run
            continues bit for bit if the loss draws batches from it.
        track: measure rotation while training.
        sample_every: steps between measurements. None: the tracker's own choice.
        on_step: called after each step.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    names = tuple(type(each).__name__ for each in optimizers)
    training = Training(
        ObjectsConfig(type(model).__name__, names, steps, evaluations, track, sample_every),
        problem := ObjectsProblem(model, loss, evaluate),
        new_folder() if out is None else Path(out),
        optimizers=optimizers,
        schedulers=_schedulers(scheduler, optimizers),
        steps=steps,
        processes=Processes(problem.device),
    )
    training.prepare_folder(resume)
    if resume:
        training.restore()
    return training.run(resume, on_step)


def _schedulers(given: Scheduler | Sequence[Scheduler] | None, optimizers: list[Optimizer]) -> list[Scheduler]:
    if given is None:
        return [LambdaLR(optimizer, lambda step: 1.0) for optimizer in optimizers]
    schedulers = list(given) if isinstance(given, Sequence) else [given]
    if len(schedulers) != len(optimizers):
        raise ValueError(f"{len(schedulers)} schedulers for {len(optimizers)} optimizers: give one for each")
    return schedulers
