"""Loops and machines that are not as expected: nothing false is stored, nothing hangs, nothing is lost silently."""

import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.measure import tracker as tracker_module
from gyroscope.optim._engine import compiled
from gyroscope.store import RunError, Writer, open_run
from tests.forked import run_program
from tests.measure.fakes import Turner, rows_only, train
from tests.measure.test_tracker import adamw, mlp

SCRIPT = """
import sys, torch, gyroscope as gyro
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
tracker = gyro.Tracker(model, optimizer, sys.argv[1], every=1)
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
steps(3)
"""


def two_layers(rows=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, rows, bias=False), nn.Linear(rows, 4, bias=False))


# Layers that change.


def test_a_weight_that_grows_in_place_is_a_new_layer_and_the_others_are_measured_as_before(tmp_path):
    model = two_layers()
    optimizer = Turner(model.parameters(), angle=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3)
        model[0].weight.data = torch.randn(9, 5)
        train(model, optimizer, 3)
    run = open_run(tmp_path)
    assert run.layers == ["0.weight", "1.weight", "0.weight@3"]
    assert (run.layer("0.weight").vectors, run.layer("0.weight@3").vectors) == (6, 9)
    np.testing.assert_allclose(run.series("1.weight", "angular_update"), 0.1, rtol=1e-4)
    np.testing.assert_allclose(run.series("0.weight", "angular_update"), [0.1] * 3 + [np.nan] * 3, rtol=1e-4)
    np.testing.assert_allclose(run.series("0.weight@3", "angular_update"), [np.nan] * 3 + [0.1] * 3, rtol=1e-4)
    assert any("another shape, [9, 5], from step 3 on" in note for note in run.notes)


def test_a_layer_replaced_by_one_of_another_shape_is_a_new_layer_and_returns_under_its_first_name(tmp_path):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def replace(rows):
        model[1] = nn.Linear(6, rows, bias=False)
        optimizer.param_groups[0]["params"] = list(model.parameters())

    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        for rows in (4, 7, 4):
            replace(rows)
            train(model, optimizer, 2)
    run = open_run(tmp_path)
    assert run.layers == ["0.weight", "1.weight", "1.weight@2"]
    measured = {layer: np.isfinite(run.series(layer, "norm")).tolist() for layer in run.layers}
    assert measured["0.weight"] == [True] * 6
    assert measured["1.weight"] == [True, True, False, False, True, True]
    assert measured["1.weight@2"] == [False, False, True, True, False, False]
    assert not any("stopped" in note for note in run.notes)


def test_a_name_that_utf8_cannot_hold_and_a_huge_number_in_the_configuration_leave_a_run_that_can_be_read(tmp_path):
    model = nn.Sequential()
    model.add_module("odd \ud800", nn.Linear(4, 3))
    optimizer = adamw(model)
    config = {"seed": 10**4300, "list": [1, -(10**5000)], "name \udcff": "\udcff"}
    with gyro.Tracker(model, optimizer, tmp_path, every=1, config=config, raw="."):
        train(model, optimizer, 2)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1]
    (layer,) = run.layers
    layer.encode()
    assert np.isfinite(run.series(layer, "norm")).all()
    assert run.config["user"].keys() >= {"seed", "list"}


# How programs end.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        ("sys.exit(1)", "finished", 1),
        ("raise SystemExit(1)", "finished", 1),
        ("tracker.close(); sys.exit(1)", "finished", 1),
        ("", "finished", 0),
    ],
)
def test_a_run_that_nobody_closed_is_finished_whatever_its_exit_code(end, status, code, tmp_path):
    ended = run_program(SCRIPT + end, tmp_path, tmp_path / "run")
    assert ended.code == code, ended.written
    run = open_run(tmp_path / "run")
    assert run.status == status
    assert len(run.steps) >= 3


@pytest.mark.parametrize(
    ("code", "status"), [(1, "failed"), ("out of data", "failed"), (0, "finished"), (None, "finished")]
)
def test_an_exit_within_the_context_is_the_end_of_the_run_with_its_code(code, status, tmp_path):
    def loop():
        model = mlp()
        with gyro.Tracker(model, adamw(model), tmp_path):
            sys.exit(code)

    with pytest.raises(SystemExit):
        loop()
    run = open_run(tmp_path)
    assert run.status == status
    assert run.notes == ([f"The program ended by sys.exit({code!r})."] if status == "failed" else [])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_can_diagnose_and_step_and_close_without_waiting_and_writes_nothing(tmp_path, monkeypatch):
    model = mlp()
    optimizer = adamw(model)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    train(model, optimizer, 2)
    tracker.run.close()
    stuck = threading.Event()
    put = Writer.put
    monkeypatch.setattr(Writer, "put", lambda self, sample: (stuck.wait(20), put(self, sample)))
    train(model, optimizer, 1)  # a sample is being processed while the process forks
    child = os.fork()
    if child == 0:
        done = 1
        try:
            torch.set_num_threads(1)
            tracker.diagnose()
            train(model, optimizer, 2)
            tracker.close()
            done = 0
        finally:
            os._exit(done)
    deadline = time.monotonic() + 20
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    stuck.set()
    tracker.close()
    assert ended, "the child waited for a thread that it does not have"
    assert os.waitstatus_to_exitcode(status) == 0
    assert open_run(tmp_path).steps.tolist() == [0, 1, 2]


# Samples that come too fast, or cost too much.


class SlowStore:
    """Makes storing a sample wait until it is `released`."""

    def __init__(self, monkeypatch):
        self.released = threading.Event()
        put = Writer.put

        def slow(writer, sample):
            assert self.released.wait(60)
            put(writer, sample)

        monkeypatch.setattr(Writer, "put", slow)


def test_samples_that_come_too_fast_are_left_out_evenly_and_the_run_says_how_many_and_when(tmp_path, monkeypatch):
    store = SlowStore(monkeypatch)
    model = mlp()
    optimizer = adamw(model)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    with pytest.warns(RuntimeWarning, match="samples come faster than they can be processed") as seen:
        train(model, optimizer, 12)
    assert len(seen) == 1
    store.released.set()
    tracker.run.close()
    train(model, optimizer, 12)
    tracker.close()
    run = open_run(tmp_path)
    gaps = np.diff(run.steps)
    assert 9 <= len(run.steps) < 24
    assert (gaps[:8] == 1).all()
    assert len(set(gaps[-2:])) == 1, "evenly spaced"
    missing = sorted(set(range(24)) - set(run.steps.tolist()))
    expected = f"{len(missing)} samples were left out between step {missing[0]} and step {missing[-1]}"
    assert any(expected in note for note in run.notes), run.notes


def test_what_waits_is_bounded_by_bytes_and_not_only_by_count(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.measure._pipeline.recorder.MAX_BYTES", 10_000, raising=False)
    store = SlowStore(monkeypatch)
    model = rows_only(30, 2)  # 17 sums of 8 bytes for each row
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    with pytest.warns(RuntimeWarning, match="samples come faster"):
        train(model, optimizer, 7)
    store.released.set()
    tracker.close()
    assert open_run(tmp_path).steps.tolist() == [0, 1]


def test_a_large_layer_is_summarised_in_parts_with_the_same_result(tmp_path, monkeypatch):
    def measured(path):
        model = rows_only(50, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        with gyro.Tracker(model, optimizer, path, every=1, raw="."):
            train(model, optimizer, 2)
        return open_run(path)

    whole = measured(tmp_path / "whole")
    monkeypatch.setattr("gyroscope.measure._pipeline.statistics.AT_ONCE", 120)  # two quantities at once
    parts = measured(tmp_path / "parts")
    for row in gyro.measure.QUANTITIES:
        name = row.name
        np.testing.assert_array_equal(whole.series("weight", name, "q25"), parts.series("weight", name, "q25"))
        if row.per_vector:
            np.testing.assert_array_equal(whole.raw("weight", name), parts.raw("weight", name))
            np.testing.assert_array_equal(whole.histogram("weight", name, 1), parts.histogram("weight", name, 1))
            assert whole.extremes("weight", name, 1) == parts.extremes("weight", name, 1)


def test_a_layer_that_joins_keeps_what_the_others_have_turned_since_their_last_sample(tmp_path):
    model = two_layers()
    optimizer = Turner(model[0].parameters(), angle=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": model[1].parameters()})
        train(model, optimizer, 2)
    turned = open_run(tmp_path).series("0.weight", "accumulated_angle")
    np.testing.assert_allclose(turned[1:], 0.1, rtol=1e-4)


# Several trackers.


def test_a_tracker_that_resumes_the_run_of_another_takes_it_over_and_nothing_is_lost(tmp_path):
    model = two_layers()
    optimizer = Turner(model.parameters(), angle=0.1)
    first = gyro.Tracker(model, optimizer, tmp_path, every=1)
    train(model, optimizer, 3)
    first.log(loss=1.0)
    second = gyro.Tracker(model, optimizer, tmp_path, every=1, resume=True, start=3)
    train(model, optimizer, 2)
    second.log(loss=2.0)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    first.close()
    second.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert [values.tolist() for values in run.scalar("loss")] == [[2, 4], [1.0, 2.0]]
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("start", "error"),
    [
        *[(start, ValueError) for start in (-1, 2**53 + 1, 2**63 - 3, np.int64(-1))],
        *[(start, TypeError) for start in (2.5, float("nan"), "10", np.float64(10))],
    ],
    ids=repr,
)
def test_a_first_step_that_no_run_can_store_is_refused_and_the_run_stays_as_it_is(start, error, tmp_path):
    model = two_layers()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3)
    before = (tmp_path / "run.sqlite").read_bytes()
    with pytest.raises(error, match=r"start=.* must .*first step"):
        gyro.Tracker(model, optimizer, tmp_path, every=1, resume=True, start=start)
    assert (tmp_path / "run.sqlite").read_bytes() == before


@pytest.mark.parametrize("start", [np.int64(10), torch.tensor(10), 2**53 - 3], ids=repr)
def test_a_run_goes_on_from_a_first_step_of_any_integer_type(start, tmp_path):
    model = two_layers()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, resume=True, start=start):
        train(model, optimizer, 3)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2, *range(int(start), int(start) + 3)]
    assert run.last_step == int(start) + 2


def test_an_error_while_a_tracker_is_made_surfaces_as_itself(tmp_path):
    model = two_layers()
    gyro.Tracker(model, Turner(model.parameters(), angle=0.1), tmp_path).close()
    wider = two_layers(rows=7)
    with pytest.raises(RunError, match=r"already has a layer '0\.weight' of shape"):
        gyro.Tracker(wider, Turner(wider.parameters(), angle=0.1), tmp_path, resume=True)


def test_the_inner_optimizer_of_a_wrapper_is_refused_with_the_remedy(tmp_path):
    model = two_layers()
    inner = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    wrapper = gyro.optim.Rotational(inner)
    with pytest.raises(ValueError, match=r"is the inner optimizer of a Rotational.*pass the Rotational instead"):
        gyro.Tracker(model, inner, tmp_path / "inner")
    with gyro.Tracker(model, wrapper, tmp_path / "wrapper", every=1) as tracker:
        train(model, wrapper, 2)
        assert np.isfinite(tracker.run.series("0.weight", "angular_update")).all()


def test_what_was_flushed_is_in_the_run_for_other_processes(tmp_path):
    model = two_layers()
    optimizer = Turner(model.parameters(), angle=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1) as tracker:
        for step in range(4):
            train(model, optimizer, 1)
            tracker.log(loss=float(step))
        tracker.flush()
        run = open_run(tmp_path)
        assert run.steps.tolist() == [0, 1, 2, 3]
        assert run.scalar("loss")[1].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_step_that_cannot_be_compiled_is_a_note_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "FALLBACKS", {})
    monkeypatch.setattr(tracker_module, "FALLBACKS", compiled.FALLBACKS)
    monkeypatch.setattr(compiled, "PROGRAMS", {})
    monkeypatch.setattr(compiled, "_by_inductor", lambda *arguments: 1 / 0)
    monkeypatch.setattr(compiled, "_by_torch_compile", lambda function: function)
    model = nn.Linear(8, 4)
    optimizer = gyro.optim.RotationalAdamW(model, compile=True)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    with gyro.Tracker(model, optimizer, tmp_path / "run", every=1), pytest.warns(UserWarning, match="compile: "):
        optimizer.step()
    (note,) = open_run(tmp_path / "run").notes
    assert note.startswith("compile: inductor of torch")
    assert "torch.compile is used instead" in note
