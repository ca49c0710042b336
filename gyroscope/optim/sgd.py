"""RotationalSGD: the direction of SGD with momentum, turned by the angle that it has in equilibrium."""

from typing import final

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_fraction
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import (
    Centring,
    Group,
    Imbalance,
    InnerRule,
    Step,
    Vectors,
    check_rotational,
    plain,
    rotation,
)
from gyroscope.theory.rules import sgdm


@final
class RotationalSGD(EngineOptimizer):
    """SGD held in equilibrium: every weight vector keeps its norm and turns by η_r on average.

        η_r = sqrt(2·lr·weight_decay/(1+momentum)) radians per step     (RE Table 1, Algorithm 1)

    With `nesterov` the angle is ours (docs/theory.md, "Nesterov's momentum and NAdam"). Vectors that turn feel no L2,
    which would only act along them; all else takes torch's SGD step, L2 in the gradient. A state_dict of torch's SGD
    loads. Every option may be set per group.
    When settings of SGD carry over: see RotationalAdamW.

    lr, momentum, nesterov    as SGD's; the angle follows sqrt(lr)
    weight_decay              sets the angle, and is the L2 of what does not turn (5e-4: usual for convolutions)
    beta, centre, granularity, compile, imbalance, stochastic_rounding    as RotationalAdamW's

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
        centre: Centring = True,
        granularity: Granularity = "neuron",
        compile: bool = False,
        imbalance: Imbalance | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def _check(self, group: Group) -> None:
        check_fraction("momentum", group["momentum"])
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError("nesterov=True needs a momentum above 0, for example momentum=0.9")
        check_rotational(group)

    def _step_for(self, group: Group, t: int, vectors: Vectors) -> Step:
        lr = group["lr"]
        weight_decay = group["weight_decay"]
        momentum = group["momentum"]
        nesterov = group["nesterov"]
        inner = InnerRule(
            direction=formulas.nesterov if nesterov else formulas.sgd,
            moments=("momentum_buffer",) if momentum > 0 else (),
            numbers={"l2": weight_decay, "momentum": momentum},
            lr=lr,
        )
        if not vectors.rotate:
            return plain(inner)
        return rotation(inner, sgdm.angular_update(lr, weight_decay, momentum, nesterov), group, t, vectors)
