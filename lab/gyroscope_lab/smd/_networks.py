"""Shared parts of SMD's experiments on networks: the training of an arm, and the motion of its layers as vectors.

The paper follows the weight of a whole convolution. A norm after it makes the whole scale-invariant, like each filter.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from gyroscope.geometry import Split
from gyroscope.theory import SGDM
from gyroscope.tools import Array, Integers
from gyroscope_lab.framework.arms import Arms
from gyroscope_lab.framework.experiment import Trial
from gyroscope_lab.framework.weight_steps import WeightStep, train_and_see
from gyroscope_lab.smd._prescribed_gradients import equilibrium_angle, equilibrium_norm2

LAYER = Split("tensor")
# Of a line in a figure.
POINTS = 80

# Of all quick sizes: CIFAR-10 averaged to 8 × 8 pixels, and four convolutions with BatchNorm in place of ResNet-50.
SMALL: dict[str, Any] = {
    "task": "cifar10",
    "shrink": 4,
    "model": "cnn:width=16",
    "optimizer": "sgd",
    "momentum": 0.9,
    "turn_head": False,
}


@final
class LayerMotion:
    """The motion of every layer over a run, as arrays (steps, layers). SMD's figures show it.

    norm2     ‖w‖² after the step
    angle     ∠(w_t, w_{t+1}), in radians
    gradient  ‖g̃‖² = ‖g‖²·‖w‖², the squared unit gradient norm
    h         (‖g‖² + 2α⟨v, g⟩)·‖w‖², which replaces it under momentum α (SMD 60)
    turned    by its number of steps k: ∠(w_{t-k+1}, w_{t+1}), NaN for the first steps
    """

    def __init__(self, momentum: float, spans: tuple[int, ...] = ()) -> None:
        self.momentum = momentum
        self.spans = spans
        self.rows: list[list[tuple[float, ...]]] = []
        self.past: dict[str, deque[Tensor]] = {}
        self.next_lr = np.nan

    def see(self, step: int, weights: dict[str, WeightStep]) -> None:
        """Measure one step."""
        self.next_lr = next(iter(weights.values())).next_lr
        self.rows.append([self._measured(name, weight) for name, weight in weights.items()])

    def _measured(self, name: str, step: WeightStep) -> tuple[float, ...]:
        length2 = LAYER.dot(step.before, step.before)
        g2 = LAYER.dot(step.gradient, step.gradient)
        cross = 2 * self.momentum * LAYER.dot(step.momentum, step.gradient)
        past = self.past.setdefault(name, deque(maxlen=max(self.spans, default=1)))
        past.append(step.before)
        turned = [LAYER.angle(past[-k], step.after) if len(past) >= k else torch.tensor([np.nan]) for k in self.spans]
        numbers = (
            LAYER.dot(step.after, step.after),
            LAYER.angle(step.before, step.after),
            g2 * length2,
            (g2 + cross) * length2,
            *turned,
        )
        return tuple(float(number) for number in numbers)

    def __getitem__(self, name: str) -> Array:
        """Return one of the quantities above."""
        place = ("norm2", "angle", "gradient", "h").index(name)
        return np.array(self.rows)[..., place]

    def turned(self, span: int) -> Array:
        """Return the angle over this number of steps."""
        return np.array(self.rows)[..., 4 + self.spans.index(span)]


def settings_of(config: Arms, arm: str) -> dict[str, Any]:
    """Return the settings of an arm."""
    return {**config.base, **config.arms[arm]}


def rule_of(config: Arms, arm: str) -> SGDM:
    """Return the rule of an arm, at its first learning rate."""
    settings = settings_of(config, arm)
    return SGDM(settings["lr"], settings["weight_decay"], settings["momentum"])


def train_arm(
    trial: Trial[Any],
    spans: tuple[int, ...] = (),
    rescaling: Callable[[LayerMotion], Array | None] = lambda motion: None,
) -> tuple[LayerMotion, float]:
    """Train an arm, and return the motion of its layers and its accuracy on data held out.

    `rescaling` is called after each step and returns a factor for each layer, or None.
    """
    settings = settings_of(trial.config, trial.part)
    motion = LayerMotion(settings["momentum"], spans)

    def see(step: int, weights: dict[str, WeightStep]) -> dict[str, float] | None:
        motion.see(step, weights)
        factors = rescaling(motion)
        return None if factors is None else dict(zip(weights, factors.tolist(), strict=True))

    scores = train_and_see(trial, settings, see)
    return motion, scores["validation_accuracy"]


def averaged(values: Array, width: int) -> Array:
    """Return means over `width` steps around each step, fewer at the ends. The paper estimates expectations this way.

    >>> averaged(np.array([0.0, 3.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.5]
    """
    summed = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])
    centre = np.arange(len(values))
    first = np.maximum(centre - (width - 1) // 2, 0)
    last = np.minimum(centre + width // 2 + 1, len(values))
    return np.asarray((summed[last] - summed[first]) / (last - first).reshape(-1, *[1] * (values.ndim - 1)))


def theory_norm(rule: SGDM, mean_h: Array) -> Array:
    """Return ‖w‖ of Theorems 1 and 2 for the expectation L of h̃. Without momentum, h̃ is ‖g̃‖²."""
    # A mean of few steps may be below 0, where there is no equilibrium.
    return np.asarray((equilibrium_norm2(rule, 1.0) * np.sqrt(np.maximum(mean_h, 0))) ** 0.5)


def theory_angle(rule: SGDM) -> float:
    """Return the angle of Theorem 3, sqrt(2·lr·wd/(1+α)), in radians."""
    return equilibrium_angle(rule)


def drawn(values: Array) -> Array:
    """Return the data of a figure, (points, layers): means around each of `POINTS` steps of the run."""
    return averaged(values, max(len(values) // POINTS, 1))[drawn_steps(len(values))]


def drawn_steps(steps: int) -> Integers:
    """Return those steps, some of them twice if the run is short."""
    return np.linspace(0, steps - 1, POINTS).astype(np.int64)
