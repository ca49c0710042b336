"""`tracker.log`: named numbers of every step go to the run and the sinks, and never stop training."""

import math
import os
import signal
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.measure._pipeline import scalar_log
from gyroscope.measure._pipeline.host_copy import HostCopy
from gyroscope.store import open_run
from tests.forked import run_program
from tests.measure.test_tracker import adamw, mlp, train


@pytest.fixture
def loop(tmp_path):
    """A model and its optimizer, and a tracker beside them."""
    model = mlp()
    optimizer = adamw(model)

    def tracker(**options):
        return gyro.Tracker(model, optimizer, tmp_path, **options)

    return model, optimizer, tracker


def columns(run, name):
    steps, values = run.scalar(name)
    return steps.tolist(), values.tolist()


@pytest.mark.parametrize("every", [1, 3, lambda step: False])
def test_every_value_belongs_to_the_step_taken_last_whatever_is_sampled(loop, every):
    model, optimizer, tracker = loop
    with tracker(every=every) as watch:
        for step in range(7):
            train(model, optimizer, 1)
            watch.log(loss=1.0 / (1 + step), accuracy=torch.tensor([0.5], dtype=torch.bfloat16))
        run = watch.run
    assert run.scalars == ("loss", "accuracy")
    assert columns(run, "loss") == (list(range(7)), [1.0 / (1 + step) for step in range(7)])
    assert columns(run, "accuracy") == (list(range(7)), [0.5] * 7)


def test_before_the_first_step_values_belong_to_step_0_and_later_ones_replace_them(loop):
    model, optimizer, tracker = loop
    with tracker() as watch:
        watch.log(loss=9.0, start=1)
        assert columns(watch.run, "loss") == ([0], [9.0])
        train(model, optimizer, 1)
        watch.log(loss=8.0)
        assert columns(watch.run, "loss") == ([0], [8.0])
        assert columns(watch.run, "start") == ([0], [1.0])


def test_the_value_is_that_of_the_moment_also_where_the_loop_reuses_its_tensor(loop):
    model, optimizer, tracker = loop
    total = torch.zeros((), requires_grad=True)
    with tracker() as watch:
        for _ in range(3):
            train(model, optimizer, 1)
            with torch.no_grad():
                total += 1
            watch.log(total=total, self=np.float32(0.25))
    assert columns(open_run(watch.path), "total") == ([0, 1, 2], [1.0, 2.0, 3.0])
    assert columns(open_run(watch.path), "self") == ([0, 1, 2], [0.25] * 3)


def test_what_is_not_finite_is_stored_as_it_is(loop):
    model, optimizer, tracker = loop
    with tracker() as watch:
        for value in (math.nan, torch.tensor(math.inf), -math.inf):
            train(model, optimizer, 1)
            watch.log(loss=value)
    _, values = open_run(watch.path).scalar("loss")
    assert math.isnan(values[0])
    assert values[1:].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("value", [torch.ones(2), "0.5", None, [1.0], 10**400, 1j])
def test_what_is_no_number_is_one_warning_and_a_note_and_the_others_are_stored(loop, value):
    model, optimizer, tracker = loop
    with tracker(every=10) as watch:
        train(model, optimizer, 1)
        with pytest.warns(RuntimeWarning, match="gyroscope: loss of step 0 was not logged") as seen:
            watch.log(loss=value, accuracy=0)
        assert len(seen) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in (1, 2):
                train(model, optimizer, 1)
                watch.log(loss=value, accuracy=step)
    run = open_run(watch.path)
    assert run.scalars == ("accuracy",)
    assert len(run.scalar("accuracy")[0]) == 3
    assert any("loss of step 0 was not logged" in note for note in run.notes)
    assert run.steps.tolist() == [0]


def test_a_device_is_read_in_the_thread_of_the_samples_and_its_failure_stops_nothing(loop, monkeypatch):
    """The CPU stands for a device here: its tensors are sent, and fail when they are read."""
    model, optimizer, tracker = loop
    read_in = []

    def wait(self):
        read_in.append(threading.current_thread().name)
        if self._numbers > 1:
            raise RuntimeError("the device is gone")
        return self._numbers.double().numpy()

    monkeypatch.setattr(scalar_log, "_sent", lambda value: HostCopy(value.clone()))
    monkeypatch.setattr(HostCopy, "wait", wait)
    with tracker(every=lambda step: False) as watch:
        for value in (1.0, 2.0, 0.5):
            train(model, optimizer, 1)
            watch.log(loss=torch.tensor(value))
        assert read_in == []
        assert columns(watch.run, "loss") == ([0, 2], [1.0, 0.5])
        assert set(read_in) == {"gyroscope-samples"}
        with pytest.warns(RuntimeWarning, match="loss of step 1 was not logged.*the device is gone"):
            train(model, optimizer, 1)


def test_values_travel_with_the_next_sample_or_after_a_second_and_wake_no_thread_before(loop, monkeypatch):
    model, optimizer, tracker = loop
    now = [100.0]
    monkeypatch.setattr(scalar_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with tracker(every=5) as watch:
        put = []
        worker = watch._recorder._worker
        real = worker.put
        monkeypatch.setattr(worker, "put", lambda item, **options: put.append(item) or real(item, **options))
        for _ in range(5):
            train(model, optimizer, 1)
            watch.log(loss=1.0)
        assert len(put) == 1  # the sample of step 0
        assert put[0] is not None
        now[0] += 1.5
        watch.log(loss=2.0)
        assert put[1:] == [None]
        watch.log(loss=3.0)
        assert len(put) == 2


def test_sinks_get_every_value_with_its_step_under_its_own_name(loop):
    model, optimizer, tracker = loop
    received = []
    with tracker(every=200, sinks=[lambda step, scalars: received.append((step, scalars))]) as watch:
        for step in range(150):  # more than a sink's queue of samples holds
            train(model, optimizer, 1)
            watch.log(loss=float(step))
    logged = [(step, scalars) for step, scalars in received if "loss" in scalars]
    assert logged == [(step, {"loss": float(step)}) for step in range(150)]


def test_a_resumed_run_replaces_what_it_logs_again(loop):
    model, optimizer, tracker = loop
    for options, factor in (({}, 1.0), ({"resume": True, "start": 2}, 10.0)):
        with tracker(**options) as watch:
            for _ in range(4 if not options else 3):
                train(model, optimizer, 1)
                watch.log(loss=factor)
    assert columns(open_run(watch.path), "loss") == ([0, 1, 2, 3, 4], [1.0, 1.0, 10.0, 10.0, 10.0])


def test_what_is_logged_after_the_end_is_stored_and_the_run_ends_as_before(loop):
    model, optimizer, tracker = loop
    with tracker() as watch:
        train(model, optimizer, 3)
        watch.log(loss=1.0)
    watch.log(eval_loss=torch.tensor(2.0))
    watch.log(eval_loss=3.0, accuracy=0.5)
    run = open_run(watch.path)
    assert columns(run, "loss") == ([2], [1.0])
    assert columns(run, "eval_loss") == ([2], [3.0])
    assert columns(run, "accuracy") == ([2], [0.5])
    assert (run.status, run.resumed_at) == ("finished", [])


@pytest.mark.parametrize("late", [0, 2])
def test_after_another_tracker_resumed_the_run_a_call_is_one_warning(loop, late):
    model, optimizer, tracker = loop
    first = tracker()
    train(model, optimizer, 2)
    first.close()
    for _ in range(late):
        first.log(eval_loss=3.0)
    with tracker(resume=True) as second:
        with pytest.warns(RuntimeWarning, match="log with that one"):
            first.log(loss=1.0)
        train(model, optimizer, 1)
        second.log(loss=2.0)
    assert columns(open_run(second.path), "loss") == ([2], [2.0])


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_program_keeps_what_was_flushed_and_one_that_ends_keeps_all(tmp_path):
    code = """
import os, signal, sys, torch, gyroscope as gyro
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracker = gyro.Tracker(model, optimizer, sys.argv[1])
for step in range(5):
    optimizer.step()
    tracker.log(loss=step)
if sys.argv[2] == "kill":
    tracker.run
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for end in ("kill", "exit"):
        ended = run_program(code, tmp_path, tmp_path / end, end)
        assert ended.code == (-signal.SIGKILL if end == "kill" else 0)
        assert columns(open_run(tmp_path / end), "loss") == ([0, 1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0, 4.0])


def test_a_process_that_does_not_write_does_nothing(loop, tmp_path, monkeypatch):
    model, optimizer, tracker = loop
    monkeypatch.setattr("gyroscope.measure.tracker.rank", lambda: 1)
    monkeypatch.setattr("gyroscope.measure._pipeline.measurement.rank", lambda: 1)
    with tracker() as watch:
        train(model, optimizer, 1)
        watch.log(loss=1.0, broken="not a number")
    assert list(tmp_path.iterdir()) == []


def test_values_survive_when_measuring_has_stopped(loop):
    model, optimizer, tracker = loop
    with tracker(every=1) as watch:
        train(model, optimizer, 1)
        watch._failures.stop(RuntimeError("broken"))
        with pytest.warns(RuntimeWarning, match="measuring stopped"):
            train(model, optimizer, 1)
        watch.log(loss=1.0)
    assert columns(open_run(watch.path), "loss") == ([1], [1.0])
