"""What one update does to weight vectors: pure functions on tensors, the same for eager and compiled steps.

Tensors come as rows, views whose dimension 0 counts the vectors (`Split.rows`); the entries of a step are [weight,
gradient, *moments]. A *direction* brings the moments up to date and writes Δ, the inner rule's update at learning rate
1 without its decay, into `out`. The rest is rule-agnostic: `sums` reads five numbers per vector, `turn` makes three
coefficients of them, `move_` takes  ω ← A·ω + B·Δ + D.
Numbers are floats, or 0-d tensors in a compiled step, so that a schedule never recompiles it. Δ and moments are float32
or better whatever the weights are; gradients and weights are converted where they enter.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

# A float or a 0-d tensor.
Number = Any
Tensors = list[Tensor] | tuple[Tensor, ...]


# Directions


def adamw(entries: Sequence[Tensor], out: Tensor, *, w1: Number, w2: Number, eps: Number, bias: Number) -> None:
    """Adam's direction, Δ = -m̂/(√v̂ + ε) = -m / (bias·(√v + eps)): both bias corrections fold into the two scalars.

    w1 = 1-β1, w2 = 1-β2, bias = (1-β1^t)/√(1-β2^t), eps = ε·√(1-β2^t): see `adam_numbers`.
    """
    _, grad, exp_avg, exp_avg_sq = entries
    grad = grad.to(out.dtype)
    if is_fusable((out, grad, exp_avg, exp_avg_sq), (w1, w2, eps, bias)):
        # One pass instead of four: Adam's own step of a weight that is 0 leaves Δ in the weight's place.
        fused_adam_([out.zero_()], [grad], [exp_avg], [exp_avg_sq], w1=w1, w2=w2, eps=eps, bias=bias)
        return
    _average(exp_avg, grad, w1)
    _average(exp_avg_sq, grad * grad, w2)
    torch.sqrt(exp_avg_sq, out=out).add_(eps).mul_(-bias)
    torch.div(exp_avg, out, out=out)


def adam_l2(entries: Sequence[Tensor], out: Tensor, *, l2: Number, **numbers: Number) -> None:
    """Adam's direction with L2 in the gradient: that of g + λω."""
    w, grad, *moments = entries
    adamw([w, grad.to(out.dtype) + l2 * w.to(out.dtype), *moments], out, **numbers)


def adam_numbers(beta1: Number, beta2: Number, t: int, eps: Number) -> dict[str, Number]:
    """The numbers of `adamw` at step t = 1, 2, …"""
    # √v̂ + ε = (√v + ε·root)/root: one division by (1-β1^t)/root is left for the whole fraction.
    root = (1 - beta2**t) ** 0.5
    return {"w1": 1 - beta1, "w2": 1 - beta2, "eps": eps * root, "bias": (1 - beta1**t) / root}


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
    step = torch._fused_adam_ if l2 else torch._fused_adamw_
    # The kernel multiplies the decay by its lr, which is not the one that `decay` was made with.
    rate = lr / bias
    step(
        weights,
        grads,
        exp_avgs,
        exp_avg_sqs,
        [],
        [_late_step(weights[0].device)] * len(weights),
        lr=rate,
        beta1=1 - w1,
        beta2=1 - w2,
        weight_decay=l2 or (decay / rate if decay else 0.0),
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


@cache
def _late_step(device: torch.device) -> Tensor:
    """A step count at which β^t is 0 in every precision."""
    return torch.full((), 1e30, device=device)


def is_fusable(tensors: Sequence[Tensor], numbers: Sequence[Number] = ()) -> bool:
    """Whether torch's fused kernel takes these: one dtype, laid out alike, and numbers that no device has to tell."""
    first = tensors[0]
    return (
        first.device.type in ("cpu", "cuda")
        and all(x.dtype == first.dtype and x.is_contiguous() for x in tensors)
        and not any(isinstance(number, Tensor) for number in numbers)
    )


def sgd(entries: Sequence[Tensor], out: Tensor, *, l2: Number, momentum: Number) -> None:
    """SGD's direction, m ← α·m + g + λω, Δ = -m; without a momentum buffer Δ = -(g + λω).

    λ, `l2`, is 0 for a vector that turns: L2 acts along it.
    """
    _, _, *buffer = entries
    _add_l2(entries, out, l2)
    if not buffer:
        out.neg_()
        return
    buffer[0].mul_(momentum).add_(out)
    torch.mul(buffer[0], -1, out=out)


def nesterov(entries: Sequence[Tensor], out: Tensor, *, l2: Number, momentum: Number) -> None:
    """SGD's direction with Nesterov's momentum, m ← α·m + g + λω, Δ = -(g + λω + α·m)."""
    momentum_buffer = entries[2]
    _add_l2(entries, out, l2)
    momentum_buffer.mul_(momentum).add_(out)
    out.add_(momentum_buffer * momentum).neg_()


def _add_l2(entries: Sequence[Tensor], out: Tensor, l2: Number) -> None:
    w, grad = entries[:2]
    torch.addcmul(grad.to(out.dtype), w.to(out.dtype), torch.as_tensor(l2, dtype=out.dtype), out=out)


def lion(entries: Sequence[Tensor], out: Tensor, *, w1: Number, w2: Number) -> None:
    """Lion's direction, Δ = -sign(β1·m + (1-β1)·g), then m ← β2·m + (1-β2)·g; w1 = 1-β1, w2 = 1-β2.

    A gradient that is not a number makes Δ so too, as in every other rule, where a sign alone would be 0.
    """
    _, grad, exp_avg = entries
    # torch's sign of NaN is 0: entries with such a momentum would stand still for good, and silently. Cut off at the
    # smallest normal number and divided by it, a power of 2, all but NaN and what is smaller becomes its sign.
    tiny = torch.finfo(out.dtype).tiny
    torch.sub(exp_avg, grad, out=out).mul_(w1).sub_(exp_avg).clamp_(-tiny, tiny).mul_(1 / tiny)
    _average(exp_avg, grad, w2)


def _average(average: Tensor, value: Tensor, weight: Number) -> None:
    if isinstance(weight, Tensor):  # lerp_ wants a weight of the average's own dtype
        average.add_(weight * (value - average))
    else:
        average.lerp_(value.to(average.dtype), weight)


# Steps that go entry by entry


def plain_(w: Tensor, u: Tensor, lr: Number, decay: Number) -> None:
    """ω ← (1 - decay)·ω + lr·Δ, the inner rule's own step; computed in Δ's precision and rounded once."""
    x = w.to(u.dtype).mul_(1 - decay)
    x.add_(u * lr) if isinstance(lr, Tensor) else x.add_(u, alpha=lr)
    if x is not w:  # .to returns w itself where the dtypes agree
        w.copy_(x)


def k_adam_(
    tensors: list[Tensor],
    stages: Sequence[tuple[Number, Number, Number]],
    lr: Number,
    l2: Number,
    decay: Number,
    eps: Number,
) -> None:
    """CT Algorithm 1 on weight, gradient, k first and k second moments; a stage is (1-β1, 1-β2, bias correction)."""
    w, grad, *moments = tensors
    k = len(stages)
    dtype = moments[0].dtype
    x = w.to(dtype)
    u = grad.to(dtype) + l2 * x
    for m, v, (w1, w2, unbias) in zip(moments[:k], moments[k:], stages, strict=True):
        m.add_(w1 * (u - m))
        v.add_(w2 * (u * u - v))
        u = unbias * m / (v.sqrt() + eps)
    w.copy_(x - lr * (u + decay * x))


# Rotation


class Change(NamedTuple):
    """What becomes of vectors: the coefficients that move their entries, and their new values per vector (`rows`).

    A coefficient is a tensor with one value per vector, one number for all, or None where a rule has no use for it.
    """

    coefficients: tuple[Number, ...]
    rows: tuple[Tensor, ...] = ()

    def split(self, sizes: list[int]) -> list[tuple[Number, ...]]:
        """The coefficients of consecutive batches of vectors, of these sizes."""
        # A number for all vectors is repeated for each piece.
        columns = [torch.split(c, sizes) if is_per_vector(c) else [c] * len(sizes) for c in self.coefficients]
        return list(zip(*columns, strict=True))


class TurnNumbers(NamedTuple):
    """Numbers of one rotational step: angle η_r in radians, averaging β, ε, and the plain step's lr and decay.

    correction = 1-β^t and prior = 1-β^(t-1): t counts the steps of the tensor, this one included.
    """

    angle: Number
    beta: Number
    correction: Number
    prior: Number
    eps: Number
    lr: Number
    decay: Number


def update_and_sums(
    entries: Sequence[Tensor],
    rows: Sequence[Tensor],
    u: Tensor,
    product: Tensor | None,
    numbers: Sequence[Number],
    *,
    direction: Callable[..., None] | None,
    names: Sequence[str],
) -> tuple[Tensor, ...]:
    """Δ into `u` by the direction, and its sums; without a direction Δ is there already.

    The numbers after those of `TurnNumbers` are the direction's, by these names. L2 acts on vectors of radius 0 only:
    they take the plain step.
    """
    w = entries[0]
    if direction is not None:
        known = dict(zip(names, numbers[len(TurnNumbers._fields) :], strict=True))
        if "l2" in known:
            radius = rows[0]
            known["l2"] = known["l2"] * column((radius == 0).to(radius.dtype), w)
        direction(entries, u, **known)
    return sums(w, u, product)


def sums(w: Tensor, u: Tensor, product: Tensor | None = None) -> tuple[Tensor, ...]:
    """⟨ω,ω⟩, ⟨ω,Δ⟩, ⟨Δ,Δ⟩, ⟨ω,1⟩, ⟨Δ,1⟩ of each vector: all that a rotational step needs to know of it.

    `product` is scratch memory for eager execution, where each operation is a pass over memory.
    """
    w = w.to(u.dtype)
    dims = tuple(range(1, u.dim()))
    if product is None:  # a program reads all five in one loop
        return (w * w).sum(dims), (w * u).sum(dims), (u * u).sum(dims), w.sum(dims), u.sum(dims)
    # A norm is one pass, and a product that is summed would be two.
    ww = torch.linalg.vector_norm(w, dim=dims).square_()
    uu = torch.linalg.vector_norm(u, dim=dims).square_()
    return ww, torch.mul(w, u, out=product).sum(dims), uu, w.sum(dims), u.sum(dims)


def turn(
    sums: Sequence[Tensor],
    rows: Sequence[Tensor],
    fan_in: Number,
    numbers: Sequence[Number],
    *,
    centre: bool | Literal["weights"],
    slack: float,
) -> Change:
    """The step that turns each vector by arctan of η_r·‖Δ⊥‖/rms‖Δ⊥‖ (RE Algorithm 1).

        ω ← n·(ω-ω̄)/‖ω-ω̄‖,  Δ⊥ = (Δ-Δ̄) without its projection on ω,  ν ← βν + (1-β)‖Δ⊥‖²
        ω ← ω + η_r·n·Δ⊥/(sqrt(ν/(1-β^t)) + ε),  renormalised to n: ‖Δ⊥‖ and the new norm follow from the sums

    With centre="weights" neither ω nor Δ is centred first, and ω ← n·(ω-ω̄)/‖ω-ω̄‖ comes last, as RE prints it.
    `rows` are the radius n, -1 before the first step, the average ν, and factors of η_r, if there are any. A
    norm further than `slack` from its radius was set from outside, so the radius is read again. While η_r = 0 the
    weights stay, uncentred if they were. Vectors without a direction, of norm 0 or with all entries equal, take the
    plain step. The coefficients are A, B and D of `move_`.
    """
    by = TurnNumbers(*numbers[: len(TurnNumbers._fields)])
    ww, wu, uu, sum_w, sum_u = sums
    radius, update_sq, *factors = rows
    angle = by.angle
    for factor in factors:
        angle = angle * factor
    none = torch.zeros_like(ww)
    centres_update = centre and centre != "weights"
    mean_w = sum_w / fan_in if centres_update else none
    mean_u = sum_u / fan_in if centres_update else none
    ww_c = ww - sum_w * mean_w
    wu_c = wu - sum_w * mean_u
    uu_c = uu - sum_u * mean_u
    norm = ww.sqrt()
    # A radius of 0 stays: such a vector takes plain steps for good, as it has from the start.
    n = torch.where(((norm - radius).abs() > slack * radius) & (radius != 0), norm, radius)
    # What rounding leaves of a vector of equal entries is no direction: its square is a few eps of the whole.
    spread = ww - sum_w * sum_w / fan_in if centre == "weights" else ww_c
    alive = (n > 0) & (spread > 16 * torch.finfo(ww.dtype).eps * ww)
    along = torch.where(alive, wu_c / ww_c, none)
    across2 = uu_c - wu_c * along
    # Nor is what it leaves of an update along ω or along 1: Adam's first one, where a row's gradients have one sign.
    seen = across2 > 256 * torch.finfo(ww.dtype).eps * uu
    across2 = torch.where(seen, across2, none)
    # A tensor met at a later step than its first, from an AdamW checkpoint, starts its average at this update.
    nu = by.beta * torch.where(radius < 0, by.prior * across2, update_sq) + (1 - by.beta) * across2
    rms = (nu / by.correction).sqrt() + by.eps
    rate = torch.where(seen & (rms > 0), angle / rms, none)
    # ω and Δ⊥ are orthogonal, so the new norm before it is set back to n is n·√(1 + (rate·‖Δ⊥‖)²).
    size = n * (1 + rate * rate * across2).rsqrt()
    A = size * (ww_c.rsqrt() - rate * along)
    B = size * rate
    D = -A * mean_w - B * mean_u
    if centre == "weights":
        # A·ω + B·Δ has norm n; its mean is taken away, and what that takes from the norm is made up for.
        mean = (A * sum_w + B * sum_u) / fan_in
        rest = n * (n * n - fan_in * mean * mean).rsqrt()
        A = A * rest
        B = B * rest
        D = -mean * rest
    # A tensor's value is not known without waiting for its device, so that both cases are computed.
    if isinstance(angle, Tensor) or angle == 0:
        moves = none + angle > 0
        A = torch.where(moves, A, none + 1)
        B = torch.where(moves, B, none)
        D = torch.where(moves, D, none)
    # Last, so that what is infinite or NaN for a vector without a direction is replaced.
    A = torch.where(alive, A, none + (1 - by.decay))
    B = torch.where(alive, B, none + by.lr)
    return Change((A, B, torch.where(alive, D, none)), (n, nu))


def move_(entries: Sequence[Tensor], u: Tensor, coefficients: Sequence[Tensor], noise: Tensor | None = None) -> None:
    """ω ← A·ω + B·Δ + D, for ω the first of the entries; Δ may be used up.

    With `noise` in [-½, ½) low-precision weights are rounded stochastically.
    """
    w = entries[0]
    A, B, D = coefficients
    A = column(A, u)
    B = column(B, u)
    D = column(D, u)
    # Low precision is computed in Δ's dtype and rounded once; else in place, without memory for a copy.
    if w.dtype == u.dtype:
        w.mul_(A).addcmul_(u, B).add_(D)
        return
    moved = u.mul_(B).add_(D).addcmul_(w.to(u.dtype), A)
    if noise is not None:
        # The spacing of w's dtype at `moved`, times the noise: frexp's fraction is in [½, 1).
        moved = moved + torch.ldexp(noise, torch.frexp(moved).exponent + _spacing_exponent(w.dtype))
    w.copy_(moved)


def column(values: Tensor, like: Tensor) -> Tensor:
    """Values per vector in a form that broadcasts against entries."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def is_per_vector(coefficient: Number) -> bool:
    """Whether a coefficient has one value per vector, rather than one number for all."""
    return isinstance(coefficient, Tensor) and coefficient.dim() > 0


def _spacing_exponent(dtype: torch.dtype) -> int:
    """Exponent of the spacing of numbers in [½, 1)."""
    return round(math.log2(torch.finfo(dtype).eps)) - 1
