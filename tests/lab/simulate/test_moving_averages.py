"""CT's averages against the recursions and the optimizer that they describe."""

import numpy as np
import pytest
import torch
from gyroscope_lab.simulate import adaptive_normalization, continuous_moving_average, moving_average

GRADIENTS = np.random.default_rng(0).normal(size=(30, 5))


def test_the_average_is_the_recursion_with_its_bias_corrected():
    m = np.zeros(5)
    for n, g in enumerate(GRADIENTS):
        m = 0.9 * m + 0.1 * g
        np.testing.assert_allclose(moving_average(GRADIENTS[: n + 1], 0.9), m / (1 - 0.9 ** (n + 1)), rtol=1e-12)


def test_the_normalization_is_adams_update_over_lr():
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([w], lr=1e-3, betas=(0.9, 0.99), eps=0.0)
    for n, g in enumerate(GRADIENTS):
        before = w.detach().clone()
        w.grad = torch.tensor(g)
        adam.step()
        update = (before - w.detach()).numpy() / 1e-3
        np.testing.assert_allclose(adaptive_normalization(GRADIENTS[: n + 1], 0.9, 0.99), update, rtol=1e-9)


def test_the_average_in_continuous_time_has_the_rate_of_the_recursion_and_not_its_inverse():
    x = 1 + np.sin(np.arange(400) / 50)
    w = 0.0
    recursion = []
    for value in x:
        w = 0.98 * w + 0.02 * value
        recursion.append(w)
    np.testing.assert_allclose(continuous_moving_average(x, 0.02), recursion, atol=0.01)
    assert abs(continuous_moving_average(x, 0.98)[0] - recursion[0]) > 0.5


@pytest.mark.parametrize(("x", "gamma", "quoted"), [([1.0], 1.0, "gamma=1.0"), ([], 0.5, "x=")])
def test_bad_input_is_quoted(x, gamma, quoted):
    with pytest.raises(ValueError, match=quoted):
        moving_average(x, gamma)
    with pytest.raises(ValueError, match="alpha=0"):
        continuous_moving_average([1.0], 0)
