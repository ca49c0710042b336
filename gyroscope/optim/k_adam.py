"""k-Adam: Adam's normalisation applied k times in succession (CT)."""

from collections.abc import Sequence
from functools import cache
from typing import final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.formulas import Number
from gyroscope.theory.stability import kadam_betas

Betas = tuple[float, float]


@final
class KAdam(EngineOptimizer):
    """k-Adam: each of k stages normalises the output of the stage before as Adam does. k = 1 is Adam and AdamW.

        k times:  m ← β1·m + (1-β1)ĝ,  v ← β2·v + (1-β2)ĝ²,  ĝ ← √(1-β2^t)/(1-β1^t)·m/(√v + ε)
        ω ← ω - lr·(ĝ + λω),   or with `coupled` ω ← ω - lr·ĝ from g + λω for the first ĝ     (CT Algorithm 1)

    Every option may be set per group.

    lr              as Adam's
    k               stages. Each keeps two moments, float32 or better
    betas           one pair, from which `strategy` derives those of the stages, or a list of k pairs
    strategy        "inverse_exp", "exp", "scaled" or "naive" (`theory.stability.kadam_betas`)
    eps             1e-30 as in the paper, added to √v before bias correction (torch adds it after). Raise it if
                    float32 gradients fall below 1e-22: their squares are 0, so they take huge steps
    weight_decay    λ, decoupled, or with `coupled` the L2 in the gradient
    coupled         add λω to the gradient of the first stage instead of decaying the weight
    compile         one program per kind of tensor

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> optimizer = KAdam([w], lr=0.1)
    >>> w.grad = torch.tensor([2.0, -0.3])
    >>> optimizer.step()
    >>> w.tolist(), optimizer.state[w]["exp_avg"].shape
    ([0.8999999761581421, 1.100000023841858], torch.Size([2, 2]))
    """

    turns_by_group = False

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-3,
        k: int = 2,
        betas: Betas | Sequence[Betas] = (0.9, 0.999),
        strategy: str = "inverse_exp",
        eps: float = 1e-30,
        weight_decay: float = 0.0,
        coupled: bool = False,
        *,
        compile: Compile = False,
    ) -> None:
        super().__init__(params, locals())
        if _is_list_of_pairs(betas):
            # OneCycleLR and CyclicLR search here for a beta1 to cycle, and raise if there is none.
            del self.defaults["betas"]

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with their own options. The first group's pairs of betas are the default."""
        if "betas" not in self.defaults:
            param_group.setdefault("betas", self.param_groups[0]["betas"])
        super().add_param_group(param_group)

    def _check(self, group: Group) -> None:
        check_non_negative("eps", group["eps"])
        for betas in _stages(group):
            check_betas(betas)

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        numbers = {"l2": group["weight_decay"] if group["coupled"] else 0.0, "eps": group["eps"]}
        for stage, (beta1, beta2) in enumerate(_stages(group)):
            unbias = (1 - beta2**t) ** 0.5 / (1 - beta1**t)
            numbers |= {f"w1_{stage}": 1 - beta1, f"w2_{stage}": 1 - beta2, f"unbias_{stage}": unbias}
        return Step(
            direction=k_adam,
            moments=("exp_avg", "exp_avg_sq"),
            numbers=numbers,
            lr=group["lr"],
            decay=0.0 if group["coupled"] else group["weight_decay"],
            stacked=group["k"],
            descend=descend_,
            compile=group["compile"],
        )


def k_adam(entries: Sequence[Tensor], out: Tensor, *, l2: Number, eps: Number, **stages: Number) -> None:
    """Compute k-Adam's direction, Δ = -ĝ of CT Algorithm 1, of [weight, gradient, k first and k second moments].

    `stages` are 1-β1, 1-β2 and the bias correction of each stage.
    """
    w, grad, *moments = entries
    values = list(stages.values())
    k = len(moments) // 2
    u = grad.to(out.dtype)
    if isinstance(l2, Tensor) or l2:
        u = u + l2 * w.to(out.dtype)
    # Temporaries of the weights' size would cost as much as the arithmetic, so there is one for all.
    other = torch.empty_like(out)
    for m, v, w1, w2, unbias in zip(moments[:k], moments[k:], values[::3], values[1::3], values[2::3], strict=True):
        m.add_(torch.sub(u, m, out=other).mul_(w1))
        v.add_(torch.mul(u, u, out=other).sub_(v).mul_(w2))
        torch.sqrt(v, out=other).add_(eps)
        u = torch.mul(m, unbias, out=out).div_(other)
    out.neg_()


def descend_(w: Tensor, u: Tensor, lr: Number, decay: Number) -> None:
    """Compute ω ← ω - lr·(λω - Δ) in Δ's precision, rounded once."""
    x = w.to(u.dtype)
    change = (x * decay).sub_(u).mul_(lr)
    if x is w:  # .to returns w itself if the dtypes agree
        w.sub_(change)
    else:
        w.copy_(x.sub_(change))


def _stages(group: Group) -> list[Betas]:
    """Return the betas of each stage, given or derived."""
    betas = group["betas"]
    k = group["k"]
    if not _is_list_of_pairs(betas):
        if isinstance(betas, Sequence) and any(isinstance(beta, Sequence) for beta in betas):
            raise ValueError(
                f"betas={betas!r} mixes a number and a pair: a scheduler that cycles beta1 takes one pair of betas. "
                "Pass one pair to KAdam, or cycle_momentum=False to the scheduler"
            )
        check_betas(betas)
        return _derived(group["strategy"], k, tuple(betas))
    if len(betas) != k:
        raise ValueError(f"betas={betas!r} are {len(betas)} pairs, one per stage, and k={k!r}: pass k={len(betas)}")
    return list(betas)


def _is_list_of_pairs(betas: object) -> bool:
    return isinstance(betas, Sequence) and len(betas) > 0 and isinstance(betas[0], Sequence)


# Called at each step and for each shape. Options that were checked once are not checked again.
@cache
def _derived(strategy: str, k: int, betas: Betas) -> list[Betas]:
    return kadam_betas(strategy, k, betas)
