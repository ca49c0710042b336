"""One short training, and the rotation of its hidden layers."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import gyroscope as gyro
from gyroscope.model.selection import Decision, select
from gyroscope.theory import Forecast
from gyroscope_lab.framework.arms import LOST, capped_loss
from gyroscope_lab.speed._tasks import Problem, make_problem
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.optimizers import make_optimizers

# Share of the run in which the learning rate rises. It then falls linearly to 0.
WARMUP = 0.05
# Shares of the run between which rotation per step is measured.
WINDOWS = {"peak": (0.05, 0.15), "mid": (0.4, 0.6), "end": (0.85, 0.95)}
# Steps that are measured in each of them.
SAMPLES = 8
# Quantities that a plan predicts.
PREDICTED = ("memories", "forecast_mid", "forecast_total")
# Quantities that a training returns.
QUANTITIES = ("loss", *WINDOWS, "total", *PREDICTED, "fan_in")
# Steps between two checks that the loss is finite.
FINITE_EVERY = 10


def train(settings: Mapping[str, Any], progress: Callable[[float], None] = lambda share: None) -> dict[str, float]:
    """Train with these settings of `TrainConfig`, and return `QUANTITIES`, medians over hidden layers.

        loss            on held-out data, at most `LOST`
        peak, mid, end  RMS rotation per step, in radians
        total           RMS angle between initial and final vectors, in radians
        memories        sum of the decay of all steps: the length of the run in memories
        forecast_mid, forecast_total  mid and total as forecast before training
        fan_in          entries of one vector

    Vectors are neurons, whatever the optimizer rotates. A run that diverged has no measured rotation.
    """
    config = TrainConfig.from_dict(dict(settings))
    assert config.steps is not None
    problem = make_problem(config)
    optimizers = make_optimizers(config, problem.model)
    hidden = [weight for weight in select(problem.model) if not weight.name.startswith("head.")]
    predicted = _predicted(problem, optimizers, config, {weight.name for weight in hidden})
    schedulers = [LambdaLR(optimizer, config.multiplier(1)) for optimizer in optimizers]
    first = [weight.parameter.detach().clone() for weight in hidden]
    windows = {name: _sampled_steps(config.steps, window) for name, window in WINDOWS.items()}
    squares: dict[str, list[list[float]]] = {name: [] for name in WINDOWS}
    generator = torch.Generator().manual_seed(config.seed)
    fan_in = float(np.median([weight.split.fan_in(weight.parameter.shape) for weight in hidden]))
    for step in range(config.steps):
        window = next((name for name, steps in windows.items() if step in steps), None)
        before = [weight.parameter.detach().clone() for weight in hidden] if window else []
        loss = _step(problem, optimizers, schedulers, generator)
        if window:
            squares[window].append(_squared_angles(hidden, before))
        if step % FINITE_EVERY == 0:
            progress(step / config.steps)
            if not math.isfinite(loss.item()):
                return {"loss": LOST, **dict.fromkeys((*WINDOWS, "total"), math.nan), **predicted, "fan_in": fan_in}
    rotation = {name: _median_rms(np.mean(sampled, axis=0)) for name, sampled in squares.items()}
    rotation["total"] = _median_rms(_squared_angles(hidden, first))
    return {"loss": capped_loss(problem.held_out_loss()), **rotation, **predicted, "fan_in": fan_in}


def _sampled_steps(steps: int, window: tuple[float, float]) -> set[int]:
    low, high = window
    return set(np.linspace(low * steps, max(high * steps - 1, low * steps), SAMPLES).astype(int).tolist())


def _step(
    problem: Problem, optimizers: list[Optimizer], schedulers: list[LambdaLR], generator: torch.Generator
) -> torch.Tensor:
    problem.model.zero_grad()
    loss = problem.loss(generator)
    torch.autograd.backward(loss)
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.step()
        scheduler.step()
    return loss.detach()


def _squared_angles(hidden: list[Decision], before: list[torch.Tensor]) -> list[float]:
    """Return, for each layer, the mean square angle between its vectors and those before."""
    return [
        float(weight.split.angle(old, weight.parameter.detach()).square().mean())
        for weight, old in zip(hidden, before, strict=True)
    ]


def _median_rms(squares: Any) -> float:
    return float(np.median(np.sqrt(squares)))


def _predicted(
    problem: Problem, optimizers: list[Optimizer], config: TrainConfig, hidden: set[str]
) -> dict[str, float]:
    """Return the predictions of a plan of this run, medians over hidden layers."""
    assert config.steps is not None
    multiplier = config.multiplier(1)
    schedulers = [LambdaLR(optimizer, multiplier) for optimizer in optimizers]
    generator = torch.Generator().manual_seed(config.seed)
    # Only the rotation of SGD depends on the size of gradients.
    loss = (lambda model: problem.loss(generator)) if config.optimizer.startswith("sgd") else None
    plan = gyro.plan(problem.model, optimizers, schedulers, steps=config.steps, loss=loss)
    forecasts = [forecast for name, forecast in plan.layers.items() if name in hidden]
    if not forecasts:  # the decay of one step would be more than the whole weight
        return dict.fromkeys(PREDICTED, math.nan)
    middle = slice(*(round(share * config.steps) for share in WINDOWS["mid"]))
    return {
        "memories": float(np.median([forecast.total_decay for forecast in forecasts])),
        "forecast_mid": _median_rms([np.mean(forecast.angular_update[middle] ** 2) for forecast in forecasts]),
        "forecast_total": float(np.median([angle_to_start(forecast) for forecast in forecasts])),
    }


def angle_to_start(forecast: Forecast) -> float:
    """Return the angle between the first and the last direction of a walk in noise, in radians (ours).

        cos(angle) = ‖w_0‖·e^(−X)/‖w_T‖,  X = Σ a_t

    Decay shrinks the first vector to e^(−X) of its length. The rest is noise, which is orthogonal to it.
    """
    kept = forecast.initial_norm * np.exp(-forecast.total_decay) / forecast.norm[-1]
    return float(np.arccos(min(kept, 1.0)))
