"""CT's annealed learning rate, against the bound that it undoes."""

import numpy as np
import pytest
from gyroscope_lab.ct._annealing import annealed_lr

from gyroscope.theory.stability import margin, update_bound


def test_annealing_keeps_the_step_bounded_in_the_unstable_region():
    n = np.arange(0, 4000, 40)
    bound = update_bound(n, 0.99, 0.9)
    step = annealed_lr(n, 0.1, 0.99, 0.9) * bound
    limit = 0.1 * (0.01 / 0.99) * 3 / np.sqrt(-margin(0.99, 0.9))  # (5) with its growth taken out, n → ∞
    assert bound[-1] > 1e60
    assert step[-1] == pytest.approx(limit, rel=1e-9)
    assert np.all(step <= step[0] * (1 + 1e-12))


def test_annealing_leaves_a_stable_learning_rate_alone():
    assert annealed_lr(5000, 0.1, 0.9, 0.999) == 0.1


@pytest.mark.parametrize("n", [-1, 2.5])
def test_a_step_that_is_no_step_is_quoted(n):
    with pytest.raises(ValueError, match=rf"n={n} must be the number of a step"):
        update_bound(n, 0.9, 0.999)
    with pytest.raises(ValueError, match=rf"n={n} must be the number of a step"):
        annealed_lr(n, 0.1, 0.9, 0.999)
