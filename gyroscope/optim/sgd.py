"""RotationalSGD: the direction of SGD with momentum and its equilibrium rotation."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_fraction
from gyroscope.geometry import Granularity
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.formulas import Norms, Number
from gyroscope.optim.model_start import NormRecord, Start, add_gains, set_norms_
from gyroscope.optim.rotation import RuleFacts, rotation
from gyroscope.optim.rotation_options import Centring, UpdateAverage, check_rotational
from gyroscope.theory.rules import sgdm


@final
class RotationalSGD(EngineOptimizer):
    """SGD held in equilibrium: every weight vector keeps its norm and rotates by η_r on average.

        η_r = sqrt(2·lr·weight_decay/(1+momentum)) radians per step     (RE Table 1, Algorithm 1)

    With `nesterov` the angle is ours (docs/theory.md, "Nesterov's momentum and NAdam"). L2 does not act on vectors that
    rotate, because it would only act along them. All else takes torch's SGD step, with L2 in the gradient. A state_dict
    of torch's SGD loads. Every option may be set per group. `RotationalAdamW` describes when settings of SGD carry
    over.

    lr, momentum, nesterov    as SGD's. The angle is proportional to sqrt(lr)
    weight_decay              sets the angle, and is the L2 of weights that do not rotate (5e-4: usual for convolutions)
    beta, update_average, norms, centre, granularity, compile, stochastic_rounding    as RotationalAdamW's
    gain, start, start_from   as RotationalAdamW's

    >>> import torch
    >>> layer = torch.nn.Linear(8, 4)
    >>> RotationalSGD(layer.parameters(), lr=0.1, nesterov=True).param_groups[0]["momentum"]
    0.9
    """

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 5e-4,
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
        check_fraction("momentum", group["momentum"])
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError("nesterov=True needs a momentum above 0, for example momentum=0.9")
        check_rotational(group)

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        inner = Step(
            direction=nesterov if group["nesterov"] else sgd,
            moments=("momentum_buffer",) if group["momentum"] > 0 else (),
            numbers={"l2": group["weight_decay"], "momentum": group["momentum"]},
            lr=group["lr"],
        )
        facts = RuleFacts("sgd", correlation=sgdm.correlation(group["momentum"], group["nesterov"]))
        angle = sgdm.angular_update(group["lr"], group["weight_decay"], group["momentum"], group["nesterov"])
        return rotation(inner, facts, angle, group, t, kind)


def sgd(entries: Sequence[Tensor], out: Tensor, *, l2: Number, momentum: Number) -> None:
    """Compute SGD's direction, m ← α·m + g + λω, Δ = -m. Without a momentum buffer Δ = -(g + λω).

    λ, `l2`, is 0 for a vector that rotates, because L2 acts along it.
    """
    _, _, *buffer = entries
    _add_l2(entries, out, l2)
    if not buffer:
        out.neg_()
        return
    buffer[0].mul_(momentum).add_(out)
    torch.mul(buffer[0], -1, out=out)


def nesterov(entries: Sequence[Tensor], out: Tensor, *, l2: Number, momentum: Number) -> None:
    """Compute SGD's direction with Nesterov's momentum, m ← α·m + g + λω, Δ = -(g + λω + α·m)."""
    momentum_buffer = entries[2]
    _add_l2(entries, out, l2)
    momentum_buffer.mul_(momentum).add_(out)
    out.add_(momentum_buffer * momentum).neg_()


def _add_l2(entries: Sequence[Tensor], out: Tensor, l2: Number) -> None:
    w, grad = entries[:2]
    torch.addcmul(grad.to(out.dtype), w.to(out.dtype), torch.as_tensor(l2, dtype=out.dtype), out=out)
