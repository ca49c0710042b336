"""Lion, and RotationalLion: the direction of Lion with its equilibrium rotation."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas
from gyroscope.geometry import Granularity
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.formulas import Norms, Number, average_
from gyroscope.optim.model_start import NormRecord, Start, add_gains, set_norms_
from gyroscope.optim.rotation import RuleFacts, rotation
from gyroscope.optim.rotation_options import Centring, UpdateAverage, check_rotational
from gyroscope.theory.rules import lion


@final
class Lion(EngineOptimizer):
    """Lion (Chen et al. 2023): the sign of an average, and decoupled decay.

        w ← (1 - lr·weight_decay)·w - lr·sign(β1·m + (1-β1)·g),   m ← β2·m + (1-β2)·g

    A gradient that is not finite makes weights NaN, as with torch's optimizers. The sign alone would hide it and freeze
    these entries. The momentum is float32 or better.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(2, 2))
    >>> optimizer = Lion([w], lr=0.5)
    >>> w.grad = torch.tensor([[1.0, -3.0], [0.1, 0.0]])
    >>> optimizer.step()
    >>> w.tolist()
    [[-0.5, 0.5], [-0.5, 0.0]]
    """

    turns_by_group = False

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, locals())

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        return _lion(group)


@final
class RotationalLion(EngineOptimizer):
    """Lion held in equilibrium: every weight vector keeps its norm and rotates by η_r on average.

        η_r = sqrt(2·lr·weight_decay/τ) radians per step, τ of the signs by the arcsine law     (RE Algorithm 1)

    τ is ours (docs/theory.md, "Lion and the arcsine law"). Weights that do not rotate take Lion's step. Every option
    may be set per group. `RotationalAdamW` describes when settings of Lion carry over.

    lr, betas                 as Lion's. The angle is proportional to sqrt(lr)
    weight_decay              sets the angle, and decays weights that do not rotate (1.0: Lion's lr is below AdamW's)
    beta, update_average, norms, centre, granularity, compile, stochastic_rounding    as RotationalAdamW's
    gain, start, start_from   as RotationalAdamW's

    >>> import torch
    >>> layer = torch.nn.Linear(8, 4)
    >>> RotationalLion(layer.parameters()).param_groups[0]["weight_decay"]
    1.0
    """

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 1.0,
        *,
        beta: float = 0.99,
        update_average: UpdateAverage = "noise",
        norms: Norms = "fixed",
        centre: Centring = True,
        granularity: Granularity = "neuron",
        compile: Compile = False,
        stochastic_rounding: bool = False,
        gain: bool = False,
        start: Start = "initial",
        start_from: NormRecord | None = None,
    ) -> None:
        add_gains(params, gain, start, start_from)
        super().__init__(params, locals())
        set_norms_(self, params, start, start_from)

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_rotational(group)

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        angle = lion.angular_update(group["lr"], group["weight_decay"], *group["betas"])
        facts = RuleFacts("lion", correlation=lion.correlation(*group["betas"]))
        return rotation(_lion(group), facts, angle, group, t, kind)


def _lion(group: Group) -> Step:
    beta1, beta2 = group["betas"]
    return Step(
        direction=lion_direction,
        moments=("exp_avg",),
        numbers={"w1": 1 - beta1, "w2": 1 - beta2},
        lr=group["lr"],
        decay=group["lr"] * group["weight_decay"],
    )


def lion_direction(entries: Sequence[Tensor], out: Tensor, *, w1: Number, w2: Number) -> None:
    """Compute Lion's direction, Δ = -sign(β1·m + (1-β1)·g), then m ← β2·m + (1-β2)·g. w1 = 1-β1, w2 = 1-β2."""
    _, grad, exp_avg = entries
    # torch's sign of NaN is 0, which would freeze such entries silently. Clamped at the smallest normal number and
    # divided by it, a power of 2, every number becomes its sign and NaN stays NaN.
    tiny = torch.finfo(out.dtype).tiny
    torch.sub(exp_avg, grad, out=out).mul_(w1).sub_(exp_avg).clamp_(-tiny, tiny).mul_(1 / tiny)
    average_(exp_avg, grad, w2)
