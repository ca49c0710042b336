"""Adam-S and Adam-SRT: Adam as the sphere sees it, with one second moment per weight vector (SP)."""

from typing import final

from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope.geometry import Granularity
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.spherical import (
    Rule,
    adam_numbers,
    advance_,
    check_adam,
    per_entry,
    per_vector,
    plain_adam_,
)
from gyroscope.optim._engine.workspace import Workspace
from gyroscope.optim.sphere_formulas import adam_s, adam_srt


@final
class AdamS(Base):
    """Adam with L2 and one second moment per weight vector, which keeps the direction of the gradient.

        v ← β2·v + (1-β2)‖g + λω‖²/d,   ω ← ω - lr·m̂/(√v̂ + ε)     (SP 61–63; d entries in a vector)

    For scale-invariant vectors: tensors of two or more dimensions have one per index of dimension 0; groups may set
    `granularity`, `axis` and `group_size`. All else takes Adam's step. In equilibrium it turns by `theory.AdamS`.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]))
    >>> optimizer = AdamS([w], lr=0.1)
    >>> w.grad = torch.tensor([[0.0, 7.0]])  # Adam would move this entry by lr; one of two takes it all: √2·lr
    >>> optimizer.step()
    >>> [round(entry, 4) for entry in w.flatten().tolist()]
    [1.0, -0.1414]
    """

    row_state = ("exp_avg_sq",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        granularity: Granularity = "neuron",
        compile: bool = False,
    ) -> None:
        options: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options | {"granularity": granularity, "compile": compile})

    def _check(self, group: Group) -> None:
        check_adam(group)

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        _update(adam_s, p, grad, state, group, space)


@final
class AdamSRT(Base):
    """Adam-S whose memory follows the weight: after each step m is rescaled and transported, and v rescaled.

        m ← (⟨ω',ω⟩m - ⟨ω',m⟩ω)/⟨ω',ω'⟩,   v ← v·‖ω‖²/‖ω'‖²     (SP Algorithm 1, whose line 10 has a stray factor m)

    m stays tangent, so that L2 is not accumulated: the weight decays (1-β1) times as fast as Adam-S's. Vectors and
    options are those of AdamS. In equilibrium it turns by `theory.AdamSRT`.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]))
    >>> optimizer = AdamSRT([w], lr=0.1)
    >>> w.grad = torch.tensor([[0.0, 7.0]])
    >>> optimizer.step()
    >>> abs((w * optimizer.state[w]["exp_avg"]).sum().item()) < 1e-6
    True
    """

    row_state = ("exp_avg_sq",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        granularity: Granularity = "neuron",
        compile: bool = False,
    ) -> None:
        options: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options | {"granularity": granularity, "compile": compile})

    def _check(self, group: Group) -> None:
        check_adam(group)

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        _update(adam_srt, p, grad, state, group, space)


def _update(rule: Rule, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
    split, by = adam_numbers(group, state, space)
    if not split.rotates(p.shape):
        plain_adam_(p, grad, state, by, space)
        return
    m, rows = per_entry(state, "exp_avg", p), [per_vector(state, "exp_avg_sq", p, split)]
    advance_(p, grad, m, rows, rule, by, split, space, compile=group["compile"])
