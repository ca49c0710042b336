"""Sinks get a few numbers per sample, and can neither slow nor stop training."""

import threading
import time

import numpy as np
import pytest

import gyroscope as gyro
from gyroscope.measure import sinks
from gyroscope.store import open_run
from tests.measure.test_tracker import adamw, mlp, train


def tracked(path, *outlets, steps=5, **options):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, path, every=1, sinks=outlets, **options):
        train(model, optimizer, steps)
    return open_run(path)


def test_a_function_is_told_at_most_twenty_numbers_for_each_sample(tmp_path):
    told = {}
    run = tracked(tmp_path, lambda step, scalars: told.update({step: scalars}))
    assert list(told) == run.steps.tolist()
    assert 10 < len(told[4]) <= 20
    layers = [run.series(layer, "angular_update", "rms")[4] for layer in run.layers]
    assert told[4]["gyroscope/angular_update"] == pytest.approx(np.median(layers))
    assert told[4]["gyroscope/angular_update/most"] == pytest.approx(max(layers))
    assert told[4]["gyroscope/lr"] == pytest.approx(1e-2)
    assert all(isinstance(value, float) and np.isfinite(value) for value in told[4].values())


def test_layers_are_chosen_by_a_regular_expression(tmp_path):
    told = {}
    run = tracked(tmp_path, lambda step, scalars: told.update({step: scalars}), sink_layers="^0")
    per_layer = {name: value for name, value in told[4].items() if name.endswith("weight")}
    assert {name.removeprefix("gyroscope/").partition("/")[2] for name in per_layer} == {"0.weight"}
    assert per_layer["gyroscope/norm/0.weight"] == pytest.approx(run.series("0.weight", "norm", "rms")[4])


def test_a_sink_that_fails_is_left_out_with_a_warning_and_the_others_go_on(tmp_path):
    told = []

    def broken(step, scalars):
        raise OSError("the network is gone")

    with pytest.warns(RuntimeWarning, match="the sink broken failed.*the network is gone") as seen:
        run = tracked(tmp_path, broken, lambda step, scalars: told.append(step))
    assert len(seen) == 1
    assert told == [0, 1, 2, 3, 4]
    assert run.steps.tolist() == told
    assert any("the network is gone" in note for note in run.notes)


def test_a_slow_sink_does_not_slow_training_and_is_left_behind_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "PATIENCE", 0.05)
    monkeypatch.setattr(sinks, "QUEUE", 2)
    stuck = threading.Event()

    def slow(step, scalars):
        stuck.wait(20)

    start = time.perf_counter()
    with pytest.warns(RuntimeWarning, match="the sink slow") as seen:
        run = tracked(tmp_path, slow, steps=20)
    assert time.perf_counter() - start < 10
    stuck.set()
    assert any("missed 17 samples" in str(one.message) for one in seen)
    assert len(run.steps) == 20


def test_a_sink_is_closed_with_the_run(tmp_path):
    closed = []

    class Sink:
        def __call__(self, step, scalars):
            pass

        def close(self):
            closed.append(True)

    tracked(tmp_path, Sink())
    assert closed == [True]
