"""k-Adam: Adam's normalisation applied k times in succession (CT)."""

from collections.abc import Sequence
from functools import cache, partial
from itertools import chain
from typing import final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.base import Base, Group, State
from gyroscope.optim._engine.compiled import can_run, packed, program_for
from gyroscope.optim._engine.shards import local
from gyroscope.optim._engine.workspace import Own, Workspace
from gyroscope.optim.formulas import Number
from gyroscope.theory.stability import kadam_betas

Betas = tuple[float, float]


@final
class KAdam(Base):
    """k-Adam: each of k stages is Adam's normalisation of what the stage before gives; k = 1 is Adam and AdamW.

        k times:  m ← β1·m + (1-β1)ĝ,  v ← β2·v + (1-β2)ĝ²,  ĝ ← √(1-β2^t)/(1-β1^t)·m/(√v + ε)
        ω ← ω - lr·(ĝ + λω),   or with `coupled` ω ← ω - lr·ĝ from g + λω for the first ĝ     (CT Algorithm 1)

    The stages' betas come from one pair by the strategy (`theory.stability.kadam_betas`), or are a list of k pairs.
    The paper's ε = 1e-30 lets float32 gradients below 1e-22, whose squares are 0, take huge steps: raise it for those.

    >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> optimizer = KAdam([w], lr=0.1)
    >>> w.grad = torch.tensor([2.0, -0.3])
    >>> optimizer.step()
    >>> w.tolist(), optimizer.state[w]["exp_avg"].shape
    ([0.8999999761581421, 1.100000023841858], torch.Size([2, 2]))
    """

    row_state = ("exp_avg", "exp_avg_sq")
    turns_by_group = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        k: int = 2,
        betas: Betas | Sequence[Betas] = (0.9, 0.999),
        strategy: str = "inverse_exp",
        eps: float = 1e-30,
        weight_decay: float = 0.0,
        coupled: bool = False,
        *,
        compile: bool = False,
    ) -> None:
        options: Group = {"lr": lr, "k": k, "betas": betas, "strategy": strategy, "eps": eps}
        super().__init__(params, options | {"weight_decay": weight_decay, "coupled": coupled, "compile": compile})

    def _check(self, group: Group) -> None:
        check_non_negative("eps", group["eps"])
        for betas in _stages(group):
            check_betas(betas)

    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        for name in self.row_state:
            if name not in state:
                state[name] = _stacked(p, group["k"])
        moments, t = [*local(state["exp_avg"]), *local(state["exp_avg_sq"])], int(state["step"])
        own = space.once((id(group), t), lambda: _own(group, t))
        space.act(own, [local(p.detach()), local(grad), *moments])


def _own(group: Group, t: int) -> Own:
    stages = [(1 - b1, 1 - b2, (1 - b2**t) ** 0.5 / (1 - b1**t)) for b1, b2 in _stages(group)]
    l2, decay = (group["weight_decay"], 0.0) if group["coupled"] else (0.0, group["weight_decay"])
    numbers = (group["lr"], l2, decay, group["eps"])
    return Own(partial(_advance, stages=stages, numbers=numbers, compile=group["compile"]))


def _advance(
    tensors: list[Tensor], stages: list[tuple[Number, Number, Number]], numbers: tuple[Number, ...], compile: bool
) -> None:
    if not (compile and can_run(tensors[0])):
        k_adam_(tensors, stages, *numbers)
        return
    views = Split("tensor").rows(*tensors)
    values = packed([*numbers, *chain.from_iterable(stages)], views[0].device)
    program = program_for((_k_adam_packed, len(stages)), _k_adam_packed, views, [], values)
    program([*views, values])


def _k_adam_packed(tensors: list[Tensor], _: list[Tensor], numbers: Tensor) -> tuple[Tensor, ...]:
    values = numbers.unbind(0)
    k_adam_(tensors, list(zip(values[4::3], values[5::3], values[6::3], strict=True)), *values[:4])
    return ()


def k_adam_(
    tensors: list[Tensor],
    stages: list[tuple[Number, Number, Number]],
    lr: Number,
    l2: Number,
    decay: Number,
    eps: Number,
) -> None:
    """CT Algorithm 1 on weight, gradient, k first and k second moments; a stage is (1-β1, 1-β2, bias correction)."""
    w, grad, *moments = tensors
    ms, vs, dtype = moments[: len(stages)], moments[len(stages) :], at_least_float32(w.dtype)
    x = w.to(dtype)
    u = grad.to(dtype) + l2 * x
    for m, v, (w1, w2, unbias) in zip(ms, vs, stages, strict=True):
        m.add_(w1 * (u - m))
        v.add_(w2 * (u * u - v))
        u = unbias * m / (v.sqrt() + eps)
    w.copy_(x - lr * (u + decay * x))


def _stages(group: Group) -> list[Betas]:
    """The betas of each stage, given or derived."""
    betas, k = group["betas"], group["k"]
    if not isinstance(betas, Sequence) or not betas or not isinstance(betas[0], Sequence):
        check_betas(betas)
        return _derived(group["strategy"], k, tuple(betas))
    if len(betas) != k:
        raise ValueError(f"betas={betas!r} are {len(betas)} pairs, one per stage, and k={k!r}: pass k={len(betas)}")
    return list(betas)


@cache
def _derived(strategy: str, k: int, betas: Betas) -> list[Betas]:
    return kadam_betas(strategy, k, betas)


def _stacked(p: Tensor, k: int) -> Tensor:
    """k tensors of zeros like the parameter, float32 or better: ε = 1e-30 is 0 in float16."""
    zeros = torch.zeros_like(p, dtype=at_least_float32(p.dtype))
    if hasattr(p, "placements"):
        return torch.stack([zeros] * k)
    return torch.zeros_like(zeros.expand(k, *p.shape))
