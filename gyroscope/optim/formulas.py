"""What one update does to weight vectors: pure functions on tensors, alike for eager and compiled steps.

Tensors come as rows, views whose dimension 0 counts the vectors (`Split.rows`). A *direction* brings the moments up to
date and writes Δ, the inner rule's update at learning rate 1 without its decay, into `out`. The rest is rule-agnostic:
`sums` reads five numbers per vector, `turn` makes three coefficients of them, `move_` takes  ω ← A·ω + B·Δ + D.
Numbers are floats, or 0-d tensors in a compiled step, so that a schedule never recompiles it.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

Number = Any
"""A float or a 0-d tensor."""
Tensors = list[Tensor] | tuple[Tensor, ...]


def adamw(
    grad: Tensor, out: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, w1: Number, w2: Number, eps: Number, bias: Number
) -> None:
    """Adam's direction, Δ = -m̂/(√v̂ + ε) = -m / (bias·(√v + eps)): both bias corrections fold into the two scalars.

    w1 = 1-β1, w2 = 1-β2, bias = (1-β1^t)/√(1-β2^t), eps = ε·√(1-β2^t).
    """
    if fusable((out, grad, exp_avg, exp_avg_sq), (w1, w2, eps, bias)):
        # Adam's own step of a weight that is 0.
        fused_adam_([out.zero_()], [grad], [exp_avg], [exp_avg_sq], w1=w1, w2=w2, eps=eps, bias=bias)
        return
    _average(exp_avg, grad, w1)
    _average(exp_avg_sq, grad * grad, w2)
    torch.sqrt(exp_avg_sq, out=out).add_(eps).mul_(-bias)
    torch.div(exp_avg, out, out=out)


def adam_knobs(
    beta1: Number, beta2: Number, correction1: Number, correction2: Number, eps: Number
) -> dict[str, Number]:
    """The numbers of `adamw`; the corrections are 1-β1^t and 1-β2^t."""
    root = correction2**0.5
    return {"w1": 1 - beta1, "w2": 1 - beta2, "eps": eps * root, "bias": correction1 / root}


def fused_adam_(
    weights: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    *,
    w1: float,
    w2: float,
    eps: float,
    bias: float,
    lr: float = 1.0,
    decay: float = 0.0,
    l2: float = 0.0,
) -> None:
    """Adam's own step, ω ← (1 - decay)·ω + lr·Δ, of many tensors by torch's kernel; l2·ω adds to the gradient.

    The numbers hold the bias corrections already: to the kernel this is a step so late that it needs none.
    """
    step, rate = torch._fused_adam_ if l2 else torch._fused_adamw_, lr / bias
    step(
        weights,
        grads,
        exp_avgs,
        exp_avg_sqs,
        [],
        [_late(weights[0].device)] * len(weights),
        lr=rate,
        beta1=1 - w1,
        beta2=1 - w2,
        weight_decay=l2 or (decay / rate if decay else 0.0),
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


@cache
def _late(device: torch.device) -> Tensor:
    return torch.full((), 1e30, device=device)


def fusable(tensors: Sequence[Tensor], numbers: Sequence[Number] = ()) -> bool:
    """Whether torch's fused kernel takes these: one dtype, laid out alike, and numbers that no device has to tell."""
    first = tensors[0]
    return (
        first.device.type in ("cpu", "cuda")
        and all(x.dtype == first.dtype and x.is_contiguous() for x in tensors)
        and not any(isinstance(number, Tensor) for number in numbers)
    )


def sgd(
    grad: Tensor,
    out: Tensor,
    momentum_buffer: Tensor | None = None,
    *,
    w: Tensor,
    l2: Number,
    momentum: Number,
    nesterov: bool,
) -> None:
    """SGD's direction, m ← α·m + g, Δ = -m, or -(g + α·m) for Nesterov; without momentum Δ = -g.

    `l2` adds l2·ω to the gradient, where a vector takes the plain step: it is 0 for one that turns.
    """
    torch.addcmul(grad, w, l2, out=out)
    if momentum_buffer is None:
        out.neg_()
        return
    momentum_buffer.mul_(momentum).add_(out)
    if nesterov:
        out.add_(momentum_buffer * momentum).neg_()
    else:
        torch.mul(momentum_buffer, -1, out=out)


def lion(grad: Tensor, out: Tensor, exp_avg: Tensor, *, w1: Number, w2: Number) -> None:
    """Lion's direction, Δ = -sign(β1·m + (1-β1)·g), then m ← β2·m + (1-β2)·g; w1 = 1-β1, w2 = 1-β2."""
    torch.sub(exp_avg, grad, out=out).mul_(w1).sub_(exp_avg).sign_()
    _average(exp_avg, grad, w2)


def given(update: Tensor, out: Tensor) -> None:
    """A direction that somebody else has made."""
    out.copy_(update)


def _average(average: Tensor, value: Tensor, weight: Number) -> None:
    if isinstance(weight, Tensor):  # lerp_ wants a weight of the average's own dtype
        average.add_(weight * (value - average))
    else:
        average.lerp_(value.to(average.dtype), weight)


class Turning(NamedTuple):
    """Numbers of one rotational step: angle η_r (per vector if imbalanced), averaging β, the plain step's lr and decay.

    correction = 1-β^t and prior = 1-β^(t-1): t counts the steps of the tensor, this one included.
    """

    angle: Number
    beta: Number
    correction: Number
    prior: Number
    eps: Number
    lr: Number
    decay: Number

    @classmethod
    def at(cls, t: int, angle: Number, beta: float, eps: Number, lr: Number, decay: Number) -> "Turning":
        """Of a tensor's t-th step."""
        known = angle if isinstance(angle, Tensor) else float(angle)  # of NumPy's numbers torch makes tensors
        return cls(known, beta, 1 - beta**t, 1 - beta ** (t - 1), eps, lr, decay)


def sums(w: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """⟨ω,1⟩, ⟨Δ,1⟩, ⟨ω,ω⟩, ⟨ω,Δ⟩, ⟨Δ,Δ⟩ of each vector: all that a rotational step needs to know of it."""
    w, dims = w.to(u.dtype), tuple(range(1, u.dim()))
    return w.sum(dims), u.sum(dims), (w * w).sum(dims), (w * u).sum(dims), (u * u).sum(dims)


def eager_sums(w: Tensor, u: Tensor, product: Tensor) -> tuple[Tensor, ...]:
    """The same where each operation is a pass of its own, and a norm reads but once; `product` is memory to use up."""
    w, dims = w.to(u.dtype), tuple(range(1, u.dim()))
    ww, uu = (torch.linalg.vector_norm(x, dim=dims).square_() for x in (w, u))
    return w.sum(dims), u.sum(dims), ww, torch.mul(w, u, out=product).sum(dims), uu


class Turn(NamedTuple):
    """ω ← A·ω + B·Δ + D of each vector, and its radius and average of ‖Δ⊥‖² from now on."""

    A: Tensor
    B: Tensor
    D: Tensor
    radius: Tensor
    update_sq: Tensor


def turn(
    sums: tuple[Tensor, ...],
    radius: Tensor,
    update_sq: Tensor,
    by: Turning,
    *,
    fan_in: Number,
    centre: bool,
    slack: float,
) -> Turn:
    """The step that turns each vector by arctan of η_r·‖Δ⊥‖/rms‖Δ⊥‖ (RE Algorithm 1).

        ω ← n·(ω-ω̄)/‖ω-ω̄‖,  Δ⊥ = (Δ-Δ̄) without its projection on ω,  ν ← βν + (1-β)‖Δ⊥‖²
        ω ← ω + η_r·n·Δ⊥/(sqrt(ν/(1-β^t)) + ε),  renormalised to n: ‖Δ⊥‖ and the new norm follow from the sums

    `radius` is n, -1 before the first step, `update_sq` is ν. A norm further than `slack` from its radius was set from
    outside, so the radius is read again. While η_r = 0 the weights stay, uncentred if they were. Vectors without a
    direction, of norm 0 or with all entries equal, take the plain step.
    """
    sum_w, sum_u, ww, wu, uu = sums
    none = torch.zeros_like(ww)
    mean_w, mean_u = (sum_w / fan_in, sum_u / fan_in) if centre else (none, none)
    ww_c, wu_c, uu_c = ww - sum_w * mean_w, wu - sum_w * mean_u, uu - sum_u * mean_u
    norm, new = ww.sqrt(), radius < 0
    n = torch.where(((norm - radius).abs() > slack * radius) & (radius != 0), norm, radius)
    # What rounding leaves of a vector of equal entries is no direction.
    alive = (n > 0) & (ww_c > 16 * torch.finfo(ww.dtype).eps * ww)
    along = torch.where(alive, wu_c / ww_c, none)
    across2 = uu_c - wu_c * along
    # Nor is what it leaves of an update along ω or along 1: Adam's first one, where a row's gradients have one sign.
    seen = across2 > 256 * torch.finfo(ww.dtype).eps * uu
    across2 = torch.where(seen, across2, none)
    # A tensor met at a later step than its first, from an AdamW checkpoint, starts its average at this update.
    nu = by.beta * torch.where(new, by.prior * across2, update_sq) + (1 - by.beta) * across2
    rms = (nu / by.correction).sqrt() + by.eps
    rate = torch.where(seen & (rms > 0), by.angle / rms, none)
    size = n * (1 + rate * rate * across2).rsqrt()
    A, B = size * (ww_c.rsqrt() - rate * along), size * rate
    D = -A * mean_w - B * mean_u
    if isinstance(by.angle, Tensor) or by.angle == 0:
        moves = none + by.angle > 0
        A, B, D = torch.where(moves, A, none + 1), torch.where(moves, B, none), torch.where(moves, D, none)
    A, B = torch.where(alive, A, none + (1 - by.decay)), torch.where(alive, B, none + by.lr)
    return Turn(A, B, torch.where(alive, D, none), n, nu)


def move_(w: Tensor, u: Tensor, A: Tensor, B: Tensor, D: Tensor, noise: Tensor | None = None) -> None:
    """ω ← A·ω + B·Δ + D; Δ may be used up. With `noise` in [-½, ½) low-precision weights are rounded stochastically."""
    A, B, D = (column(values, u) for values in (A, B, D))
    if w.dtype == u.dtype:
        w.mul_(A).addcmul_(u, B).add_(D)
        return
    moved = u.mul_(B).add_(D).addcmul_(w.to(u.dtype), A)
    w.copy_(moved if noise is None else moved + torch.ldexp(noise, torch.frexp(moved).exponent + _digits(w.dtype)))


def column(values: Tensor, like: Tensor) -> Tensor:
    """Values per vector in a form that broadcasts against entries."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def plain_(w: Tensor, u: Tensor, lr: Number, decay: Number) -> None:
    """ω ← (1 - decay)·ω + lr·Δ, the inner rule's own step."""
    w.mul_(1 - decay)
    w.add_(u * lr) if isinstance(lr, Tensor) else w.add_(u, alpha=lr)


def _digits(dtype: torch.dtype) -> int:
    """Exponent of the spacing of numbers in [½, 1)."""
    return round(math.log2(torch.finfo(dtype).eps)) - 1
