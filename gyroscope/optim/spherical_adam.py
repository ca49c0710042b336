"""SphericalAdam: AdamG of Cho and Lee (2017) as SP has it, Adam on the sphere, and AdamG*, which is SGD on it (SP)."""

from typing import final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope.geometry import Granularity
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.adam_s import adam_step, check_adam
from gyroscope.optim.rotation import norm_slack
from gyroscope.optim.sphere_formulas import adam_g, adam_g_star


@final
class SphericalAdam(EngineOptimizer):
    """Adam on the sphere: every weight vector keeps its norm n of the first step, and its direction u learns.

        h = n·g made tangent,  m ← β1·m + (1-β1)h,  v ← β2·v + (1-β2)‖h‖²
        u' = normalise(u - lr·√(1-β2^t)/(1-β1^t)·m/(√v + ε)),  m transported along the geodesic     (AdamG)

    Cho and Lee follow the exponential map, clip gradients and add an orthogonality term. SP and this class normalise.
    With `v0` and β1 = 0 it is AdamG*: no bias correction, v ← β2·v + ‖h‖² from v0, after the step (SP 3.2). It follows
    SGD with the settings of `theory.sphere.adam_g_star` (SP Theorem 4). All else takes Adam's step: give it a group.

    lr                radians: steady gradients rotate a vector by arctan(lr) per step
    betas, eps        as Adam's, with a β2 of shorter memory. v has one value per vector
    weight_decay      L2 in the gradient of weights that take Adam's step. Fixed norms do not decay
    v0                of AdamG*: one value, or one per vector. None for AdamG
    granularity, compile    as AdamS's

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[5.0, 0.0]]))
    >>> optimizer = SphericalAdam([w], lr=0.75)
    >>> w.grad = torch.tensor([[0.0, -3.0]])
    >>> optimizer.step()
    >>> [round(entry, 4) for entry in w.flatten().tolist()]
    [4.0, 3.0]
    """

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        v0: float | Tensor | None = None,
        granularity: Granularity = "neuron",
        compile: Compile = False,
    ) -> None:
        super().__init__(params, locals())

    def _check(self, group: Group) -> None:
        check_adam(group)
        beta1 = group["betas"][0]
        v0 = group["v0"]
        if v0 is None:
            return
        if not bool((torch.as_tensor(v0) > 0).all()):
            raise ValueError(f"v0={v0!r} must be above 0: take it from theory.sphere.adam_g_star")
        if beta1 != 0:
            raise ValueError(f"beta1={beta1!r} with v0={v0!r}: AdamG* has no momentum, pass betas=(0.0, beta2)")

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        v0 = group["v0"]
        rule = adam_g if v0 is None else adam_g_star
        rows = {"radius": -1.0, "exp_avg_sq": 0.0 if v0 is None else v0}
        return adam_step(rule, rows, group, t, kind, slack=norm_slack(kind.dtype))
