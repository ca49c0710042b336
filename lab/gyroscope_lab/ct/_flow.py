"""Adam and AdamW as a differential equation (CT §2.2, Appendix I), for any loss that torch.func can differentiate.

Time is t = n·η^p after n discrete steps, so that one step takes η^p. In units of steps, s = t/η^p, the exponent p
disappears. With the displacement per step φ = dθ/ds,

    dφ/ds = -2·(λη·θ + φ + η·u)     (CT 4, I)

and p only sets the unit of the velocity θ̇ = φ/η^p.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.func import grad
from torch.utils import _pytree as pytree

from gyroscope.tools import check_betas, check_count, check_decay

# A pytree of tensors: a tensor, or lists, tuples and dicts of pytrees.
Parameters: TypeAlias = Any

# As in CT, on √v before bias correction.
EPS = 1e-30


@final
@dataclass(frozen=True)
class FlowState:
    """The state of the flow after `step` units of time, in pytrees of the same form as the parameters."""

    step: int
    parameters: Parameters
    velocity: Parameters
    """θ̇"""
    update: Parameters
    """u(t), which Adam multiplies by lr, without the decay"""


def flow(
    loss: Callable[..., Tensor],
    parameters: Parameters,
    *,
    lr: float,
    steps: int,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    coupled: bool = False,
    substeps: int = 100,
    timescale: float = 1.0,
    batches: Callable[[int], tuple[Any, ...]] | None = None,
) -> Iterator[FlowState]:
    """Integrate the continuous-time model of AdamW, and yield its state after the time of each step.

    Euler's method has `substeps` (the paper's K) per step. The moments are updated exponentially between them:

        m ← e^(-κ/K)·(m + κ/K·g),  κ = (1-β1)/β1,   v likewise with g² and β2
        u = sqrt(1-β2^(1+s))/(1-β1^(1+s)) · m/√v

    The flow starts at rest, with empty moments.

    - `loss`: `loss(parameters, *batches(n))` is a scalar.
    - `parameters`: a tensor, or lists, tuples and dicts of tensors.
    - `lr`, `weight_decay`, `betas`: AdamW's.
    - `steps`: length in discrete steps.
    - `coupled`: puts the decay into the gradient (Adam with L2).
    - `substeps`: the paper's K.
    - `timescale`: the paper's p. Only the unit of the velocity depends on it.
    - `batches`: the batch of step n, used for all its sub-steps.

    >>> start = {"w": torch.tensor([3.0, 4.0])}
    >>> *_, end = flow(lambda p: p["w"].square().sum(), start, lr=1e-2, steps=20, substeps=5)
    >>> bool(end.parameters["w"].norm() < 5)
    True
    """
    check_decay(lr, weight_decay)
    check_betas(betas)
    if min(betas) == 0:
        raise ValueError(f"betas={betas!r}: continuous averages need β above 0. Use a small one, for example 0.01")
    check_count("steps", steps, at_least=1)
    check_count("substeps", substeps, at_least=2)  # Euler's method is stable if 2/K ≤ 1
    leaves, form = pytree.tree_flatten(parameters)
    shapes = [leaf.shape for leaf in leaves]

    def tree(flat: Tensor) -> Parameters:
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return pytree.tree_unflatten([p.view(shape) for p, shape in zip(parts, shapes, strict=True)], form)

    gradient = grad(lambda flat, *batch: loss(tree(flat), *batch))
    # All parameters are in one vector, so that a sub-step is a dozen operations for any tree.
    theta = torch.cat([leaf.detach().flatten() for leaf in leaves])
    motion = _Motion(theta, lr, 0.0 if coupled else weight_decay, betas, substeps)
    for n in range(steps):
        batch = () if batches is None else batches(n)
        for k in range(substeps):
            g = gradient(motion.theta, *batch).detach()
            motion.advance(g + weight_decay * motion.theta if coupled else g, n + k / substeps)
        velocity = motion.phi / lr**timescale
        yield FlowState(n + 1, tree(motion.theta.clone()), tree(velocity), tree(motion.update(n + 1)))


class _Motion:
    """θ, φ = dθ/ds and the moments, all parameters in one vector."""

    def __init__(
        self, theta: Tensor, lr: float, weight_decay: float, betas: tuple[float, float], substeps: int
    ) -> None:
        self.theta = theta
        self.phi = torch.zeros_like(theta)
        self.m = torch.zeros_like(theta)
        self.v = torch.zeros_like(theta)
        self.lr = lr
        self.wd = weight_decay
        self.betas = betas
        self.K = substeps

    def update(self, s: float) -> Tensor:
        """Return u after the time of s steps. It is 0 before the first gradient."""
        beta1, beta2 = self.betas
        bias: float = (1 - beta2 ** (1 + s)) ** 0.5 / (1 - beta1 ** (1 + s))
        return bias * self.m / (self.v.sqrt() + EPS)

    def advance(self, g: Tensor, s: float) -> None:
        """Take one sub-step from time s, at which the gradient is g."""
        # All from the values at time s (Euler's method): θ before φ, and both before the moments.
        force = -2 * (self.wd * self.lr * self.theta + self.phi + self.lr * self.update(s))
        self.theta = self.theta + self.phi / self.K
        self.phi = self.phi + force / self.K
        self.m = self._average(self.m, g, self.betas[0])
        self.v = self._average(self.v, g * g, self.betas[1])

    def _average(self, average: Tensor, value: Tensor, beta: float) -> Tensor:
        # The continuous rate κ = (1-β)/β, over a K-th of a step.
        share = (1 - beta) / (beta * self.K)
        return exp(-share) * (average + share * value)
