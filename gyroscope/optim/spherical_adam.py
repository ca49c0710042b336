"""SphericalAdam: AdamG, Adam constrained to the sphere (Cho & Lee 2017), and AdamG*, which SGD turns out to be (SP)."""

from typing import final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope.geometry import Granularity
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.spherical import adam_numbers, advance_, check_adam, per_entry, per_vector, plain_adam_
from gyroscope.optim._engine.turning import slack
from gyroscope.optim._engine.workspace import Workspace
from gyroscope.optim.sphere_formulas import adam_g, adam_g_star


@final
class SphericalAdam(Base):
    """Adam on the sphere: every weight vector keeps the norm n it has at the first step, and its direction u learns.

        h = n·g made tangent,  m ← β1·m + (1-β1)h,  v ← β2·v + (1-β2)‖h‖²
        u' = normalise(u - lr·√(1-β2^t)/(1-β1^t)·m/(√v + ε)),  m transported along the geodesic     (AdamG)

    lr is in radians: steady gradients turn a vector by arctan(lr) per step. With `v0`, one value or one per vector, and
    β1 = 0 it is AdamG*: no bias correction, and v ← β2·v + ‖h‖² from v0, after the step (SP 3.2); with the settings of
    `theory.sphere.adam_g_star` it follows SGD with weight decay (SP Theorem 4).

    Tensors of two or more dimensions have one vector per index of dimension 0; groups may set `granularity`, `axis` and
    `group_size`. All else takes Adam's step at the same lr – give it a group – and only there does weight_decay act.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[5.0, 0.0]]))
    >>> optimizer = SphericalAdam([w], lr=0.75)
    >>> w.grad = torch.tensor([[0.0, -3.0]])
    >>> optimizer.step()
    >>> [round(entry, 4) for entry in w.flatten().tolist()]
    [4.0, 3.0]
    """

    row_state = ("radius", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        v0: float | Tensor | None = None,
        granularity: Granularity = "neuron",
        compile: bool = False,
    ) -> None:
        options: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "v0": v0}
        super().__init__(params, options | {"granularity": granularity, "compile": compile})

    def _check(self, group: Group) -> None:
        check_adam(group)
        beta1, v0 = group["betas"][0], group["v0"]
        if v0 is None:
            return
        if not bool((torch.as_tensor(v0) > 0).all()):
            raise ValueError(f"v0={v0!r} must be above 0: take it from theory.sphere.adam_g_star")
        if beta1 != 0:
            raise ValueError(f"beta1={beta1!r} with v0={v0!r}: AdamG* has no momentum, pass betas=(0.0, beta2)")

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        (split, by), v0 = adam_numbers(group, state, space), group["v0"]
        if not split.rotates(p.shape):
            plain_adam_(p, grad, state, by, space)
            return
        m, radius = per_entry(state, "exp_avg", p), per_vector(state, "radius", p, split, -1.0)
        v = per_vector(state, "exp_avg_sq", p, split, 0.0 if v0 is None else v0)
        rule = adam_g if v0 is None else adam_g_star
        advance_(p, grad, m, [radius, v], rule, by, split, space, compile=group["compile"], slack=slack(p.dtype))
