"""Corrections for scale-sensitive weights, against vectors with a radial gradient; the rotation discrepancy."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from gyroscope_lab.re._correction import Corrected, correct

from gyroscope._types import Array
from gyroscope.theory import sensitivity
from gyroscope.theory.law import equilibrium_angle

N, C = 128, 64  # vectors, and the entries of each


@dataclass
class Measured:
    """Root mean squares over vectors and the recorded steps; first and last are the norms at either end of them."""

    norm: float
    angle: float
    update: float
    radial: float
    gradient: float
    first: float
    last: float


class Recorder:
    """Collects what the library would be given, and what it predicts, from the steps of a simulation."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []

    def add(self, w: Array, new: Array, update: Array, scaled: Array) -> None:
        x, dot = np.sum(w**2, axis=1), np.sum(w * new, axis=1)
        turned = new - (dot / x)[:, None] * w
        angle = np.arctan2(np.linalg.norm(turned, axis=1), dot / np.sqrt(x))
        radial = np.sum(w * scaled, axis=1) / x
        squares = (x, angle**2, np.sum(update**2, axis=1), radial, np.sum(scaled**2, axis=1))
        self.rows.append(tuple(float(np.mean(q)) for q in squares))

    def measured(self) -> Measured:
        rows = np.array(self.rows)
        x, angle, update, radial, gradient = rows.mean(axis=0)
        ends = math.sqrt(rows[0, 0]), math.sqrt(rows[-1, 0])
        return Measured(math.sqrt(x), math.sqrt(angle), math.sqrt(update), radial, gradient, *ends)


def sgd(lr: float, wd: float, *, start: float, radial: float = 0.0, skip: int = 1200, record: int = 600) -> Measured:
    """Gradients tangent, unit length at unit norm, plus `radial` times the weight; from `start` times equilibrium."""
    rng, recorder = np.random.default_rng(0), Recorder()
    w = rng.standard_normal((N, C))
    w *= start * sgd_norm(lr, wd) / np.linalg.norm(w, axis=1, keepdims=True)
    for t in range(skip + record):
        x = np.sum(w**2, axis=1, keepdims=True)
        g = rng.standard_normal(w.shape) / math.sqrt(C - 1)
        g = (g - np.sum(g * w, axis=1, keepdims=True) * w / x) / x**0.5
        new = (1 - lr * wd) * w - lr * (g + radial * w)
        if t >= skip:
            recorder.add(w, new, lr * (g + radial * w), g + radial * w)
        w = new
    return recorder.measured()


def sgd_norm(lr: float, wd: float) -> float:
    return (lr / (2 * wd)) ** 0.25


def adamw(lr: float, wd: float, *, radial: float, shrink: float) -> Measured:
    """Gradients of unit variance plus `radial` times the weight, all shrinking by exp(-shrink / 2) per step."""
    beta1, beta2 = 0.9, 0.999
    rng, recorder = np.random.default_rng(0), Recorder()
    w = rng.standard_normal((N, C)) * math.sqrt(lr / (2 * wd))
    # v begins where it would be had the gradients always shrunk, so that it lags behind them from the first step on.
    m, v = np.zeros_like(w), np.full_like(w, (1 - beta2) / (1 - beta2 * math.exp(shrink)))
    for t in range(3500):
        g = math.exp(-shrink * t / 2) * (rng.standard_normal(w.shape) + radial * w)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        new = (1 - lr * wd) * w - lr * m / np.sqrt(v)
        if t >= 2000:
            recorder.add(w, new, lr * m / np.sqrt(v), g / np.sqrt(v))
        w = new
    return recorder.measured()


@pytest.mark.parametrize("share", [1.0, -0.5])
def test_under_sgd_the_correction_gives_norm_and_rotation_to_one_percent(share):
    lr, wd = 0.1, 0.02
    run = sgd(lr, wd, start=1.0, radial=share * wd)
    error = sensitivity.decay_error(wd, run.radial)
    assert error == pytest.approx(1 + share, rel=0.01)
    found = correct(math.sqrt(2 * lr * wd), sgd_norm(lr, wd), decay_error=error, norm_power=0.25)
    assert run.norm == pytest.approx(found.norm, rel=0.01)
    assert run.angle == pytest.approx(found.angular_update, rel=0.01)


@pytest.mark.parametrize(("radial", "shrink"), [(-0.05, 0.0), (0.0, 3e-4), (0.08, 3e-4)])
def test_under_adamw_both_corrections_together_give_norm_and_rotation_to_three_percent(radial, shrink):
    lr, wd = 0.02, 0.1
    run = adamw(lr, wd, radial=radial, shrink=shrink)
    decay = sensitivity.decay_error(wd, run.radial)
    gradient = run.gradient / C
    assert gradient == pytest.approx(0.7 if shrink else 1.0, rel=0.03)  # (1 - beta2 exp(shrink)) / (1 - beta2)
    predicted_angle, predicted_norm = math.sqrt(2 * lr * wd / 19), math.sqrt(lr * C / (2 * wd))
    found = correct(predicted_angle, predicted_norm, decay_error=decay, gradient_error=gradient)
    assert run.norm == pytest.approx(found.norm, rel=0.03)
    assert run.angle == pytest.approx(found.angular_update, rel=0.03)
    assert abs(run.norm / predicted_norm - 1) > 0.1  # what was corrected is more than the tolerance


def test_a_vector_pushed_outwards_faster_than_it_decays_goes_to_the_stated_limits():
    lr, wd = 0.1, 0.02
    early = sgd(lr, wd, start=1.0, radial=-1.5 * wd, skip=0, record=100)
    late = sgd(lr, wd, start=1.0, radial=-1.5 * wd, skip=4000, record=100)
    assert late.norm > 20 * early.norm
    assert late.angle < early.angle / 400
    error = sensitivity.decay_error(wd, late.radial)
    assert error == pytest.approx(-0.5, rel=1e-6)
    assert correct(0.1, 1.0, decay_error=error, norm_power=0.25) == Corrected(0.0, math.inf)


def test_the_discrepancy_is_one_in_an_equilibrium_of_noise_to_two_percent():
    lr, wd = 0.1, 0.02
    run = sgd(lr, wd, start=1.0)
    assert sensitivity.rotation_discrepancy(equilibrium_angle(lr * wd, 1), run.angle) == pytest.approx(1, rel=0.02)
    run = adamw(lr=0.005, wd=0.1, radial=0.0, shrink=0.0)
    assert sensitivity.rotation_discrepancy(equilibrium_angle(5e-4, 19), run.angle) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("start", [0.5, 2.0])
def test_the_discrepancy_is_below_one_while_the_norm_grows_and_above_one_while_it_falls(start):
    lr, wd = 0.1, 0.002
    run = sgd(lr, wd, start=start, skip=0, record=5)
    found = sensitivity.rotation_discrepancy(equilibrium_angle(lr * wd, 1), run.angle)
    assert found == pytest.approx(start**4, rel=0.05)  # the update grows as the norm shrinks
    assert (run.last > run.first) == (found < 1)


def test_the_discrepancy_is_the_pull_of_decay_over_the_push_of_noise():
    lr, wd = 0.1, 0.002
    run = sgd(lr, wd, start=2.0, skip=0, record=5)
    found = sensitivity.rotation_discrepancy(equilibrium_angle(lr * wd, 1), run.angle)
    assert found == pytest.approx(2 * lr * wd * run.norm**2 / run.update**2, rel=0.02)


def test_the_discrepancy_above_one_with_a_steady_norm_is_a_persistent_signal():
    """A constant gradient b with noise n settles at ||w||^2 = (b/wd)^2 + lr n^2/(2 wd), and D follows to 2 %."""
    lr, wd, signal = 0.1, 0.02, 0.05
    rng, recorder = np.random.default_rng(0), Recorder()
    b = np.zeros(C)
    b[0] = signal
    w = np.zeros((N, C))
    for t in range(4000):
        g = b + rng.standard_normal((N, C)) / math.sqrt(C)
        new = (1 - lr * wd) * w - lr * g
        if t >= 3000:
            recorder.add(w, new, lr * g, g)
        w = new
    run = recorder.measured()
    assert run.last == pytest.approx(run.first, rel=0.02)
    found = sensitivity.rotation_discrepancy(equilibrium_angle(lr * wd, 1), run.update / run.norm)
    assert found == pytest.approx((2 * signal**2 / (lr * wd) + 1) / (signal**2 + 1), rel=0.02)
    assert found > 3


def test_arrays_give_what_floats_give_entry_by_entry():
    radial = np.array([0.025, -0.2, -0.5])
    errors = sensitivity.decay_error(0.4, radial)
    found = correct(np.array([0.1, 0.2, 0.3]), 2.0, decay_error=errors, gradient_error=0.5)
    assert found.norm[2] == math.inf
    for i, each in enumerate(radial.tolist()):
        error = sensitivity.decay_error(0.4, each)
        one = correct(0.1 * (i + 1), 2.0, decay_error=error, gradient_error=0.5)
        assert found.norm[i] == pytest.approx(one.norm, rel=1e-12)
        assert found.angular_update[i] == pytest.approx(one.angular_update, rel=1e-12)


def test_a_vector_without_rotation_is_not_an_error_but_has_no_number():
    assert math.isinf(sensitivity.rotation_discrepancy(0.1, 0.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sensitivity.decay_error(0.0, 0.1), "weight_decay=0.0 must be finite and above 0"),
        (lambda: correct(0.1, 1.0, decay_error=math.nan), "decay_error=nan must be finite"),
        (lambda: correct(0.1, 1.0, decay_error=2.0, gradient_error=0.0), "gradient_error=0.0 must be"),
        (lambda: correct(0.1, 1.0, decay_error=2.0, norm_power=1 / 3), "norm_power=0.333.* 1/2 .* or 1/4"),
    ],
)
def test_bad_input_is_quoted_with_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
