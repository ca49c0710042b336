"""SGD-MRT: SGD whose momentum is rescaled and transported with the weight (SP)."""

from typing import final

from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_fraction
from gyroscope.geometry import Granularity, Split
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.shards import local
from gyroscope.optim._engine.spherical import advance_, per_entry
from gyroscope.optim._engine.turning import Inner, own_step
from gyroscope.optim._engine.workspace import Workspace
from gyroscope.optim.formulas import sgd
from gyroscope.optim.sphere_formulas import SGDNumbers, sgd_mrt


@final
class SGDMRT(Base):
    """SGD with L2 whose momentum stays tangent to each weight vector.

        m ← α·m + g + λω,   ω' = ω - lr·m,   m ← (⟨ω',ω⟩m - ⟨ω',m⟩ω)/⟨ω',ω'⟩     (SP 18, 76)

    L2 is not accumulated: the weight decays (1-α) times as fast as SGD's, and turns by sqrt(2·lr·weight_decay) radians
    per step in equilibrium, whatever the momentum. For scale-invariant vectors: tensors of two or more dimensions have
    one per index of dimension 0; groups may set `granularity`, `axis` and `group_size`. All else takes SGD's step.

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
        params: ParamsT,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        granularity: Granularity = "neuron",
        compile: bool = False,
    ) -> None:
        options: Group = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, options | {"granularity": granularity, "compile": compile})

    def _check(self, group: Group) -> None:
        check_fraction("momentum", group["momentum"])

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        lr, weight_decay, momentum = group["lr"], group["weight_decay"], group["momentum"]
        buffers = [per_entry(state, "momentum_buffer", p)] if momentum > 0 else []
        split = space.once(("split", id(group)), lambda: Split.of(group))
        if buffers and split.rotates(p.shape):
            by = SGDNumbers(lr, weight_decay, momentum)
            advance_(p, grad, buffers[0], [], sgd_mrt, by, split, space, compile=group["compile"])
            return
        plain = Inner(sgd, ("momentum_buffer",), {"momentum": momentum, "nesterov": False}, lr, l2=weight_decay)
        own = space.once(("own", id(group)), lambda: own_step(plain, space))
        space.act(own, [local(x) for x in (p.detach(), grad, *buffers)])
