"""What is written comes back, also while it is being written."""

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from gyroscope.store import BINS, STATISTICS, RunError, Sample, Writer, follower, open_run
from gyroscope.store.session import STALE
from tests.store import make


def test_every_statistic_of_every_sample_comes_back(tmp_path):
    run = open_run(make.run_at(tmp_path, steps=4, layers=3))
    assert run.layers == ["layer0", "layer1", "layer2"]
    assert run.steps.tolist() == [0, 1, 2, 3]
    for index, name in enumerate(run.layers):
        written = np.stack([make.layer_sample(step, index).statistics for step in range(4)])
        for q, quantity in enumerate(["angular_update", "norm"]):
            for s, stat in enumerate(STATISTICS):
                assert np.array_equal(run.series(name, quantity, stat), written[:, q, s].astype(np.float64))


def test_a_quantity_per_layer_is_the_same_whatever_the_statistic_and_nan_stays_nan(tmp_path):
    run = open_run(make.run_at(tmp_path))
    for stat in STATISTICS:
        assert run.series("layer0", "lr", stat).tolist() == [0, 1, 2]
    assert np.isnan(run.series("layer0", "weight_decay")).all()


def test_layers_and_quantities_come_back_as_they_were_described(tmp_path):
    described = make.layer("odd", shape=(2, 3, 4), granularity="group", axis=1, rows=(0, 5, 7), rule=None)
    with make.writer(tmp_path, layers=0) as writer:
        writer.add_layer(described)
    run = open_run(tmp_path)
    assert run.layer("odd") == described
    assert list(run.quantities.values()) == make.QUANTITIES


def test_a_layer_that_comes_later_is_nan_before(tmp_path):
    with make.writer(tmp_path) as writer:
        writer.put(make.sample(0))
        late = writer.add_layer(make.layer("late"))
        writer.put(Sample(10, time.time(), {late: make.layer_sample(10, late)}))
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 10]
    assert np.isnan(run.series("late", "norm")).tolist() == [True, False]
    assert np.isnan(run.series("layer0", "norm")).tolist() == [False, True]


def test_a_layer_that_is_added_twice_keeps_its_index(tmp_path):
    with make.writer(tmp_path, layers=2) as writer:
        assert writer.add_layer(make.layer("layer1", rule="another", group=3)) == 1


def test_histograms_come_back_and_merge_over_steps_layers_and_runs(tmp_path):
    runs = [open_run(make.run_at(tmp_path / name, steps=3, layers=2)) for name in "ab"]
    merged = sum(run.histogram(name, "norm", step) for run in runs for name in run.layers for step in run.steps)
    everything = [make.values(step, index)[1] for step in range(3) for index in range(2)]
    assert np.array_equal(merged, 2 * make.count_bins(everything))
    assert np.array_equal(runs[0].histogram("layer1", "norm"), make.count_bins(make.values(2, 1)[1]))


def test_extremes_come_back_and_are_none_where_nothing_was_measured(tmp_path):
    with make.writer(tmp_path, layers=2) as writer:
        writer.put(make.sample(0, layers=1))
    run = open_run(tmp_path)
    assert run.extremes("layer0", "norm") == (0, make.VECTORS - 1)
    assert run.extremes("layer1", "norm") == (-1, -1)
    assert run.histogram("layer1", "norm", step=0).tolist() == [0] * BINS


def test_the_last_histogram_is_that_of_the_last_sample_with_the_layer(tmp_path):
    with make.writer(tmp_path, layers=2) as writer:
        writer.put(make.sample(0, layers=2))
        writer.put(make.sample(1, layers=1))
    assert np.array_equal(open_run(tmp_path).histogram("layer1", "norm"), make.count_bins(make.values(0, 1)[1]))


def test_raw_vectors_come_back_for_the_layers_that_kept_them(tmp_path):
    with make.writer(tmp_path, layers=2) as writer:
        writer.put(Sample(0, 0.0, {0: make.layer_sample(0, 0, raw=True), 1: make.layer_sample(0, 1)}))
        writer.put(Sample(1, 0.0, {1: make.layer_sample(1, 1)}))
        writer.put(Sample(2, 0.0, {0: make.layer_sample(2, 0, raw=True)}))
    run = open_run(tmp_path)
    raw = run.raw("layer0", "norm")
    assert np.array_equal(raw[[0, 2]], [make.values(0)[1], make.values(2)[1]])
    assert np.isnan(raw[1]).all()
    with pytest.raises(ValueError, match="'layer1' were not kept"):
        run.raw("layer1", "norm")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda run: run.series("layr0", "norm"), "no layer 'layr0'.*did you mean 'layer0'"),
        (lambda run: run.series("layer0", "nrm"), "no quantity 'nrm'.*did you mean 'norm'"),
        (lambda run: run.series("layer0", "norm", "median"), "no statistic 'median'.*q50"),
        (lambda run: run.histogram("layer0", "lr"), "'lr' is one number per layer"),
        (lambda run: run.histogram("layer0", "norm", step=99), "no sample of step 99.*nearest is 2"),
        (lambda run: run.thinned(0), "limit=0 must be"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(tmp_path, ask, says):
    run = open_run(make.run_at(tmp_path))
    with pytest.raises(ValueError, match=says):
        ask(run)


def test_a_reader_follows_a_run_that_is_being_written(tmp_path):
    with make.writer(tmp_path) as writer:
        writer.flush()
        run = open_run(tmp_path)
        assert run.status == "running"
        assert run.series("layer0", "norm").size == 0
        for step in range(5):
            writer.put(make.sample(step))
            assert writer.flush()
            assert run.refresh() == 1
            assert run.refresh() == 0
            assert run.series("layer0", "lr").tolist() == list(range(step + 1))
    run.refresh()
    assert run.status == "finished"


def test_samples_reach_the_file_within_a_second_without_a_flush(tmp_path):
    with make.writer(tmp_path) as writer:
        writer.put(make.sample(0))
        writer.flush()
        run = open_run(tmp_path)
        writer.put(make.sample(1))
        deadline = time.monotonic() + 5
        while run.refresh() == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert run.steps.tolist() == [0, 1]


def test_a_resumed_run_goes_on_and_a_step_measured_again_replaces_the_old(tmp_path):
    make.run_at(tmp_path, steps=6)
    with open_run(tmp_path) as run:
        assert run.series("layer0", "lr").tolist() == [0, 1, 2, 3, 4, 5]
        with make.writer(tmp_path, resume=True, config={"try": 2}) as writer:
            for step in (3, 4, 7):
                again = make.layer_sample(10 * step)
                writer.put(Sample(step, 0.0, {0: again}))
            writer.flush()
            assert run.refresh() == 3
        for one in (run, open_run(tmp_path)):
            assert one.steps.tolist() == [0, 1, 2, 3, 4, 5, 7]
            assert one.series("layer0", "lr").tolist() == [0, 1, 2, 30, 40, 5, 70]
            assert np.array_equal(one.histogram("layer0", "norm", 3), make.count_bins(make.values(30)[1]))
            assert one.config["try"] == 2
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    for table in ("measurement", "distribution"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (7,)
    connection.close()


def test_the_last_step_measured_again_is_seen_by_a_reader_that_knows_it(tmp_path):
    make.run_at(tmp_path, steps=2)
    run = open_run(tmp_path)
    with make.writer(tmp_path, resume=True) as writer:
        writer.put(Sample(1, 0.0, {0: make.layer_sample(50)}))
    assert run.refresh() == 1
    assert run.series("layer0", "lr").tolist() == [0, 50]


@pytest.mark.parametrize(("most", "stride"), [(100, 1), (50, 2), (13, 8), (12, 16), (1, 128)])
def test_a_thinned_run_reads_every_so_manyth_sample_and_says_so(tmp_path, most, stride):
    run = open_run(make.run_at(tmp_path, steps=100)).thinned(most)
    assert (run.stride, run.total) == (stride, 100)
    assert run.steps.tolist() == list(range(0, 100, stride))
    assert run.series("layer0", "lr").tolist() == list(range(0, 100, stride))


def test_a_thinned_run_thins_what_it_has_read_as_the_run_grows(tmp_path):
    with make.writer(tmp_path) as writer:
        writer.flush()
        run = open_run(tmp_path, limit=8)
        for step in range(40):
            writer.put(make.sample(step))
            writer.flush()
            run.refresh()
            assert run.series("layer0", "lr").tolist() == run.steps.tolist() == list(range(0, step + 1, run.stride))
            assert len(run.steps) <= 8


@pytest.mark.parametrize("rows", [1, 6, 2**14], ids=["one sample at a time", "three", "all"])
def test_every_sample_is_read_whatever_the_stride_also_of_a_resumed_run(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "PART_ROWS", rows)
    make.run_at(tmp_path, steps=10, layers=2)
    with make.writer(tmp_path, layers=2, resume=True) as writer:
        for step in (3, 4, 12):  # the ids of steps 5 to 9 stand between those of 4 and 12
            writer.put(make.sample(step, layers=1))
    series = [("norm", "rms"), ("lr", "mean"), ("angular_update", "q50")]
    with open_run(tmp_path) as whole, open_run(tmp_path, limit=3) as thinned:
        parts = list(thinned.every_sample(series))
        steps = np.concatenate([steps for steps, _ in parts])
        values = np.concatenate([values for _, values in parts])
        np.testing.assert_array_equal(steps, whole.steps)
        for number, (quantity, stat) in enumerate(series):
            for place, layer in enumerate(whole.layers):
                np.testing.assert_array_equal(values[:, number, place], whole.series(layer, quantity, stat))
        assert np.isnan(values[[3, 4, 10], :, 1]).all(), "the second layer was not measured again"
        assert thinned.stride == 4, "what was read is not kept"


def test_the_configuration_comes_back_with_versions_and_whatever_json_lacks(tmp_path):
    class Broken:
        def __repr__(self):
            raise RuntimeError

    circular = {}
    circular["self"] = circular
    config = {"lr": np.float32(0.5), "betas": (0.9, 0.99), "seed": np.int64(7), "inf": float("inf"), "nan": np.nan}
    odd = {"type": int, "path": tmp_path, 3: None, "broken": Broken(), "circular": circular, "text": "\udc80ü<script>"}
    make.writer(tmp_path, config={**config, "user": odd}).close()
    found = open_run(tmp_path).config
    assert (found["lr"], found["betas"], found["seed"], found["inf"]) == (0.5, [0.9, 0.99], 7, float("inf"))
    assert np.isnan(found["nan"])
    assert found["user"]["type"] == "<class 'int'>"
    assert found["user"]["path"] == str(tmp_path)
    assert found["user"]["3"] is None
    assert found["user"]["broken"] == "<Broken>"
    assert found["user"]["text"] == "\\udc80ü<script>"
    assert found["versions"]["numpy"] == np.__version__
    assert set(found["versions"]) == {"python", "numpy", "gyroscope"} | ({"torch"} & set(sys.modules))
    assert json.dumps(found)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_of_the_current_directory_is_kept_and_none_outside_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make.writer(tmp_path / "a").close()
    assert open_run(tmp_path / "a").config["commit"] is None
    who = ["-c", "user.name=a", "-c", "user.email=b"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    make.writer(tmp_path / "b").close()
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert open_run(tmp_path / "b").config["commit"] == head.strip()


def test_notes_are_kept_once_and_in_order(tmp_path):
    with make.writer(tmp_path) as writer:
        for text in ("second thoughts", "first", "second thoughts"):
            writer.note(text)
    assert open_run(tmp_path).notes == ["second thoughts", "first"]


def test_a_run_without_a_sign_of_life_has_stopped(tmp_path, monkeypatch):
    with make.writer(tmp_path) as writer:
        writer.flush()
        run = open_run(tmp_path)
        now = time.time()
        monkeypatch.setattr("gyroscope.store.reader.time.time", lambda: now + STALE + 1)
        assert run.status == "stopped"


def test_the_heart_beats_when_no_sample_comes(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.store.writer.HEARTBEAT", 0.05)
    with make.writer(tmp_path) as writer:
        writer.flush()
        run = open_run(tmp_path)
        first = run.heartbeat
        deadline = time.monotonic() + 5
        while run.heartbeat == first and time.monotonic() < deadline:
            time.sleep(0.02)
            run.refresh()
        assert run.heartbeat > first


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
def test_the_run_says_how_it_ended(tmp_path, status):
    make.writer(tmp_path).close(status)
    assert open_run(tmp_path).status == status


def test_an_exception_leaves_a_failed_run_with_all_its_samples(tmp_path):
    def train():
        with make.writer(tmp_path) as writer:
            writer.put(make.sample(0))
            raise KeyError

    with pytest.raises(KeyError):
        train()
    run = open_run(tmp_path)
    assert run.status == "failed"
    assert run.steps.tolist() == [0]


def test_a_writer_without_samples_leaves_a_run_without_samples(tmp_path):
    Writer(tmp_path, quantities=make.QUANTITIES, config={}).close()
    run = open_run(tmp_path)
    assert (run.status, run.layers, run.steps.size, run.total) == ("finished", [], 0, 0)


@pytest.mark.parametrize(
    "name", ["a b", "what?", "50%", "a#b", "<script>alert(1)</script>", "ünï☃", "%41", "a&mode=rw"]
)
def test_odd_characters_in_paths_and_layers_do_no_harm(tmp_path, name):
    path = tmp_path / name.replace("/", "_")
    with make.writer(path, layers=0) as writer:
        writer.put(Sample(0, 0.0, {writer.add_layer(make.layer(name)): make.layer_sample(0)}))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    run = open_run(path)
    assert run.layers == [name]
    assert run.series(name, "lr").tolist() == [0]
    assert open_run(str(path / "run.sqlite")).layers == [name]


def test_two_threads_write_and_two_read_at_the_same_time(tmp_path):
    wrong = []
    with make.writer(tmp_path) as writer:
        writer.flush()
        run = open_run(tmp_path)

        def write(first):
            for step in range(first, 200, 2):
                writer.put(make.sample(step))

        def read():
            while run.total < 200 and not wrong:
                run.refresh()
                series = run.series("layer0", "lr").tolist()
                if series != sorted(set(series) & set(range(200))):
                    wrong.append(series)

        threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert not wrong
    run.refresh()
    assert run.series("layer0", "lr").tolist() == list(range(200))


def test_a_closed_run_says_so(tmp_path):
    with open_run(make.run_at(tmp_path)) as run:
        pass
    run.close()
    with pytest.raises(RunError, match="closed"):
        run.refresh()


def test_nothing_is_written_by_reading(tmp_path):
    make.run_at(tmp_path)
    before = (tmp_path / "run.sqlite").read_bytes()
    with open_run(tmp_path) as run:
        run.series("layer0", "norm")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            run._source.connection.execute("DELETE FROM note")
    assert (tmp_path / "run.sqlite").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.sqlite"]


def test_a_run_can_be_diagnosed_and_a_long_one_by_a_part_of_its_samples(tmp_path, monkeypatch):
    run = open_run(make.run_at(tmp_path, steps=20))
    assert str(run.diagnose())
    monkeypatch.setattr("gyroscope.advice.diagnose", lambda record: str(record.steps.tolist()))
    assert str(run.diagnose()) == str(list(range(20)))
    monkeypatch.setattr("gyroscope.store.reader.MAX_DIAGNOSED_SAMPLES", 10)
    assert str(run.diagnose()) == str(list(range(0, 20, 2)))
