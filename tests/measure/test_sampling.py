"""When samples are taken: with a clock that the test turns."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.measure.sampling import RECOVERY, DefaultInterval, EveryNth, sampling
from tests.measure.fakes import Turner, rows_only, train


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def interval(steps, *, step_time, cost, budget=0.01, dense=0):
    """The steps that the default interval samples, and its notes."""
    clock = Clock()
    nth = EveryNth(10, budget, clock, dense)
    sampled = []
    notes = []
    for step in range(steps):
        if nth.due(step):
            sampled.append(step)
            clock.now += cost
            notes.append(nth.record_cost(step, cost))
        clock.now += step_time
    return sampled, [note for note in notes if note is not None]


def test_the_default_interval_stays_where_measuring_is_cheap_or_the_run_is_short():
    assert interval(5000, step_time=1.0, cost=0.09) == (list(range(0, 5000, 10)), [])
    short, notes = interval(1000, step_time=1e-4, cost=0.9e-3)
    assert short == list(range(0, 1000, 10)), "0.09 s in all"
    assert notes == []


def test_by_default_a_short_run_has_twenty_samples_and_a_given_number_is_obeyed_literally(tmp_path):
    model = rows_only(4, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1.0)
    steps = {}
    for name, options in {"default": {}, "given": {"every": 10}}.items():
        with gyro.Tracker(model, optimizer, tmp_path / name, **options) as tracker:
            train(model, optimizer, 60)
            steps[name] = tracker.run.steps.tolist()
    assert steps["default"] == [*range(20), 20, 30, 40, 50]
    assert steps["given"] == [0, 10, 20, 30, 40, 50]


def test_a_dense_start_does_not_make_later_samples_rarer():
    dear = {"step_time": 1.0, "cost": 0.09}  # 0.9 % of the time at every tenth step, 9 % in the dense start
    sampled, notes = interval(5000, **dear, dense=20)
    assert sampled == [*range(20), *range(20, 5000, 10)]
    assert notes == []
    assert len(sampled) * dear["cost"] / 5000 < 0.01


def test_the_default_interval_grows_until_measuring_keeps_its_budget_and_the_run_says_so():
    sampled, notes = interval(200_000, step_time=1e-3, cost=1e-3)
    assert np.diff(sampled)[-1] == 160, "1/160 of the time is the first below a hundredth"
    assert all(step % 10 == 0 for step in sampled)
    assert len(notes) == 1, "at once"
    assert "Measuring every 10 steps took 9.2 % of the time, more than budget=0.01" in notes[0]
    assert "every 160 steps. Pass every=10 to keep it." in notes[0]


def test_a_number_of_steps_that_is_given_is_kept_whatever_it_costs():
    given: Any = sampling(10, 0.01)
    default: Any = sampling(DefaultInterval(10), 0.01)
    agreed: Any = sampling(DefaultInterval(10), 0.01, alone=False)
    assert given.clock is None
    assert default.clock is not None
    assert agreed.clock is None, "processes must agree on what to measure"
    assert (given.dense, default.dense, agreed.dense) == (0, 20, 20)
    assert inspect.signature(gyro.Tracker).parameters["every"].default == 10


def test_under_overload_samples_are_spaced_evenly_and_return_after_some_time():
    nth = EveryNth(1)
    taken = []
    for step in range(600):
        if nth.due(step):
            overloaded = step in (50, 52)
            if not overloaded:
                taken.append(step)
            nth.record_cost(step, 0.0, refused=overloaded)
    gaps = np.diff(taken)
    assert set(gaps[taken.index(49) + 1 : taken.index(49) + RECOVERY - 1]) == {4}
    assert gaps[-1] == 2
    assert nth.left_out[0] == 600 - len(taken)
    assert nth.summary().startswith(f"{nth.left_out[0]} samples were left out between step 50 and step ")


@pytest.mark.parametrize(("cores", "share"), [(1, 1.0), (2, 0.5), (64, 0.5)])
def test_the_budget_pays_for_hooks_and_for_half_of_the_threads_behind_them(tmp_path, monkeypatch, cores, share):
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    model = rows_only(4, 8)
    optimizer = Turner(model.parameters())
    with gyro.Tracker(model, optimizer, tmp_path, every=1) as tracker:
        paid: list[float] = []
        monkeypatch.setattr(tracker._sampling, "record_cost", lambda step, seconds, refused: paid.append(seconds))
        recorder: Any = tracker._recorder
        of_threads = 0.0
        for _ in range(5):
            # The threads' work on a sample is paid for with the next one.
            of_threads = sum(worker.seconds for worker in recorder.workers)
            train(model, optimizer, 1)
            recorder.flush()
    assert of_threads > 0
    assert sum(paid) == pytest.approx(tracker.seconds + share * of_threads)
