"""CT's annealed learning rate, against the bound that it undoes, and betas that it tried."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from gyroscope_lab.ct import annealed_lr, annealing, root_betas

from gyroscope.optim import KAdam
from gyroscope.theory.stability import margin, update_bound
from tests.reference_sphere import KAdamTwin, check_twin


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


def test_the_scheduler_anneals_each_group_by_its_own_betas():
    stable, unstable = (0.9, 0.999), (0.99, 0.9)
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    groups = [{"params": [w], "betas": betas} for w, betas in zip(weights, (stable, unstable), strict=True)]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    scheduler = annealing(optimizer)
    C = 2 / 0.99 - 1 / 0.9 - 1  # CT 3, β1 = 0.99 and β2 = 0.9
    for n in range(60):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1, rel=1e-12)
        assert optimizer.param_groups[1]["lr"] == pytest.approx(0.1 * math.exp(-n * abs(C) / 2), rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_exact_exponent_anneals_less():
    rate = annealed_lr(100, 0.1, 0.99, 0.9, exact=True)
    assert rate == pytest.approx(0.1 * (0.99**2 / 0.9) ** (-100 / 2), rel=1e-12)
    assert rate > annealed_lr(100, 0.1, 0.99, 0.9)


def test_k_adam_takes_roots_of_betas_as_its_stages():
    stages = [(0.9 ** (1 / 3), 0.999 ** (1 / 3))] * 3
    twin = partial(KAdamTwin, lr=1e-2, vectors=lambda w: None, stages=stages)
    check_twin(partial(KAdam, lr=1e-2, k=3, betas=root_betas(3)), twin)
