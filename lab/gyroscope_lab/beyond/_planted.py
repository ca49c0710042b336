"""Trainings with a planted incident at a known step, and trainings without one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import gyroscope as gyro
from gyroscope.store import Run
from gyroscope.tools import Array, Int64
from gyroscope_lab.tasks.images import Images
from gyroscope_lab.training.by_name import named_training
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.loop import StepReport, Training
from gyroscope_lab.training.problems import ImageProblem, Problem, Scores, TextProblem, make_problem

Number = TypeVar("Number", np.int64, np.float64)
# Inputs and targets of a batch -> those that replace them.
Spoil = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# Steps for which the learning rate is raised, labels are shuffled, a layer's gradient is too large.
RAISED = 3
SHUFFLED = 50
ENLARGED = 5


def is_tenth(step: int) -> bool:
    """Return whether the tracker measures a step by default if steps take long enough: the first 20, then every tenth.

    As a function it also applies on a busy machine.
    """
    return step < 20 or step % 10 == 0


def is_default(step: int) -> bool:
    """Return whether the tracker measures a step of these small networks by default.

    Their steps take 2 to 7 ms, and samples every ten steps would take 12 to 17 % of the time. So from about step 200 on
    the default measures every 160 or 320 steps. As a function this does not depend on the machine.
    """
    return step < 20 or step % (10 if step < 200 else 160) == 0


# Which steps are measured, by the name of the run's folder. Both runs are of the same training.
SAMPLINGS: dict[str, Callable[[int], bool]] = {"tenth": is_tenth, "default": is_default}


def last_sample(before: int) -> int:
    """Return the last step before another one that both runs measure."""
    return max(step for step in range(before) if is_tenth(step) and is_default(step))


@final
class SpoiltBatches(Problem):
    """A problem with some batches replaced."""

    def __init__(self, problem: ImageProblem | TextProblem, steps: range, spoil: Spoil) -> None:
        self.problem = problem
        self.steps = steps
        self.spoil = spoil
        self.model = problem.model
        self.device = problem.device
        self.batches_per_epoch = problem.batches_per_epoch

    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Return the loss of the batch, or of the spoilt one that replaces it."""
        if number not in self.steps:
            return self.problem.loss(model, number)
        batch = self.problem.batch(number)
        inputs, targets = (batch.pixels, batch.labels) if isinstance(batch, Images) else batch
        inputs, targets = self.spoil(inputs, targets)
        return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()), {}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the scores of the unspoilt problem."""
        return self.problem.evaluate(model)


def garbage(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return noise instead of pixels, or characters drawn uniformly instead of a text."""
    generator = torch.Generator().manual_seed(0)
    if inputs.is_floating_point():
        return torch.rand(inputs.shape, generator=generator), targets
    characters = torch.randint(int(inputs.max()) + 1, (len(inputs), inputs.shape[1] + 1), generator=generator)
    return characters[:, :-1], characters[:, 1:]


def shuffled(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same inputs with the targets of others."""
    order = torch.randperm(targets.numel(), generator=torch.Generator().manual_seed(0))
    return inputs, targets.flatten()[order].view_as(targets)


def raise_lr(training: Training, layer: str) -> None:
    """Multiply the learning rate by 10. The scheduler takes it back after a step."""
    for group in training.optimizers[0].param_groups:
        group["lr"] *= 10


def freeze(training: Training, layer: str) -> None:
    """Freeze one layer, so that it gets no gradient."""
    training.model.get_parameter(layer).requires_grad_(False)


@torch.no_grad()
def double(training: Training, layer: str) -> None:
    """Double the weights of one layer."""
    training.model.get_parameter(layer).mul_(2)


def raise_decay(training: Training, layer: str) -> None:
    """Multiply the weight decay by 100."""
    for group in training.optimizers[0].param_groups:
        group["weight_decay"] *= 100


def change_betas(training: Training, layer: str) -> None:
    """Make Adam's second average forget ten times as fast, or SGD's momentum half as fast."""
    for group in training.optimizers[0].param_groups:
        if "betas" in group:
            group["betas"] = (group["betas"][0], 1 - 10 * (1 - group["betas"][1]))
        else:
            group["momentum"] = 1 - (1 - group["momentum"]) / 2


def enlarge_gradient(training: Training, layer: str) -> None:
    """Multiply the gradient of one layer by 100, in one step."""

    def enlarge(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(100)
        handle.remove()

    parameter: Any = training.model.get_parameter(layer)
    handle = parameter.register_post_accumulate_grad_hook(enlarge)


# Incidents by name: batches that are replaced for a number of steps …
SPOILT: dict[str, tuple[Spoil, int]] = {
    "garbage batch": (garbage, 1),
    "shuffled labels": (shuffled, SHUFFLED),
}
# … or a change before each of a number of steps.
DONE: dict[str, tuple[Callable[[Training, str], None], int]] = {
    "learning rate": (raise_lr, RAISED),
    "frozen layer": (freeze, 1),
    "doubled weights": (double, 1),
    "weight decay": (raise_decay, 1),
    "betas": (change_betas, 1),
    "layer's gradient": (enlarge_gradient, ENLARGED),
    "layer's gradient once": (enlarge_gradient, 1),
}
PLANTED = (*SPOILT, *DONE)


@contextmanager
def tracked(training: Training, out: Path) -> Iterator[list[gyro.Tracker]]:
    """Yield a tracker for each of `SAMPLINGS`."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                gyro.Tracker(training.model, training.optimizers[0], out / name, every=every, start=training.step)
            )
            for name, every in SAMPLINGS.items()
        ]


def train_beginning(config: TrainConfig, out: Path, until: int) -> None:
    """Train to the sampled step `until`. The checkpoint has the state before it, and the runs have its sample."""
    training, _ = named_training(config, make_problem(config, None, torch.device("cpu")), out)

    def is_at(step: int) -> bool:
        return training.step == step

    with tracked(training, out) as (tracker, other):
        for step in (until, until + 1):
            with suppress(KeyboardInterrupt):
                training.take_steps(tracker, lambda done: other.log(loss=done.loss), partial(is_at, step))
            training.out = out / "after"  # the next checkpoint must not become the newest


def train_planted(
    config: TrainConfig,
    out: Path,
    *,
    planted: str = "",
    at: int = 0,
    layer: str = "",
    until: int | None = None,
    beginning: Path | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> Path:
    """Train with or without an incident, and return the folder with a run for each of `SAMPLINGS`.

    Arguments:
        config: the training.
        out: folder of the training.
        planted: a name of `PLANTED`, or none.
        at: step of the incident.
        layer: the layer that is frozen, doubled or has a large gradient.
        until: number of steps to take, by default those of the config.
        beginning: folder of `train_beginning` from which the training branches off.
        report: is called with the share that is done.
    """
    problem = make_problem(config, None, torch.device("cpu"))
    training, _ = named_training(config, problem, out if beginning is None else beginning)
    if beginning is not None:
        training.restore()
        training.out = out
    if planted in SPOILT:
        assert isinstance(problem, ImageProblem | TextProblem), "only images and texts can be spoilt"
        spoil, steps = SPOILT[planted]
        training.problem = SpoiltBatches(problem, range(at, at + steps), spoil)
    act, steps = DONE.get(planted, (None, 0))
    last = training.steps if until is None else until
    with tracked(training, out) as (tracker, other):

        def on_step(done: StepReport) -> None:
            other.log(loss=done.loss)
            report(training.step / last)
            if act is not None and at <= training.step < at + steps:
                act(training, layer)

        with suppress(KeyboardInterrupt):
            training.take_steps(tracker, on_step, lambda: training.step == until)
    return out


@final
class BranchedRun:
    """A beginning and a branch that measured its last sample again, read as one run.

    The branch's own sample of that step lacks the weights of the previous sample.
    """

    def __init__(self, beginning: Run, branch: Run) -> None:
        self._parts = (beginning, branch)
        self.layers = beginning.layers
        self.quantities = beginning.quantities
        self.scalars = beginning.scalars
        self.steps = _joined(beginning.steps, branch.steps)

    def series(self, layer: str, quantity: str, stat: str = "mean") -> Array:
        """Return the series of both parts, joined."""
        beginning, branch = (run.series(layer, quantity, stat) for run in self._parts)
        return _joined(beginning, branch)

    def scalar(self, name: str) -> tuple[Int64, Array]:
        """Return the logged steps and values of both parts, joined."""
        (steps, values), (more_steps, more_values) = (run.scalar(name) for run in self._parts)
        return _joined(steps, more_steps), _joined(values, more_values)


def _joined(beginning: npt.NDArray[Number], branch: npt.NDArray[Number]) -> npt.NDArray[Number]:
    return np.concatenate([beginning, branch[1:]])
