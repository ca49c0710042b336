"""Training from a config or from your own objects. A run can be resumed at any step."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.optim.equilibrium_init import EquilibriumStart
from gyroscope.optim.schedulers import Scheduler
from gyroscope_lab.training.by_name import train_by_name
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.loop import StepReport
from gyroscope_lab.training.objects import Evaluate, train_objects
from gyroscope_lab.training.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "train"]


@overload
def train(
    config: TrainConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data_root: str | Path | None = None,
    device: str = "cpu",
    fsdp: bool = False,
    on_start: Callable[[EquilibriumStart], None] = ...,
    on_step: Callable[[StepReport], None] = ...,
) -> TrainResult: ...
@overload
def train(
    *,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loss: Callable[[nn.Module], Tensor],
    steps: int,
    scheduler: Scheduler | Sequence[Scheduler] | None = None,
    evaluate: Evaluate | None = None,
    evaluations: int = 10,
    out: str | Path | None = None,
    resume: bool = False,
    track: bool = True,
    sample_every: int | None = None,
    on_step: Callable[[StepReport], None] = ...,
) -> TrainResult: ...
def train(*arguments: Any, **options: Any) -> TrainResult:
    """Train a network from a config (`train_by_name`) or from a model, an optimizer and a loss (`train_objects`).

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(
    ...         model=model, optimizer=optimizer, loss=lambda model: model(torch.randn(16, 8)).square().mean(),
    ...         steps=20, evaluate=lambda model: {"norm": model.weight.norm()}, out=folder, track=False,
    ...     )
    >>> result.steps, list(result.scores)
    (20, ['norm'])
    """
    if "model" in options:
        return train_objects(*arguments, **options)
    return train_by_name(*arguments, **options)
