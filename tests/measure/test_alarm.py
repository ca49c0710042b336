"""The live alarm: a function is told of an incident while training goes on, and can neither slow nor stop it."""

import math
import threading
import time
import warnings

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.store import open_run
from tests.measure.fakes import train
from tests.measure.test_tracker import adamw, forward, mlp


def trained(path, on_incident, change, **options):
    """Forty steps on noise, a change, and ten more; the run and the weights."""
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, path, every=1, on_incident=on_incident, **options) as tracker:
        for number in range(10):
            if number == 8:
                change(model, optimizer)
            train(model, optimizer, 5, seed=number)
            tracker._recorder.flush()  # on a busy machine samples would be left out
    return gyro.store.open_run(tracker.path), [p.detach().clone() for p in model.parameters()]


def more_decay(model, optimizer):
    optimizer.param_groups[0]["weight_decay"] *= 100


def other_betas(model, optimizer):
    optimizer.param_groups[0]["betas"] = (0.9, 0.99)


@torch.no_grad()
def doubled(model, optimizer):
    model[0].weight.mul_(2)


@pytest.mark.parametrize(
    ("change", "words", "layers"),
    [
        (more_decay, "weight decay changed from 0.1 to 10", ("0.weight", "3.weight")),
        (other_betas, "β2 changed from 0.999 to 0.99", ("0.weight", "3.weight")),
        (doubled, "the weights of 0.weight were modified outside the optimizer", ("0.weight",)),
    ],
)
def test_the_function_is_told_what_a_diagnosis_says_later(change, words, layers, tmp_path):
    told = []
    run, _ = trained(tmp_path, told.append, change)
    assert [finding.kind for finding in told] == ["incident"]
    assert words in told[0].sentence
    assert told[0].layers[: len(layers)] == layers
    assert told[0].evidence["step"] == 40
    later = [finding for finding in run.diagnose() if finding.kind == "incident"]
    assert [finding.sentence for finding in later] == [finding.sentence for finding in told]


def scaled_steps(path, overflowing, steps=60):
    """Train under a GradScaler whose gradients are inf in some steps; the run."""
    model = mlp()
    optimizer = adamw(model, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gyro.Tracker(model, optimizer, path, every=5) as tracker:
        for step in range(steps):
            optimizer.zero_grad()
            loss = forward(model, step) * (math.inf if step in overflowing else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            tracker._recorder.flush()
    return open_run(path)


def test_steps_that_a_scaler_skipped_are_no_samples_and_are_counted(tmp_path):
    run = scaled_steps(tmp_path, overflowing={7, 20, 25, 26}, steps=40)
    counts = dict(zip(run.steps.tolist(), run.series("0.weight", "skipped_steps").tolist(), strict=True))
    assert counts == {0: 0, 5: 0, 10: 0, 15: 0, 30: 2, 35: 0}
    assert run.last_step == 39


def test_a_run_that_is_stuck_says_so(tmp_path):
    """Gradients that are not finite at any scale: no step is taken, and no sample comes."""
    run = scaled_steps(tmp_path, overflowing=range(20, 200), steps=130)
    assert run.steps[-1] < 20
    (note,) = [note for note in run.notes if "GradScaler" in note]
    assert note.startswith("A GradScaler has skipped 20 measured steps in a row, the last one step 115.")


def test_a_run_without_an_incident_calls_nobody(tmp_path):
    told = []
    trained(tmp_path, told.append, lambda model, optimizer: None)
    assert told == []


def test_a_function_that_fails_is_one_warning_and_training_is_the_same(tmp_path):
    def fails(finding):
        raise RuntimeError("no network")

    def twice(model, optimizer):
        more_decay(model, optimizer)
        other_betas(model, optimizer)

    with pytest.warns(RuntimeWarning, match="on_incident failed and is no longer called: RuntimeError: no network"):
        run, weights = trained(tmp_path / "fails", fails, twice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, same = trained(tmp_path / "none", None, twice)
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert len(run.steps) == 50
    assert sum("on_incident failed" in note for note in run.notes) == 1


def test_a_slow_function_does_not_hold_up_training(tmp_path):
    begun, free = threading.Event(), threading.Event()

    def waits(finding):
        begun.set()
        free.wait(10)

    def change(model, optimizer):
        more_decay(model, optimizer)
        model.released = threading.Timer(0.5, free.set)
        model.released.start()

    start = time.monotonic()
    run, _ = trained(tmp_path, waits, change)
    assert begun.is_set()
    assert len(run.steps) == 50
    assert time.monotonic() - start < 10


def test_the_highest_rate_between_samples_is_recorded(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=5) as tracker:
        for step in range(11):
            optimizer.param_groups[0]["lr"] = 1e-2 if step not in (7, 8) else 0.1
            train(model, optimizer, 1, seed=step)
        run = tracker.run
    np.testing.assert_allclose(run.series("0.weight", "highest_lr"), [1e-2, 1e-2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(run.series("0.weight", "lr"), 1e-2, rtol=1e-6)
    np.testing.assert_array_equal(run.series("0.weight", "lr_jump_step"), [np.nan, np.nan, 7])
    np.testing.assert_allclose(run.series("0.weight", "lr_before_jump"), [np.nan, np.nan, 1e-2], rtol=1e-6)
    assert run.series("0.weight", "beta2") == pytest.approx(0.999)


def test_a_weight_decay_that_jumps_between_samples_has_its_exact_step(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=5) as tracker:
        for step in range(61):
            optimizer.param_groups[0]["weight_decay"] = 0.1 if step < 53 else 10.0
            train(model, optimizer, 1, seed=step)
        found = [finding for finding in tracker.run.diagnose() if finding.mark == "weight decay"]
    assert [finding.evidence["step"] for finding in found] == [53]
    assert found[0].sentence.startswith("At step 53 weight decay changed from 0.1 to 10")


def test_a_run_that_was_resumed_says_at_which_step(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 5)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, resume=True) as tracker:
        train(model, optimizer, 5)
        assert tracker.run.resumed_at == [5]
