"""RotationalSGD: the direction of SGD with momentum, turned by the angle that it has in equilibrium."""

from typing import final

from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_fraction
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas as step
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.turning import ROW_STATE, Imbalance, Inner, check_rotational, update_
from gyroscope.optim._engine.workspace import Workspace
from gyroscope.optim.formulas import Number
from gyroscope.theory.rules import sgdm


@final
class RotationalSGD(Base):
    """SGD held in equilibrium: every weight vector keeps its norm and turns by η_r on average.

        η_r = sqrt(2·lr·weight_decay/(1+momentum)) radians per step     (RE Table 1, Algorithm 1; Nesterov: the one law)

    Vectors that turn feel no L2, which would only act along them; all else takes torch's SGD step, L2 in the gradient.
    The options are those of RotationalAdamW. A state_dict of torch's SGD loads.

    >>> import torch
    >>> layer = torch.nn.Linear(8, 4)
    >>> RotationalSGD(layer.parameters(), lr=0.1, nesterov=True).param_groups[0]["momentum"]
    0.9
    """

    row_state = ROW_STATE

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 5e-4,
        *,
        beta: float = 0.99,
        centre: bool = True,
        granularity: Granularity = "neuron",
        compile: bool = False,
        imbalance: Imbalance | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        options: Group = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "beta": beta,
        }
        options |= {"centre": centre, "granularity": granularity, "compile": compile, "imbalance": imbalance}
        super().__init__(params, options | {"stochastic_rounding": stochastic_rounding})

    def _check(self, group: Group) -> None:
        check_fraction("momentum", group["momentum"])
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError("nesterov=True needs a momentum above 0, for example momentum=0.9")
        check_rotational(group)

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        update_(p, grad, state, group, _rule, space)


def _rule(group: Group, t: int) -> tuple[Inner, Number]:
    lr, weight_decay = group["lr"], group["weight_decay"]
    momentum, nesterov = group["momentum"], group["nesterov"]
    knobs = {"momentum": momentum, "nesterov": nesterov}
    moments = ("momentum_buffer",) if momentum > 0 else ()
    angle = sgdm.angular_update(lr, weight_decay, momentum, nesterov)
    return Inner(step.sgd, moments, knobs, lr, l2=weight_decay), angle
