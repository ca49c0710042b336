"""Updates of weight vectors as pure functions on tensors, the same for eager and compiled steps.

Tensors are views whose dimension 0 counts the vectors (`Split.rows`). The entries of a step are [weight, gradient,
*moments]. A *direction* updates the moments and writes Δ, the rule's update at learning rate 1 without its decay, into
`out`. The rest is the same for all rules: `sums` reads five numbers per vector, `rotate` makes three coefficients of
them, and `move_` computes  ω ← A·ω + B·Δ + D.
Numbers are floats, or 0-d tensors in a compiled step, so that a schedule never recompiles it. Δ and moments are float32
or better.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gyroscope.optim._engine.memory import Scratch
from gyroscope.theory.norm_drift import noise_drift

# A float or a 0-d tensor.
Number = Any
# What happens to the norm of a vector that rotates.
Norms = Literal["fixed", "free", "settling"]
Tensors = list[Tensor] | tuple[Tensor, ...]


def adamw(entries: Sequence[Tensor], out: Tensor, *, w1: Number, w2: Number, eps: Number, bias: Number) -> None:
    """Compute Adam's direction, Δ = -m̂/(√v̂ + ε) = -m / (bias·(√v + eps)), with the numbers of `adam_numbers`."""
    _, grad, exp_avg, exp_avg_sq = entries
    grad = grad.to(out.dtype)
    if is_fusable((out, grad, exp_avg, exp_avg_sq), (w1, w2, eps, bias)):
        # One pass instead of four: Adam's own step of a zero weight leaves Δ in its place.
        fused_adam_([out.zero_()], [grad], [exp_avg], [exp_avg_sq], w1=w1, w2=w2, eps=eps, bias=bias)
        return
    average_(exp_avg, grad, w1)
    average_(exp_avg_sq, grad * grad, w2)
    torch.sqrt(exp_avg_sq, out=out).add_(eps).mul_(-bias)
    torch.div(exp_avg, out, out=out)


def adam_l2(entries: Sequence[Tensor], out: Tensor, *, l2: Number, **numbers: Number) -> None:
    """Compute Adam's direction with L2 in the gradient, g + λω."""
    w, grad, *moments = entries
    adamw([w, grad.to(out.dtype) + l2 * w.to(out.dtype), *moments], out, **numbers)


def adam_numbers(beta1: Number, beta2: Number, t: int, eps: Number) -> dict[str, Number]:
    """Return the numbers of `adamw` at step t = 1, 2, …"""
    # √v̂ + ε = (√v + ε·root)/root, so one division by (1-β1^t)/root is left for the whole fraction.
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
    """Take Adam's own step, ω ← (1 - decay)·ω + lr·Δ, of many tensors by torch's kernel. l2·ω adds to the gradient.

    The numbers contain the bias corrections. The kernel gets a step count so late that it adds none.
    """
    step = torch._fused_adam_ if l2 else torch._fused_adamw_
    # The kernel multiplies the decay by its own lr.
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
    """Return a step count at which β^t is 0 in every precision."""
    return torch.full((), 1e30, device=device)


# Directions that the kernel has.
FUSED = (adamw, adam_l2)


def is_fusable(tensors: Sequence[Tensor], numbers: Sequence[Number] = ()) -> bool:
    """Return whether torch's fused kernel takes these: one dtype, contiguous, and no number on a device."""
    first = tensors[0]
    dtype = first.dtype
    # On the meta device a step's kernels are counted as on CUDA.
    if first.device.type not in ("cpu", "cuda", "meta") or (numbers and any(isinstance(n, Tensor) for n in numbers)):
        return False
    return all(x.dtype == dtype and x.is_contiguous() for x in tensors)


def average_(average: Tensor, value: Tensor, weight: Number) -> None:
    """Compute average ← average + weight·(value - average)."""
    if isinstance(weight, Tensor):  # lerp_ needs a weight of the average's own dtype
        average.add_(weight * (value - average))
    else:
        average.lerp_(value.to(average.dtype), weight)


def plain_(w: Tensor, u: Tensor, lr: Number, decay: Number) -> None:
    """Take the rule's own step, ω ← (1 - decay)·ω + lr·Δ, in Δ's precision and rounded once."""
    x = w.to(u.dtype).mul_(1 - decay)
    x.add_(u * lr) if isinstance(lr, Tensor) else x.add_(u, alpha=lr)
    if x is not w:  # .to returns w itself if the dtypes agree
        w.copy_(x)


def column(values: Tensor, like: Tensor) -> Tensor:
    """Return values per vector in a form that broadcasts against entries."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def is_per_vector(coefficient: Number) -> bool:
    """Return whether a coefficient has one value per vector, rather than one number for all."""
    return isinstance(coefficient, Tensor) and coefficient.dim() > 0


class Change(NamedTuple):
    """The coefficients that move the entries of vectors, and their new values per vector (`rows`).

    A coefficient is a tensor with one value per vector, one number for all, or None if a rule does not use it.
    """

    coefficients: tuple[Number, ...]
    rows: tuple[Tensor, ...] = ()

    def split(self, sizes: list[int]) -> list[tuple[Number, ...]]:
        """Return the coefficients of consecutive batches of vectors with these sizes."""
        columns = [torch.split(c, sizes) if is_per_vector(c) else [c] * len(sizes) for c in self.coefficients]
        return list(zip(*columns, strict=True))


class RotationNumbers(NamedTuple):
    """Numbers of a tensor's t-th rotational step: angle η_r in radians, averaging β, ε, the plain step's lr and decay.

    correction = 1-β^t, prior = 1-β^(t-1), and `square` is q_t of `update_average`. The others are for norms that move:
    τ-1 and the mean lag of the updates' correlation, the rule's decay a per step, and n_eq over rms‖Δ⊥‖.
    """

    angle: Number
    beta: Number
    correction: Number
    prior: Number
    eps: Number
    lr: Number
    decay: Number
    square: Number
    excess: Number = 0.0
    lag: Number = 0.0
    settling: Number = 0.0
    norm_ratio: Number = 0.0


def update_and_sums(
    entries: Sequence[Tensor],
    rows: Sequence[Tensor],
    u: Tensor,
    product: Tensor | None,
    numbers: Sequence[Number],
    *,
    direction: Callable[..., None] | None = None,
    names: Sequence[str] = (),
    means: bool = True,
) -> tuple[Tensor, ...]:
    """Write Δ into `u` by the direction and return its sums. Without a direction `u` is Δ already.

    The last numbers are the direction's, by these names. L2 acts only on vectors of radius 0, which take the plain
    step.
    """
    w = entries[0]
    if direction is not None:
        known = dict(zip(names, numbers[-len(names) :], strict=True))
        if "l2" in known:
            radius = rows[0]
            known["l2"] = known["l2"] * column((radius == 0).to(radius.dtype), w)
        direction(entries, u, **known)
    return sums(w, u, product, means)


def sums(w: Tensor, u: Tensor, product: Tensor | None = None, means: bool = True) -> tuple[Tensor, ...]:
    """Return ⟨ω,ω⟩, ⟨ω,Δ⟩, ⟨Δ,Δ⟩, and with `means` ⟨ω,1⟩, ⟨Δ,1⟩ of each vector: all that a rotational step reads.

    `product` is scratch memory for eager execution.
    """
    w = w.to(u.dtype)
    dims = tuple(range(1, u.dim()))
    if product is None:  # a program reads all of them in one loop
        squares = ((w * w).sum(dims), (w * u).sum(dims), (u * u).sum(dims))
    else:
        # A norm is one pass over memory, a summed product would be two.
        ww = torch.linalg.vector_norm(w, dim=dims).square_()
        uu = torch.linalg.vector_norm(u, dim=dims).square_()
        squares = (ww, torch.mul(w, u, out=product).sum(dims), uu)
    return (*squares, w.sum(dims), u.sum(dims)) if means else squares


def rotate(
    sums: Sequence[Tensor],
    rows: Sequence[Tensor],
    fan_in: Number,
    numbers: Sequence[Number],
    *,
    centre: bool | Literal["weights"],
    slack: float,
    norms: Norms = "fixed",
    norm_range: tuple[float, float] = (0.0, math.inf),
) -> Change:
    """Return the step that rotates each vector by arctan of η_r·‖Δ⊥‖/rms‖Δ⊥‖ (RE Algorithm 1).

        ω ← n·(ω-ω̄)/‖ω-ω̄‖,  Δ⊥ = (Δ-Δ̄) without its projection on ω,  ν ← βν + (1-β)‖Δ⊥‖²/q_t
        ω ← ω + η_r·n·Δ⊥/(sqrt(q_t·ν/(1-β^t)) + ε),  renormalised to n: ‖Δ⊥‖ and the new norm follow from the sums

    With centre="weights" neither ω nor Δ is centred first, and ω ← n·(ω-ω̄)/‖ω-ω̄‖ comes last, as RE prints it.
    `rows` are the radius n (-1 before the first step), the average ν, and factors of η_r if there are any. If a norm
    differs from its radius by more than `slack`, something else has changed it, and the radius is read again. While η_r
    = 0 the weights do not change. Vectors without a direction (norm 0, or all entries equal) take the plain step. The
    coefficients are A, B and D of `move_`. Unless norms are fixed, n first grows by e^(`norm_growth`), if it stays in
    `norm_range`, its limits per entry and in all.
    """
    by = RotationNumbers(*numbers[: len(RotationNumbers._fields)])
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
    # A radius of 0 is kept, and such a vector always takes plain steps.
    n = torch.where(((norm - radius).abs() > slack * radius) & (radius != 0), norm, radius)
    # If all entries are equal, rounding leaves a few eps of the square, which is not a direction.
    spread = ww - sum_w * sum_w / fan_in if centre == "weights" else ww_c
    alive = (n > 0) & (spread > 16 * torch.finfo(ww.dtype).eps * ww)
    along = torch.where(alive, wu_c / ww_c, none)
    across2 = uu_c - wu_c * along
    # The same holds for an update along ω or along 1, such as Adam's first if all gradients of a row have one sign.
    seen = across2 > 256 * torch.finfo(ww.dtype).eps * uu
    across2 = torch.where(seen, across2, none)
    # A tensor from an AdamW checkpoint, first seen at a later step, starts its average at this update.
    length2 = across2 / by.square
    nu = by.beta * torch.where(radius < 0, by.prior * length2, update_sq) + (1 - by.beta) * length2
    rms = (nu / by.correction * by.square).sqrt() + by.eps
    rate = torch.where(seen & (rms > 0), angle / rms, none)
    if norms != "fixed":
        growth = norm_growth(n, rate * along * ww_c.sqrt(), rate * rate * across2, rms, angle, by, norms)
        grown = n + n * torch.expm1(growth)
        lowest, highest = norm_range
        stays = torch.where(growth > 0, grown <= highest, grown >= lowest * fan_in**0.5)
        n = torch.where(alive & (rate > 0) & stays, grown, n)
    # ω and Δ⊥ are orthogonal, so the new norm before it is set back to n is n·√(1 + (rate·‖Δ⊥‖)²).
    size = n * (1 + rate * rate * across2).rsqrt()
    A = size * (ww_c.rsqrt() - rate * along)
    B = size * rate
    D = -A * mean_w - B * mean_u
    if centre == "weights":
        # A·ω + B·Δ has norm n. Removing its mean shortens it, and `rest` restores the norm.
        mean = (A * sum_w + B * sum_u) / fan_in
        rest = n * (n * n - fan_in * mean * mean).rsqrt()
        A = A * rest
        B = B * rest
        D = -mean * rest
    # Reading a tensor would wait for its device, so both cases are computed.
    if isinstance(angle, Tensor) or angle == 0:
        moves = none + angle > 0
        A = torch.where(moves, A, none + 1)
        B = torch.where(moves, B, none)
        D = torch.where(moves, D, none)
    # Last, to replace the infinities and NaNs of vectors without a direction.
    A = torch.where(alive, A, none + (1 - by.decay))
    B = torch.where(alive, B, none + by.lr)
    return Change((A, B, torch.where(alive, D, none)), (n, nu))


def norm_growth(
    n: Tensor, outward: Tensor, squared_tangent: Tensor, rms: Tensor, angle: Number, by: RotationNumbers, norms: Norms
) -> Tensor:
    """Return by how much log n grows in a step (ours, docs/theory.md, "Free norms").

        k·⟨Δ,d⟩ - D   [ - a·(1 - n_eq²/n²) if it settles ],   at most ±η_r

    k·⟨Δ,d⟩, `outward`, is the radial part of the same step at the same scale, and D its mean under noise.
    """
    growth = outward - noise_drift(squared_tangent, by.excess, by.lag)
    if norms == "settling":
        growth = growth - by.settling * (1 - (by.norm_ratio * rms / n) ** 2)
    return torch.minimum(torch.maximum(growth, growth * 0 - angle), growth * 0 + angle)


def move_(
    entries: Sequence[Tensor],
    u: Tensor,
    coefficients: Sequence[Tensor],
    noise: Tensor | None = None,
    scratch: Scratch | None = None,
) -> None:
    """Compute ω ← A·ω + B·Δ + D for the first of the entries, D = 0 if absent. Δ may be overwritten.

    `noise` in [-½, ½) rounds low-precision weights stochastically. Only the steps of spheres need `scratch`.
    """
    w = entries[0]
    A, B, *shift = (column(coefficient, u) for coefficient in coefficients)
    # Low precision is computed in Δ's dtype and rounded once. Otherwise in place, without a copy.
    if w.dtype == u.dtype:
        w.mul_(A).addcmul_(u, B)
        for D in shift:
            w.add_(D)
        return
    moved = u.mul_(B)
    for D in shift:
        moved.add_(D)
    moved.addcmul_(w.to(u.dtype), A)
    if noise is not None:
        # The spacing of w's dtype at `moved`, times the noise: frexp's fraction is in [½, 1).
        spacing = round(math.log2(torch.finfo(w.dtype).eps)) - 1
        moved = moved + torch.ldexp(noise, torch.frexp(moved).exponent + spacing)
    w.copy_(moved)
