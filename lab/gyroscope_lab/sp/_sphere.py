"""Closed forms on the sphere that only experiments and tests need: Table 1, momentum, transport and radii.

Equations are those of Roburin et al., "Spherical Perspective on Learning with Batch Norm" (SP). A weight x = r·u has
radius r and direction u. Vectors lie along the last axis: an array of rows is a batch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gyroscope.theory.sphere import AdamGStar
from gyroscope.tools import Array, Values, positive_array
from gyroscope_lab.sp._effective_step import dot, radius_and_direction


def sgd_learning_rate(lr: Values, r: Values, weight_decay: Values = 0.0) -> Values:
    """Return SGD's effective learning rate, with or without L2, at radius r: lr/(r²·(1 - lr·λ))     (SP Table 1).

    >>> sgd_learning_rate(lr=0.5, r=2.0, weight_decay=1.0)
    0.25
    """
    return lr / (r**2 * (1 - lr * weight_decay))


def sgdm_learning_rate(lr: Values, r: Values, radial: Values) -> Values:
    """Return SGD-M's effective learning rate, `radial` = ⟨c, u⟩: lr/r²/(1 - lr·⟨c, u⟩/r²)     (SP Table 1).

    >>> sgdm_learning_rate(lr=0.5, r=2.0, radial=4.0)
    0.25
    """
    return lr / r**2 / (1 - lr * radial / r**2)


def adam_learning_rate(lr: Values, r: Values, nu: Values, radial: Values) -> Values:
    """Return Adam's effective learning rate: lr/(r·ν)/(1 - lr·⟨c, u⟩/(r·ν)), ν = r·d^(-1/2)‖b‖     (SP Table 1).

    >>> adam_learning_rate(lr=0.5, r=2.0, nu=2.0, radial=4.0)
    0.25
    """
    return lr / (r * nu) / (1 - lr * radial / (r * nu))


def adam_srt_learning_rate(lr: Values, r: Values, nu: Values, weight_decay: Values) -> Values:
    """Return Adam-SRT's effective learning rate: lr/(r·ν)/(1 - lr·λ·r/ν), ν = r·d^(-1/2)‖b‖     (SP Table 1).

    Only the decay of the current step is radial, ⟨c, u⟩ = λr², because RT keeps the momentum tangent.

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
    """Return ν of Adam and Adam-S at the last of steps 0 … k with these radii r_i and ‖∇L(u_i)‖, d = `fan_in`.

        ν_k = d^(-1/2)·(1-β1^(k+1))/(1-β1)·sqrt((1-β2)/(1-β2^(k+1))·Σ_i β2^(k-i)·(r_k/r_i)²·‖∇L(u_i) + λr_i²u_i‖²)
                                                                                                            (SP 64)

    ν is the second moment on the sphere, without eps. If nothing is radial, η_e is lr/(r·ν). `rescaled` leaves out
    (r_k/r_i)² and gives ν^R of Adam-SRT, which forgets radii (SP D.2, with λr_i² instead of the paper's λr_i).

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
    """The parts of a momentum relative to the last weight, at `radius` r: past gradients and past L2."""

    gradient: Array
    l2: Array
    radius: float

    def direction(self, weight_decay: float, b: npt.ArrayLike = 1.0) -> Array:
        """Return c = (c_grad + λ·r²·c_L2)/(b/s), s the RMS of b: the c of `effective_step`     (SP 16).

        >>> momentum_on_sphere([[2.0, 0.0]], [[0.0, 1.0]], beta=0.9).direction(weight_decay=0.1).tolist()
        [0.4, 2.0]
        """
        b = np.broadcast_to(np.asarray(b, dtype=np.float64), self.gradient.shape)
        shape = b / np.sqrt(np.mean(b * b))
        return np.asarray((self.gradient + weight_decay * self.radius**2 * self.l2) / shape)


def momentum_on_sphere(weights: npt.ArrayLike, gradients: npt.ArrayLike, beta: float) -> MomentumOnSphere:
    """Split the momentum a_k = Σ β^(k-i)·(∇L(x_i) + λx_i) of weights x_0 … x_k, one per row, on the sphere.

        c_grad = Σ_i β^(k-i)·(r_k/r_i)·∇L(u_i),   c_L2 = Σ_i β^(k-i)·(r_i/r_k)·u_i     (SP 17)

    `gradients` are those at the weights, ∇L(x_i) = ∇L(u_i)/r_i. Both contain the radii of the past, in inverse
    proportion.

    >>> momentum_on_sphere([[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]], beta=0.5).l2.tolist()
    [1.25, 0.0]
    """
    r, u = radius_and_direction("weights", weights)
    unit_gradients = r * np.asarray(gradients, dtype=np.float64)
    age = np.arange(len(r) - 1, -1, -1)[:, None]
    past = beta**age
    return MomentumOnSphere(
        np.sum(past * (r[-1] / r) * unit_gradients, axis=0), np.sum(past * (r / r[-1]) * u, axis=0), float(r[-1, 0])
    )


def exponential_map(point: npt.ArrayLike, velocity: npt.ArrayLike) -> Array:
    """Return the end of a great circle from `point` on the unit sphere: cos‖v‖·u + sin‖v‖·v/‖v‖     (SP C.1.1).

    The direction of `point` rotates by ‖v‖ radians. `point` may have any norm above 0, and v must be tangent there.

    >>> exponential_map([1.0, 0.0], [0.0, np.pi / 6]).round(3).tolist()
    [0.866, 0.5]
    """
    _, u = radius_and_direction("point", point)
    v = np.asarray(velocity, dtype=np.float64)
    angle = np.linalg.norm(v, axis=-1, keepdims=True)
    return np.asarray(np.cos(angle) * u + np.sinc(angle / np.pi) * v)  # NumPy's sinc(x) is sin(πx)/(πx), and 1 at 0


def rescale(momentum: npt.ArrayLike, old: npt.ArrayLike, new: npt.ArrayLike) -> Array:
    """Return R, the momentum in the scale that gradients have at the new radius.

        R(m) = (r/r')·m     (SP 69)

    With R alone, the momentum no longer depends on the radii of the past.

    >>> rescale([0.0, 1.0], old=[1.0, 0.0], new=[0.0, 2.0]).tolist()
    [0.0, 0.5]
    """
    r_old, _ = radius_and_direction("old", old)
    r_new, _ = radius_and_direction("new", new)
    return np.asarray(r_old / r_new * np.asarray(momentum, dtype=np.float64))


def transport(momentum: npt.ArrayLike, old: npt.ArrayLike, new: npt.ArrayLike) -> Array:
    """Return T, the momentum carried from the direction u of `old` to u' of `new`, tangent to the sphere there.

        T(m) = ⟨u, u'⟩m - ⟨m, u'⟩u     (SP 72)

    T drops the radial part of m, rotates the part along the geodesic, and multiplies the part orthogonal to it by cosθ,
    with the angle θ from u to u'. `parallel_transport` keeps the orthogonal part.

    >>> transport([0.0, 1.0, 2.0], old=[1.0, 0.0, 0.0], new=[0.0, 2.0, 0.0]).tolist()
    [-1.0, 0.0, 0.0]
    """
    m = np.asarray(momentum, dtype=np.float64)
    _, u = radius_and_direction("old", old)
    _, u_new = radius_and_direction("new", new)
    return np.asarray(dot(u, u_new) * m - dot(m, u_new) * u)


def rescale_transport(momentum: npt.ArrayLike, old: npt.ArrayLike, new: npt.ArrayLike) -> Array:
    """Return RT, the momentum of Adam-SRT and SGD-MRT carried from the weight `old` x to `new` x'.

        RT(m) = R(T(m)) = (⟨x', x⟩m - ⟨x', m⟩x)/⟨x', x'⟩     (SP 18)

    R and T commute.

    >>> rescale_transport([0.0, 1.0], old=[1.0, 0.0], new=[0.0, 2.0]).tolist()
    [-0.5, 0.0]
    """
    return rescale(transport(momentum, old, new), old, new)


def parallel_transport(vector: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike) -> Array:
    """Carry a tangent vector along the geodesic from `start` to `end`. It keeps its norm.

        m - ⟨m, u'⟩/(1 + ⟨u, u'⟩)·(u + u')     (AdamG, Cho & Lee 2017)

    It holds for m tangent at `start` and points of any norm above 0. Opposite points raise, because they have many
    geodesics.

    >>> parallel_transport([0.0, 1.0, 2.0], start=[1.0, 0.0, 0.0], end=[0.0, 1.0, 0.0]).tolist()
    [-1.0, 0.0, 2.0]
    """
    m = np.asarray(vector, dtype=np.float64)
    _, u = radius_and_direction("start", start)
    _, u_next = radius_and_direction("end", end)
    closeness = 1 + dot(u, u_next)
    if not np.all(closeness > 0):
        raise ValueError(f"1 + <start, end> = {closeness.min()}: opposite points. Transport in two smaller steps")
    return np.asarray(m - dot(m, u_next) / closeness * (u + u_next))


def next_radius2(radius2: Values, lr: Values, unit_grad_norm: Values) -> Values:
    """Return r² after a step of SGD without decay, exactly: r² + (lr·‖∇L(u)‖)²/r²     (SP 46).

    >>> next_radius2(4.0, lr=0.5, unit_grad_norm=2.0)
    4.25
    """
    return radius2 + (lr * unit_grad_norm) ** 2 / radius2


def radii2(radius: float, lr: npt.ArrayLike, unit_grad_norm: npt.ArrayLike) -> Array:
    """Return r_k² of SGD without decay before steps k = 0 … n, given lr_i and ‖∇L(u_i)‖, from `radius` r0.

        r_k² = sqrt(2·Σ_{i<k} (lr_i·‖∇L(u_i)‖)² + r0⁴)     (the solution of SP 46 to second order)

    The next order is smaller by (lr_i·‖∇L(u_i)‖)²/r_i⁴, the squared tangent of the angle of a step.

    >>> radii2(1.0, lr=0.1, unit_grad_norm=[1.0, 1.0]).round(4).tolist()
    [1.0, 1.01, 1.0198]
    """
    steps = np.asarray(lr, dtype=np.float64) * np.asarray(unit_grad_norm, dtype=np.float64)
    grown = np.concatenate([[0.0], np.cumsum(steps**2)])
    return np.asarray(np.sqrt(2 * grown + radius**4))


def adam_g_star_learning_rates(star: AdamGStar, unit_grad_norm: npt.ArrayLike) -> Array:
    """Return effective learning rates of steps k = 0 … n, for n gradients of these norms, one column per weight.

        η_e = lr/sqrt(Σ_{i<k} beta^(k-1-i)·‖∇L(u_i)‖² + beta^k·v0)     (SP 48)

    With the settings of `adam_g_star` these are SGD's, to second order in the radius (SP 47).

    >>> adam_g_star_learning_rates(AdamGStar(lr=1.0, beta=0.5, v0=4.0), [6.0**0.5, 1.0]).round(4).tolist()
    [0.5, 0.3536, 0.4472]
    """
    v = [np.asarray(star.v0, dtype=np.float64)]
    for norm in np.asarray(unit_grad_norm, dtype=np.float64):
        v.append(star.beta * v[-1] + norm**2)
    return np.asarray(star.lr / np.sqrt(np.stack(np.broadcast_arrays(*v))))
