"""Lion, and RotationalLion: Lion's direction, turned by the angle that Lion has in equilibrium."""

from typing import final

from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas as step
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.turning import ROW_STATE, Imbalance, Inner, check_rotational, update_
from gyroscope.optim._engine.workspace import Workspace
from gyroscope.optim.formulas import Number
from gyroscope.theory.rules import lion


@final
class Lion(Base):
    """Lion (Chen et al. 2023): the sign of an average, and decoupled decay.

        w ← (1 - lr·weight_decay)·w - lr·sign(β1·m + (1-β1)·g),   m ← β2·m + (1-β2)·g

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
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        update_(p, grad, state, group, _plain_rule, space)


@final
class RotationalLion(Base):
    """Lion held in equilibrium: every weight vector keeps its norm and turns by η_r on average.

        η_r = sqrt(2·lr·weight_decay/τ) radians per step, τ of the signs by the arcsine law     (RE Algorithm 1)

    All that does not turn takes Lion's step. The options are those of RotationalAdamW.

    >>> import torch
    >>> layer = torch.nn.Linear(8, 4)
    >>> RotationalLion(layer.parameters()).param_groups[0]["weight_decay"]
    1.0
    """

    row_state = ROW_STATE

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 1.0,
        *,
        beta: float = 0.99,
        centre: bool = True,
        granularity: Granularity = "neuron",
        compile: bool = False,
        imbalance: Imbalance | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        options: Group = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "beta": beta, "centre": centre}
        options |= {"granularity": granularity, "compile": compile, "imbalance": imbalance}
        super().__init__(params, options | {"stochastic_rounding": stochastic_rounding})

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_rotational(group)

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        update_(p, grad, state, group, _rule, space)


def _plain_rule(group: Group, t: int) -> tuple[Inner, None]:
    return _inner(group), None


def _rule(group: Group, t: int) -> tuple[Inner, Number]:
    return _inner(group), lion.angular_update(group["lr"], group["weight_decay"], *group["betas"])


def _inner(group: Group) -> Inner:
    beta1, beta2 = group["betas"]
    lr = group["lr"]
    knobs = {"w1": 1 - beta1, "w2": 1 - beta2}
    return Inner(step.lion, ("exp_avg",), knobs, lr, lr * group["weight_decay"], cheap=True)
