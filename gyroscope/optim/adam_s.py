"""Adam-S and Adam-SRT: Adam with one second moment per weight vector (SP)."""

from abc import ABC
from collections.abc import Callable, Mapping
from typing import ClassVar, final

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.sphere_formulas import AdamNumbers, adam_s, adam_srt, sphere


def check_adam(group: Group) -> None:
    """Raise ValueError for invalid options of Adam."""
    check_betas(group["betas"])
    check_non_negative("eps", group["eps"])


def adam_step(
    rule: Callable[..., formulas.Change],
    rows: Mapping[str, formulas.Number],
    group: Group,
    t: int,
    kind: TensorKind,
    **options: float,
) -> Step:
    """Return the step of a rule on the sphere, or Adam's own step with L2 for a tensor that does not rotate."""
    lr = group["lr"]
    l2 = group["weight_decay"]
    beta1, beta2 = group["betas"]
    if kind.rotates:
        by = AdamNumbers(lr, l2, beta1, beta2, 1 - beta1**t, 1 - beta2**t, group["eps"])
        return sphere("exp_avg", rows, rule, by, kind, **options)
    numbers = {**formulas.adam_numbers(beta1, beta2, t, group["eps"]), "l2": l2}
    return Step(formulas.adam_l2, ("exp_avg", "exp_avg_sq"), numbers, lr)


class VectorAdam(EngineOptimizer, ABC):
    """The base of Adam-S and Adam-SRT, which differ in their rule."""

    rule: ClassVar[Callable[..., formulas.Change]]

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        granularity: Granularity = "neuron",
        compile: Compile = False,
    ) -> None:
        super().__init__(params, locals())

    def _check(self, group: Group) -> None:
        check_adam(group)

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        return adam_step(type(self).rule, {"exp_avg_sq": 0.0}, group, t, kind)


@final
class AdamS(VectorAdam):
    """Adam with L2 and one second moment per weight vector, which keeps the direction of the gradient.

        v ← β2·v + (1-β2)‖g + λω‖²/d,   ω ← ω - lr·m̂/(√v̂ + ε)     (SP 61–63; d entries in a vector)

    For scale-invariant vectors. All else takes Adam's step. `theory.AdamS` gives its equilibrium rotation. Every option
    may be set per group.

    lr, betas, eps    as Adam's. v has one value per vector, float32 or better
    weight_decay      λ, the L2 in the gradient. 0 as in Adam
    granularity       "neuron": one vector per index of `axis` (0). "tensor": one per tensor. "none": Adam's step.
                      "group": one per `group_size` indices. `axis` and `group_size` are options of groups only
    compile           one program per kind of tensor

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]))
    >>> optimizer = AdamS([w], lr=0.1)
    >>> w.grad = torch.tensor([[0.0, 7.0]])  # Adam would move this entry by lr; one of two takes it all: √2·lr
    >>> optimizer.step()
    >>> [round(entry, 4) for entry in w.flatten().tolist()]
    [1.0, -0.1414]
    """

    rule = staticmethod(adam_s)


@final
class AdamSRT(VectorAdam):
    """Adam-S whose memory follows the weight: after each step m is rescaled and transported, and v rescaled.

        m ← (⟨ω',ω⟩m - ⟨ω',m⟩ω)/⟨ω',ω'⟩,   v ← v·‖ω‖²/‖ω'‖²     (SP Algorithm 1, whose line 10 has a stray factor m)

    m stays tangent, so L2 does not accumulate, and the weight decays (1-β1) times as fast as with Adam-S.
    `theory.AdamSRT` gives its equilibrium rotation.

    lr, betas, eps, weight_decay, granularity, compile  as AdamS's

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]))
    >>> optimizer = AdamSRT([w], lr=0.1)
    >>> w.grad = torch.tensor([[0.0, 7.0]])
    >>> optimizer.step()
    >>> abs((w * optimizer.state[w]["exp_avg"]).sum().item()) < 1e-6
    True
    """

    rule = staticmethod(adam_srt)
