"""Steps on the sphere (SP) as pure functions of a few numbers per vector, the same for eager and compiled steps.

In Adam-S, SGD-MRT and AdamG the new momentum y is a combination of the weight ω, the gradient g and the old momentum m,
and the step stays in the plane of ω and y. So a rule needs only the six inner products of ω, g and m
(`inner_products`), and returns the coefficients by which `combine_` moves the entries.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gyroscope.geometry import at_least_float32
from gyroscope.optim._engine.memory import Scratch
from gyroscope.optim._engine.steps import Step, TensorKind, Turn
from gyroscope.optim.formulas import Change, Number, column, is_per_vector

# ⟨ω,ω⟩, ⟨ω,g⟩, ⟨ω,m⟩, ⟨g,g⟩, ⟨g,m⟩, ⟨m,m⟩ of each vector.
Products = Sequence[Tensor]


class AdamNumbers(NamedTuple):
    """Options at step t = 1, 2, …, and its bias corrections 1-β1^t and 1-β2^t."""

    lr: Number
    l2: Number
    beta1: Number
    beta2: Number
    correction1: Number
    correction2: Number
    eps: Number


def sphere(
    moment: str,
    rows: Mapping[str, Number],
    rule: Callable[..., Change],
    numbers: tuple[Number, ...],
    kind: TensorKind,
    **options: float,
) -> Step:
    """Return the description for the loop. `rule(products, rows, fan_in, numbers, **options)` returns the `Change`."""
    finish = None
    # SGD's rule divides nothing. On other devices `combine_` divides.
    if isinstance(numbers, AdamNumbers) and kind.device.type == "cpu":
        finish = partial(divide_, eps=numbers.eps)
    turn = Turn(
        rows=rows,
        numbers=numbers,
        key=(rule, *options.values()),
        measure=inner_products,
        decide=partial(rule, **options),
        move=combine_,
        finish=finish,
    )
    return Step(None, (moment,), {}, numbers[0], turn=turn)


def inner_products(
    entries: Sequence[Tensor], rows: Sequence[Tensor], u: Tensor, product: Tensor | None, numbers: Sequence[Number]
) -> tuple[Tensor, ...]:
    """Return the six `Products` of [weight, gradient, momentum]. `product` is scratch memory for eager execution."""
    dtype = at_least_float32(entries[0].dtype)
    dims = tuple(range(1, entries[0].dim()))
    w, g, m = (x.to(dtype) for x in entries)
    pairs = ((w, w), (w, g), (w, m), (g, g), (g, m), (m, m))
    return tuple(torch.mul(a, b, out=product).sum(dims) for a, b in pairs)


def combine_(
    entries: Sequence[Tensor],
    u: Tensor,
    coefficients: Sequence[Number],
    noise: Tensor | None = None,
    scratch: Scratch | None = None,
) -> None:
    """Move the entries by the coefficients y0, y1, y2, w0, w1, m0, m1, in float32 or better, and round once.

        y = y0·ω + y1·g + y2·m,   ω ← ω + w0·ω + w1·y,   m ← m0·ω + m1·y

    ω + w0·ω keeps a weak decay that (1 + w0)·ω would round away. The three coefficients before these, prior, share and
    ε (or None), are Adam's division (`adam_divisor`) for vectors without a direction.
    """
    w, g, m = entries
    dtype = at_least_float32(w.dtype)
    x = w.to(dtype)
    g = g.to(dtype)
    columns = [column(c, g) if is_per_vector(c) else c for c in coefficients]
    prior, share, eps, y0, y1, y2, w0, w1, m0, m1 = columns
    # A new tensor of the weights' size would cost as much as the arithmetic.
    y = _combined((g, y1), (m, y2), (x, y0), out=None if scratch is None else scratch.like(m, dtype))
    _combined((y, m1), (x, m0), out=m)
    # On a CPU a root of every entry would cost more than the step, so `divide_` is called only if needed.
    if prior is not None and w.device.type != "cpu":
        y = y / adam_divisor(g, prior, share, eps)
    moved = _combined((y, w1), (x, w0), out=y)
    if x is w:  # .to returns w itself if the dtypes agree
        torch.add(moved, x, out=w)
    else:
        w.copy_(moved.add_(x))


def adam_divisor(g: Tensor, prior: Tensor, share: Tensor, eps: Number) -> Tensor:
    """Return √v̂ + ε, v̂ = prior + share·g², for vectors that take Adam's own step. Return 1 if prior is below 0."""
    # Roots of negative numbers are NaN, and are not chosen.
    return torch.where(prior < 0, torch.ones_like(prior), (prior + share * g * g).sqrt() + eps)


def divide_(entries: Sequence[Tensor], coefficients: Sequence[Tensor], *, eps: Number) -> None:
    """Divide as Adam does after the step of vectors of norm 0, whose weight is now the step itself.

    The first two coefficients are prior and share. Only for a CPU, because the test waits for the device.
    """
    w, g = entries[:2]
    prior, share = coefficients[:2]
    if not bool((prior < 0).all()):
        w.div_(adam_divisor(g.to(prior.dtype), column(prior, g), column(share, g), eps))


def _combined(*terms: tuple[Tensor, Number], out: Tensor | None = None) -> Tensor:
    """Return Σ coefficient·tensor without the terms known to be 0. The first is not."""
    (first, leading), *others = terms
    total = torch.mul(first, leading, out=out)
    for x, coefficient in others:
        if isinstance(coefficient, Tensor):
            total.addcmul_(x, coefficient) if coefficient.dim() else total.add_(x * coefficient)
        elif coefficient:
            total.add_(x, alpha=coefficient)
    return total


def adam_s(
    products: Products, rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number], *, transport: bool = False
) -> Change:
    """Return the step of Adam-S, Adam with one second moment v per vector (SP 61–63).

        g ← g + λω,  m ← β1·m + (1-β1)g,  v ← β2·v + (1-β2)‖g‖²/d,  ω' = ω - lr·m̂/(√v̂ + ε)

    Vectors of norm 0 take Adam's step, from a v shared by all their entries.
    """
    by = AdamNumbers(*numbers)
    ww, wg, wm, gg, gm, mm = _with_l2(products, by.l2)
    (exp_avg_sq,) = rows
    none = ww == 0
    v = by.beta2 * exp_avg_sq + (1 - by.beta2) * gg / fan_in
    rate = by.lr / by.correction1 / torch.where(none, 1.0, (v / by.correction2).sqrt() + by.eps)
    # Without transport the momentum is y, and v stays as it is.
    m0: Number = 0.0
    m1: Number = 1.0
    shrink: Number = 1.0
    if transport:
        wy = by.beta1 * wm + (1 - by.beta1) * wg
        yy = by.beta1**2 * mm + 2 * by.beta1 * (1 - by.beta1) * gm + (1 - by.beta1) ** 2 * gg
        m0, m1, shrink = _rescale_transport(ww, wy, yy, rate)
    # Adam's v̂ of an entry is prior + share·g². The vector's v is the past of all its entries.
    prior = torch.where(none, by.beta2 / by.correction2 * exp_avg_sq, -1.0)
    share = torch.zeros_like(ww) + (1 - by.beta2) / by.correction2
    y = ((1 - by.beta1) * by.l2, 1 - by.beta1, by.beta1)
    return Change((prior, share, by.eps, *y, 0.0, -rate, m0, m1), (v * shrink,))


def adam_srt(products: Products, rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number]) -> Change:
    """Return the step of Adam-SRT: Adam-S, then m ← RT(m), v ← v·‖ω‖²/‖ω'‖² (SP 19–21)."""
    return adam_s(products, rows, fan_in, numbers, transport=True)


def sgd_mrt(products: Products, rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number]) -> Change:
    """Return the step of SGD-MRT: m ← α·m + g + λω,  ω' = ω - lr·m,  m ← RT(m)     (SP 76)."""
    lr, l2, momentum = numbers
    ww, wg, wm, gg, gm, mm = _with_l2(products, l2)
    wy = momentum * wm + wg
    yy = momentum**2 * mm + 2 * momentum * gm + gg
    m0, m1, _ = _rescale_transport(ww, wy, yy, lr)
    return Change((None, None, None, l2, 1.0, momentum, 0.0, -lr, m0, m1))


def adam_g(
    products: Products, rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number], *, slack: float
) -> Change:
    """Return the step of AdamG on ω = n·u, n fixed (Cho & Lee 2017, as in SP). The rows are n and v.

        h = n·g made tangent,  m ← β1·m + (1-β1)h,  v ← β2·v + (1-β2)‖h‖²
        u' = normalise(u - s·m),  s = lr·√(1-β2^t)/(1-β1^t)/(√v + ε),  m carried along

    If a norm differs from its radius by more than `slack`, something else has changed it, and the radius is read again.
    Vectors of norm 0 take Adam's step without memory, which begins when they have a direction.
    """
    by = AdamNumbers(*numbers)
    ww, wg, wm, gg, gm, mm = products
    radius, exp_avg_sq = rows
    has_radius = radius > 0
    n, none = _radii(ww, radius, has_radius, slack)
    zero, one = torch.zeros_like(n), torch.ones_like(n)
    length2 = torch.where(none, one, ww)
    # 0 before the first step with a direction, because the momentum of a vector of norm 0 is no tangent.
    memory = has_radius.to(ww.dtype)
    scale, hh = _tangent(length2, wg, gg, n, zero)
    y2 = by.beta1 * memory
    y0 = ((by.beta1 - 1) * scale * wg - y2 * wm) / length2
    y = (y0, (1 - by.beta1) * torch.where(none, one, scale), y2)
    yy = by.beta1**2 * memory * (mm - wm * wm / length2) + (1 - by.beta1) ** 2 * hh
    yy = yy + 2 * by.beta1 * (1 - by.beta1) * memory * scale * (gm - wg * wm / length2)
    v = by.beta2 * memory * exp_avg_sq + (1 - by.beta2) * hh
    rate = by.lr * by.correction2**0.5 / by.correction1 / (v.sqrt() + by.eps)
    share = zero + (1 - by.beta2) / by.correction2
    first = by.lr / by.correction1
    moved = _rotated(length2, n, rate, yy, none, (zero, one, zero + first))
    return Change((none.to(n.dtype) - 1, share, by.eps, *y, *moved), (n, v))


def adam_g_star(
    products: Products, rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number], *, slack: float
) -> Change:
    """Return the step of AdamG* on ω = n·u, the AdamG that SGD with decay is on the sphere (SP 3.2, Theorem 4).

        h = n·g made tangent,  u' = normalise(u - s·h),  s = lr/(√v + ε),  and then v ← β2·v + ‖h‖²

    Vectors of norm 0 take Adam's first step.
    """
    by = AdamNumbers(*numbers)
    ww, wg, _, gg, _, _ = products
    radius, exp_avg_sq = rows
    n, none = _radii(ww, radius, radius > 0, slack)
    zero, one = torch.zeros_like(n), torch.ones_like(n)
    length2 = torch.where(none, one, ww)
    scale, hh = _tangent(length2, wg, gg, n, zero)
    rate = by.lr / (exp_avg_sq.sqrt() + by.eps)
    v = torch.where(none, exp_avg_sq, by.beta2 * exp_avg_sq + hh)
    y = (-scale * wg / length2, torch.where(none, one, scale), 0.0)
    moved = _rotated(length2, n, rate, hh, none, (zero, one, one * by.lr))
    return Change((none.to(n.dtype) - 1, one, by.eps, *y, *moved), (n, v))


def _with_l2(products: Products, l2: Number) -> tuple[Tensor, ...]:
    """Return the inner products with g + λω in place of g."""
    ww, wg, wm, gg, gm, mm = products
    return ww, wg + l2 * ww, wm, gg + 2 * l2 * wg + l2 * l2 * ww, gm + l2 * wm, mm


def _rescale_transport(ww: Tensor, wy: Tensor, yy: Tensor, rate: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coefficients of ω and y in RT(y) = (⟨ω',ω⟩y - ⟨ω',y⟩ω)/⟨ω',ω'⟩ (SP 18), and ‖ω‖²/‖ω'‖².

    ω' = ω - rate·y. y stays as it is if ω or ω' has no direction.
    """
    # ⟨ω',ω⟩, ⟨ω',y⟩ and ⟨ω',ω'⟩ without ω' itself.
    old = ww - rate * wy
    along = wy - rate * yy
    new2 = old - rate * along  # rate² would overflow if eps is tiny and the gradient zero
    moves = (ww > 0) & (new2 > 0)
    new2 = torch.where(moves, new2, 1.0)
    shrink = torch.where(moves, ww / new2, 1.0)
    return torch.where(moves, -along / new2, 0.0), torch.where(moves, old / new2, 1.0), shrink


def _radii(ww: Tensor, radius: Tensor, is_known: Tensor, slack: float) -> tuple[Tensor, Tensor]:
    """Return the radii to keep (stored below 0 before the first step), and which vectors have norm 0."""
    norm = ww.sqrt()
    kept = is_known & ((norm - radius).abs() <= slack * radius)
    return torch.where(kept, radius, norm), norm == 0


def _tangent(ww: Tensor, wg: Tensor, gg: Tensor, n: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor n of h = n·(g - ⟨g,u⟩u), and ‖h‖². Both are 0 if the gradient is radial up to rounding."""
    # 256 eps of ‖g‖² is left when the two terms cancel, with room for the rounding of long sums.
    across = gg - wg * wg / ww
    seen = across > 256 * torch.finfo(ww.dtype).eps * gg
    scale = torch.where(seen, n, zero)
    return scale, torch.where(seen, n * n * across, zero)


def _rotated(
    ww: Tensor, n: Tensor, rate: Tensor, yy: Tensor, none: Tensor, constants: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Return w0, w1, m0 and m1 of ω' = n·normalise(u - s·y), s the rate, and of y transported along the geodesic.

        y ← y - ⟨y,u'⟩/(1+⟨u,u'⟩)·(u + u') = c·(y + s‖y‖²u),  c = cos of the angle arctan(s‖y‖)

    The step goes along y, so the transport only rotates it. (SP (72) shrinks the part orthogonal to the geodesic.)
    `constants` are 0, 1 and the rate of vectors without a direction, once per vector: each costs a launch.
    """
    zero, one, plain = constants
    norm = ww.sqrt()
    size = yy.clamp_min(0).sqrt()
    tan = rate * size
    cos = (1 + tan * tan).rsqrt()
    length = n * cos
    # lr = 0 changes nothing, not even a norm's last digit. Without a direction ω is 0, and w0 has no effect.
    w0 = torch.where(rate > 0, length / norm - 1, zero)
    w1 = -torch.where(none, plain, length * rate)
    return w0, w1, torch.where(none, zero, cos * tan * size / norm), torch.where(none, one, cos)
