"""The sphere: what a step does to the direction of a scale-invariant weight, and which schemes do the same to it.

Equations are those of Roburin et al., "Spherical Perspective on Learning with Batch Norm" (SP). A weight x = r·u has
radius r and direction u; only u matters to the loss. Vectors lie along the last axis: an array of rows is a batch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gyroscope._checks import check_decay, check_positive, positive_array
from gyroscope._types import Array, Integers, Values


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.sum(a * b, axis=-1, keepdims=True))


def _split(name: str, x: npt.ArrayLike) -> tuple[Array, Array]:
    """Radius and direction of each vector."""
    x = np.asarray(x, dtype=np.float64)
    r = np.linalg.norm(x, axis=-1, keepdims=True)
    if not np.all(r > 0):
        raise ValueError(f"{name} holds a vector of norm {r.min()}, which has no direction: leave such vectors out")
    return r, x / r


@dataclass(frozen=True, eq=False)
class EffectiveStep:
    """One step as the sphere sees it: from `start` u, by `learning_rate` η_e along minus the tangent `direction` c⊥.

    `radial_factor` is 1 - A⟨c, u⟩, what the radial part of the step leaves of the radius.
    """

    learning_rate: Array
    direction: Array
    start: Array
    radial_factor: Array

    @property
    def _tan(self) -> Array:
        return np.asarray(self.learning_rate * np.linalg.norm(self.direction, axis=-1))

    @property
    def angle(self) -> Array:
        """Angle the weight turns in this step, exactly, in radians: arctan(η_e‖c⊥‖)     (SP 37).

        >>> f"{effective_step([1.0, 0.0], a=[0.0, 1.0], b=1.0, lr=1.0).angle:.4f}"
        '0.7854'
        """
        return np.asarray(np.arctan(self._tan))

    @property
    def next_direction(self) -> Array:
        """Direction after the step, exactly: u' = (u - η_e·c⊥)/sqrt(1 + (η_e‖c⊥‖)²)     (SP 12).

        >>> effective_step([5.0, 0.0], a=[0.0, 3.0], b=1.0, lr=1.25).next_direction.round(3).tolist()
        [0.8, -0.6]
        """
        turned = self.start - self.learning_rate[..., None] * self.direction
        return np.asarray(turned / np.hypot(1, self._tan)[..., None])

    @property
    def radius_ratio(self) -> Array:
        """Radius after the step over the radius before it, exactly: (1 - A⟨c, u⟩)·sqrt(1 + (η_e‖c⊥‖)²)     (SP 13).

        >>> f"{effective_step([5.0, 0.0], a=[0.0, 3.0], b=1.0, lr=1.25).radius_ratio:.2f}"
        '1.25'
        """
        return np.asarray(self.radial_factor * np.hypot(1, self._tan))


def effective_step(weight: npt.ArrayLike, a: npt.ArrayLike, b: npt.ArrayLike, lr: npt.ArrayLike) -> EffectiveStep:
    """Effective learning rate and direction of the generic step x' = x - lr·a/b, the division by elements.

        c = r·a/(b/s),   A = lr/(r²s),   η_e = A/(1 - A⟨c, u⟩),   s = d^(-1/2)‖b‖, the RMS of b     (SP Theorem 2, 11)

    Exact for any a and b while 1 - A⟨c, u⟩ > 0, that is, unless the step throws the weight through the origin.
    SGD has b = 1 and the momentum for a; Adam a = m/(1-β1), b = (sqrt(v̂)+eps)·(1-β1^(k+1))/(1-β1).

    >>> step = effective_step([[3.0, 4.0], [6.0, 8.0]], a=[[-0.8, 0.6], [-0.4, 0.3]], b=1.0, lr=0.1)
    >>> step.learning_rate.round(6).tolist()
    [0.004, 0.001]
    """
    r, u = _split("weight", weight)
    b = np.broadcast_to(np.asarray(b, dtype=np.float64), u.shape)
    if not np.all(b):
        raise ValueError("b holds a zero, and the step divides by it: add the optimizer's eps to b, such as 1e-8")
    # Only the shape of b turns the direction; its size goes into the learning rate.
    rms_b = np.sqrt(np.mean(b * b, axis=-1, keepdims=True))
    c = r * np.asarray(a, dtype=np.float64) / (b / rms_b)
    A = np.asarray(lr, dtype=np.float64)[..., None] / (r * r * rms_b)
    radial = _dot(c, u)
    factor = 1 - A * radial
    if not np.all(factor > 0):
        raise ValueError(
            f"1 - A<c, u> = {factor.min():.6g} is not above 0: lr={lr!r} carries the weight through the origin; "
            f"divide lr by more than {1 - factor.min():.6g}"
        )
    return EffectiveStep((A / factor)[..., 0], c - radial * u, u, factor[..., 0])


def sgd_learning_rate(lr: Values, r: Values, weight_decay: Values = 0.0) -> Values:
    """Effective learning rate of SGD, with or without L2, at radius r: lr/(r²·(1 - lr·λ))     (SP Table 1).

    >>> sgd_learning_rate(lr=0.5, r=2.0, weight_decay=1.0)
    0.25
    """
    return lr / (r**2 * (1 - lr * weight_decay))


def sgdm_learning_rate(lr: Values, r: Values, radial: Values) -> Values:
    """Effective learning rate of SGD with momentum, `radial` = ⟨c, u⟩: lr/r²/(1 - lr·⟨c, u⟩/r²)     (SP Table 1).

    >>> sgdm_learning_rate(lr=0.5, r=2.0, radial=4.0)
    0.25
    """
    return lr / r**2 / (1 - lr * radial / r**2)


def adam_learning_rate(lr: Values, r: Values, nu: Values, radial: Values) -> Values:
    """Effective learning rate of Adam: lr/(r·ν)/(1 - lr·⟨c, u⟩/(r·ν)), ν = r·d^(-1/2)‖b‖     (SP Table 1).

    >>> adam_learning_rate(lr=0.5, r=2.0, nu=2.0, radial=4.0)
    0.25
    """
    return lr / (r * nu) / (1 - lr * radial / (r * nu))


def adam_srt_learning_rate(lr: Values, r: Values, nu: Values, weight_decay: Values) -> Values:
    """Effective learning rate of Adam-SRT: lr/(r·ν)/(1 - lr·λ·r/ν), ν = r·d^(-1/2)‖b‖     (SP Table 1).

    Only the decay of this very step is radial, ⟨c, u⟩ = λr²: RT keeps the momentum tangent.

    >>> adam_srt_learning_rate(lr=0.5, r=2.0, nu=2.0, weight_decay=1.0)
    0.25
    """
    return lr / (r * nu) / (1 - lr * weight_decay * r / nu)


def adam_nu(
    radius: npt.ArrayLike,
    unit_grad_norm: npt.ArrayLike,
    *,
    fan_in: int,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    rescaled: bool = False,
) -> float:
    """ν of Adam and Adam-S at the last of the steps 0 … k with these radii r_i and ‖∇L(u_i)‖; d = `fan_in`.

        ν_k = d^(-1/2)·(1-β1^(k+1))/(1-β1)·sqrt((1-β2)/(1-β2^(k+1))·Σ_i β2^(k-i)·(r_k/r_i)²·‖∇L(u_i) + λr_i²u_i‖²)
                                                                                                            (SP 64)

    The second moment as the sphere sees it, without eps: η_e is lr/(r·ν) where nothing is radial. `rescaled` leaves out
    (r_k/r_i)²: ν^R, of Adam-SRT, which forgets radii (SP D.2, with λr_i² where the paper has λr_i).

    >>> f"{adam_nu([2.0], [3.0], fan_in=9):.3f}"
    '1.000'
    """
    r = positive_array("radius", np.asarray(radius, dtype=np.float64))
    beta1, beta2 = betas
    k = len(r) - 1
    # ∇L(u) is tangent, so that the two parts of the gradient are orthogonal.
    square = np.asarray(unit_grad_norm, dtype=np.float64) ** 2 + (weight_decay * r**2) ** 2
    seen = square if rescaled else (r[-1] / r) ** 2 * square
    mean = (1 - beta2) / (1 - beta2 ** (k + 1)) * np.sum(beta2 ** np.arange(k, -1, -1) * seen)
    return float((1 - beta1 ** (k + 1)) / (1 - beta1) * np.sqrt(mean / fan_in))


@dataclass(frozen=True, eq=False)
class MomentumOnSphere:
    """What a momentum is made of, seen from the last weight, at `radius` r: past gradients, and past L2."""

    gradient: Array
    l2: Array
    radius: float

    def direction(self, weight_decay: float, b: npt.ArrayLike = 1.0) -> Array:
        """c = (c_grad + λ·r²·c_L2)/(b/s), s the RMS of b: what `effective_step` calls c     (SP 16).

        >>> momentum_on_sphere([[2.0, 0.0]], [[0.0, 1.0]], beta=0.9).direction(weight_decay=0.1).tolist()
        [0.4, 2.0]
        """
        b = np.broadcast_to(np.asarray(b, dtype=np.float64), self.gradient.shape)
        shape = b / np.sqrt(np.mean(b * b))
        return np.asarray((self.gradient + weight_decay * self.radius**2 * self.l2) / shape)


def momentum_on_sphere(weights: npt.ArrayLike, gradients: npt.ArrayLike, beta: float) -> MomentumOnSphere:
    """The momentum a_k = Σ β^(k-i)·(∇L(x_i) + λx_i) of weights x_0 … x_k, one per row, split as the sphere sees it.

        c_grad = Σ_i β^(k-i)·(r_k/r_i)·∇L(u_i),   c_L2 = Σ_i β^(k-i)·(r_i/r_k)·u_i     (SP 17)

    `gradients` are those at the weights, ∇L(x_i) = ∇L(u_i)/r_i. Radii of the past stand in both, in inverse proportion.

    >>> momentum_on_sphere([[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]], beta=0.5).l2.tolist()
    [1.25, 0.0]
    """
    r, u = _split("weights", weights)
    unit_gradients = r * np.asarray(gradients, dtype=np.float64)
    age = np.arange(len(r) - 1, -1, -1)[:, None]
    past = beta**age
    return MomentumOnSphere(
        np.sum(past * (r[-1] / r) * unit_gradients, axis=0), np.sum(past * (r / r[-1]) * u, axis=0), float(r[-1, 0])
    )


def exponential_map(point: npt.ArrayLike, velocity: npt.ArrayLike) -> Array:
    """Point of the unit sphere reached along the great circle from `point`: cos‖v‖·u + sin‖v‖·v/‖v‖     (SP C.1.1).

    Turns the direction of `point` (of any norm above 0) by ‖v‖ radians; v must be tangent there.

    >>> exponential_map([1.0, 0.0], [0.0, np.pi / 6]).round(3).tolist()
    [0.866, 0.5]
    """
    _, u = _split("point", point)
    v = np.asarray(velocity, dtype=np.float64)
    angle = np.linalg.norm(v, axis=-1, keepdims=True)
    return np.asarray(np.cos(angle) * u + np.sinc(angle / np.pi) * v)  # NumPy's sinc(x) is sin(πx)/(πx), and 1 at 0


def rescale_transport(momentum: npt.ArrayLike, old: npt.ArrayLike, new: npt.ArrayLike) -> Array:
    """RT, the momentum of Adam-SRT and SGD-MRT carried from the weight `old` x to `new` x', where it is tangent.

        RT(m) = (⟨x', x⟩m - ⟨x', m⟩x)/⟨x', x'⟩     (SP 18)

    The radial part of m is dropped. Of the tangent part, what lies along the geodesic is turned and multiplied by r/r',
    as gradients of a scale-invariant loss are; what is orthogonal to it shrinks by cosθ·r/r', θ the angle from x to x'.

    >>> rescale_transport([0.0, 1.0], old=[1.0, 0.0], new=[0.0, 2.0]).tolist()
    [-0.5, 0.0]
    """
    m = np.asarray(momentum, dtype=np.float64)
    x = np.asarray(old, dtype=np.float64)
    r, u = _split("new", new)
    return np.asarray((_dot(u, x) * m - _dot(u, m) * x) / r)


def parallel_transport(vector: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike) -> Array:
    """Tangent vector carried along the geodesic from `start` to `end`; its norm stays, whatever its orientation.

        m - ⟨m, u'⟩/(1 + ⟨u, u'⟩)·(u + u')     (AdamG, Cho & Lee 2017)

    Holds for m tangent at `start`, points of any norm above 0; opposite points are joined by many geodesics and raise.

    >>> parallel_transport([0.0, 1.0, 2.0], start=[1.0, 0.0, 0.0], end=[0.0, 1.0, 0.0]).tolist()
    [-1.0, 0.0, 2.0]
    """
    m = np.asarray(vector, dtype=np.float64)
    _, u = _split("start", start)
    _, u_next = _split("end", end)
    closeness = 1 + _dot(u, u_next)
    if not np.all(closeness > 0):
        raise ValueError(f"1 + <start, end> = {closeness.min()}: opposite points; transport in two smaller steps")
    return np.asarray(m - _dot(m, u_next) / closeness * (u + u_next))


def lr_without_decay(lr: float, weight_decay: float, k: int | Integers) -> Values:
    """Learning rate at step k with which SGD without decay follows the directions of SGD with decay, exactly.

        lr_k = lr·(1 - lr·λ)^(-2k-1)     (SP 44)

    Holds for scale-invariant weights from the same start, L2 in the gradient, no momentum; inf beyond a float's range.

    >>> f"{lr_without_decay(lr=0.1, weight_decay=0.01, k=1000):.4f}"
    '0.7404'
    """
    check_decay(lr, weight_decay)
    if np.any(np.asarray(k) < 0):
        raise ValueError(f"k={k} is not a step: the first is 0")
    with np.errstate(over="ignore"):
        # log1p, for lr·λ is often below the rounding of 1.
        rate = lr * np.exp(-(2 * np.asarray(k) + 1) * np.log1p(-lr * weight_decay))
    return float(rate) if rate.ndim == 0 else rate


def next_radius2(radius2: Values, lr: Values, unit_grad_norm: Values) -> Values:
    """r² after a step of SGD without decay, exactly: r² + (lr·‖∇L(u)‖)²/r²     (SP 46).

    >>> next_radius2(4.0, lr=0.5, unit_grad_norm=2.0)
    4.25
    """
    return radius2 + (lr * unit_grad_norm) ** 2 / radius2


def radii2(radius: float, lr: npt.ArrayLike, unit_grad_norm: npt.ArrayLike) -> Array:
    """r_k² of SGD without decay before step k = 0 … n, for n steps with these lr_i and ‖∇L(u_i)‖, from `radius` r0.

        r_k² = sqrt(2·Σ_{i<k} (lr_i·‖∇L(u_i)‖)² + r0⁴)     (the solution of SP 46 to second order)

    The next order is (lr_i·‖∇L(u_i)‖)²/r_i⁴ times smaller: the square of the tangent of the angle of a step.

    >>> radii2(1.0, lr=0.1, unit_grad_norm=[1.0, 1.0]).round(4).tolist()
    [1.0, 1.01, 1.0198]
    """
    steps = np.asarray(lr, dtype=np.float64) * np.asarray(unit_grad_norm, dtype=np.float64)
    grown = np.concatenate([[0.0], np.cumsum(steps**2)])
    return np.asarray(np.sqrt(2 * grown + radius**4))


@dataclass(frozen=True)
class AdamGStar:
    """AdamG* on the unit sphere (SP 3.2): u' = normalise(u - lr·g/sqrt(v)), and then v' = beta·v + ‖g‖², from v0."""

    lr: float
    beta: float
    v0: Values

    def learning_rates(self, unit_grad_norm: npt.ArrayLike) -> Array:
        """Effective learning rates of steps k = 0 … n, for n gradients of these norms; weights along the second axis.

            η_e = lr/sqrt(Σ_{i<k} beta^(k-1-i)·‖∇L(u_i)‖² + beta^k·v0)     (SP 48)

        With the settings of `adam_g_star` these are SGD's, to second order in the radius (SP 47).

        >>> AdamGStar(lr=1.0, beta=0.5, v0=4.0).learning_rates([3.0**0.5 * 2**0.5, 1.0]).round(4).tolist()
        [0.5, 0.3536, 0.4472]
        """
        v = [np.asarray(self.v0, dtype=np.float64)]
        for norm in np.asarray(unit_grad_norm, dtype=np.float64):
            v.append(self.beta * v[-1] + norm**2)
        return np.asarray(self.lr / np.sqrt(np.stack(np.broadcast_arrays(*v))))


def adam_g_star(lr: float, weight_decay: float, radius: Values) -> AdamGStar:
    """AdamG* that follows the directions of SGD with decay from initial `radius` r0 (one, or one per weight).

        beta = (1 - lr·λ)⁴,   lr* = (2·beta)^(-1/2),   v0 = r0⁴/(2·lr²·beta^(1/2))     (SP Theorem 4)

    Equal to second order in the radius: at a fixed lr·k the directions differ by O(lr³).

    >>> star = adam_g_star(lr=0.1, weight_decay=0.01, radius=1.0)
    >>> f"lr={star.lr:.4f} beta={star.beta:.4f} v0={star.v0:.2f}"
    'lr=0.7085 beta=0.9960 v0=50.10'
    """
    check_decay(lr, weight_decay)
    check_positive("lr", lr)
    r0 = positive_array("radius", radius)
    beta = (1 - lr * weight_decay) ** 4
    return AdamGStar(lr=(2 * beta) ** -0.5, beta=beta, v0=r0**4 / (2 * lr**2 * beta**0.5))
