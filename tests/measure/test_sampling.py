"""When samples are taken: with a clock that the test turns."""

import numpy as np
import torch

import gyroscope as gyro
from gyroscope.measure.sampling import FREE, LONGEST, Auto
from tests.measure.fakes import Turner, rows_only, train


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def steps_sampled(steps, *, step_time=1.0, cost=0.0, timescale=float("nan"), budget=0.01):
    """The steps that `Auto` samples when steps and samples take these times."""
    clock = Clock()
    auto = Auto(budget, clock)
    auto.timescale = timescale
    found = []
    for step in range(steps):
        if auto.due(step):
            found.append(step)
            auto.spent(step, cost)
            clock.now += cost
        clock.now += step_time
    return found


def test_the_first_steps_are_all_sampled_then_ever_fewer():
    found = steps_sampled(2000)
    assert found[:20] == list(range(20))
    gaps = np.diff(found)
    assert (np.diff(gaps) >= 0).all()
    assert gaps[-1] > 50


def test_samples_are_never_further_apart_than_the_timescale_asks_for():
    assert np.diff(steps_sampled(5000, timescale=2000.0))[-5:].tolist() == [20] * 5
    assert np.diff(steps_sampled(40 * LONGEST))[-1] == LONGEST


def test_a_dear_sample_waits_until_the_budget_allows_it():
    found = steps_sampled(10_000, cost=0.5, timescale=100.0)
    assert found[:FREE] == list(range(FREE)), "the start is free"
    spent = 0.5 * len(found)
    allowed = 0.01 * (10_000 + spent)
    assert 0.9 * allowed < spent <= allowed + 0.5


def test_a_larger_budget_buys_more_samples():
    few, many = (len(steps_sampled(5000, cost=0.5, timescale=100.0, budget=share)) for share in (0.01, 0.02))
    assert 1.5 * few < many < 2.5 * few


def test_without_a_clock_only_step_and_timescale_decide():
    auto = Auto(0.01, clock=None)
    auto.timescale = 500.0
    sampled = []
    for step in range(1000):
        if auto.due(step):
            sampled.append(step)
            auto.spent(step, 1e9)
    assert np.diff(sampled)[-1] == 5


def test_the_tracker_follows_the_predicted_timescale_by_itself(tmp_path):
    model = rows_only(4, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1.0)
    with gyro.Tracker(model, optimizer, tmp_path, every="auto", budget=0.99) as tracker:
        train(model, optimizer, 3)
        assert tracker._sampling.timescale == 100.0
        assert tracker.run.steps.tolist() == [0, 1, 2]


def test_an_optimizer_without_a_rule_is_sampled_too(tmp_path):
    model = rows_only(4, 8)
    optimizer = Turner(model.parameters())
    with gyro.Tracker(model, optimizer, tmp_path, every="auto") as tracker:
        train(model, optimizer, 3)
        assert tracker.run.steps.tolist() == [0, 1, 2]
