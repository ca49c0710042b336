"""SGD-MRT: SGD whose momentum is rescaled and transported with the weight (SP)."""

from typing import final

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_fraction
from gyroscope.geometry import Granularity
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.sgd import sgd
from gyroscope.optim.sphere_formulas import sgd_mrt, sphere


@final
class SGDMRT(EngineOptimizer):
    """SGD with L2 whose momentum stays tangent to each weight vector.

        m ← α·m + g + λω,   ω' = ω - lr·m,   m ← (⟨ω',ω⟩m - ⟨ω',m⟩ω)/⟨ω',ω'⟩     (SP 18, 76)

    L2 does not accumulate, so the weight decays (1-α) times as fast as with SGD. It rotates by sqrt(2·lr·weight_decay)
    radians per step in equilibrium, for any momentum. For scale-invariant vectors. All else takes SGD's step, and so do
    all weights if the momentum is 0. Every option may be set per group.

    lr, momentum      as SGD's. The momentum is float32 or better
    weight_decay      λ, the L2 in the gradient. 0 as in SGD
    granularity, compile    as AdamS's

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]))
    >>> optimizer = SGDMRT([w], lr=1.0)
    >>> w.grad = torch.tensor([[0.0, -1.0]])
    >>> optimizer.step()
    >>> w.tolist(), optimizer.state[w]["momentum_buffer"].tolist()
    ([[1.0, 1.0]], [[0.5, -0.5]])
    """

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        granularity: Granularity = "neuron",
        compile: Compile = False,
    ) -> None:
        super().__init__(params, locals())

    def _check(self, group: Group) -> None:
        check_fraction("momentum", group["momentum"])

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        lr = group["lr"]
        momentum = group["momentum"]
        l2 = group["weight_decay"]
        if momentum > 0 and kind.rotates:
            return sphere("momentum_buffer", {}, sgd_mrt, (lr, l2, momentum), kind)
        return Step(
            direction=sgd,
            moments=("momentum_buffer",) if momentum > 0 else (),
            numbers={"l2": l2, "momentum": momentum},
            lr=lr,
        )
