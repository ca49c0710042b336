"""RotationalAdamW: AdamW's direction, turned by the angle that AdamW has in equilibrium."""

from typing import final

from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas as step
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.turning import ROW_STATE, Imbalance, Inner, check_rotational, update_
from gyroscope.optim._engine.workspace import Workspace
from gyroscope.optim.formulas import Number
from gyroscope.theory.rules import adamw


@final
class RotationalAdamW(Base):
    """AdamW held in equilibrium: every weight vector keeps its norm and turns by η_r on average.

        η_r = sqrt(2·lr·weight_decay·(1-β1)/(1+β1)) radians per step     (RE Table 1, Algorithm 1)

    Tensors of two or more dimensions rotate, one vector per index of dimension 0; groups may set `granularity`, `axis`
    and `group_size`. All else takes AdamW's step. `beta` averages the sizes of updates, `centre` holds vectors at mean
    0, `imbalance` = (share, factor, seed) turns a share of each layer's vectors `factor` times as fast.
    A state_dict of torch's AdamW loads.

    >>> import torch
    >>> layer = torch.nn.Linear(8, 4)
    >>> RotationalAdamW(layer.parameters(), lr=1e-3, weight_decay=0.1).param_groups[0]["beta"]
    0.99
    """

    row_state = ROW_STATE

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
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
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "beta": beta,
            "centre": centre,
        }
        options |= {"granularity": granularity, "compile": compile, "imbalance": imbalance}
        super().__init__(params, options | {"stochastic_rounding": stochastic_rounding})

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_non_negative("eps", group["eps"])
        check_rotational(group)

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        update_(p, grad, state, group, _rule, space)


def _rule(group: Group, t: int) -> tuple[Inner, Number]:
    lr, weight_decay, eps = group["lr"], group["weight_decay"], group["eps"]
    beta1, beta2 = group["betas"]
    knobs = step.adam_knobs(beta1, beta2, 1 - beta1**t, 1 - beta2**t, eps)
    inner = Inner(step.adamw, ("exp_avg", "exp_avg_sq"), knobs, lr, lr * weight_decay, eps, fused_=step.fused_adam_)
    return inner, adamw.angular_update(lr, weight_decay, beta1)
