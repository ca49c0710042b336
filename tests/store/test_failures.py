"""A writer that fails does not disturb training: one warning, and what can still be stored is stored."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from gyroscope.store import RunError, open_run
from gyroscope.store import writer as writing
from gyroscope.store.database import NETWORK_FILESYSTEMS, filesystem
from tests.store import make

FULL = """
import resource, sys, time, warnings
from tests.store import make
from gyroscope.store import open_run

warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as said:
    writer = make.writer(sys.argv[1], layers=20)
    writer.put(make.sample(0, 20))
    assert writer.flush()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
    for step in range(1, 200):
        writer.put(make.sample(step, 20))
    assert not writer.flush()
    writer.put(make.sample(200, 20))
    if sys.argv[2] == "recovers":
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert writer.flush()
    before = len(said)
    writer.close()
print(before, said[0].message)
print([str(each.message) for each in said[before:]])
"""


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
@pytest.mark.parametrize("end", ["recovers", "stays full"])
def test_a_full_disk_is_one_warning_and_is_written_again_once_there_is_room(tmp_path, end):
    done = subprocess.run(make.python(FULL, tmp_path, end), cwd=make.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, at_the_end = done.stdout.splitlines()
    assert first.startswith(f"1 {tmp_path / 'run.sqlite'} cannot")
    assert first.endswith("Training goes on.")
    run = open_run(tmp_path)
    assert run.series("layer0", "lr")[0] == 0
    if end == "stays full":
        assert f" {201 - run.total} samples are lost." in at_the_end
    else:
        assert at_the_end == "[]"
    if end == "recovers":
        assert run.steps.tolist() == list(range(201))
        assert run.status == "finished"
        assert "Check the disk" in run.notes[0] or "disk is full" in run.notes[0]


def test_a_directory_that_disappears_is_one_warning(tmp_path):
    writer = make.writer(tmp_path / "gone")
    writer.put(make.sample(0))
    writer.flush()
    shutil.rmtree(tmp_path / "gone")
    writer.put(make.sample(1))
    with pytest.warns(RuntimeWarning, match="its directory was moved or deleted. Training goes on"):
        writer.flush()
    writer.put(make.sample(2))
    assert not writer.flush()  # a second warning would be an error here
    with pytest.warns(RuntimeWarning, match="its directory was moved or deleted. 2 samples are lost"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_never_writes_into_another_run_that_took_its_place(tmp_path):
    writer = make.writer(tmp_path / "run")
    writer.flush()
    (tmp_path / "run").rename(tmp_path / "old")
    make.run_at(tmp_path / "run", steps=1)
    writer.put(make.sample(77))
    with pytest.warns(RuntimeWarning, match="another file took its place"):
        writer.close()
    assert open_run(tmp_path / "run").steps.tolist() == [0]


def test_a_locked_database_is_one_warning_and_is_written_once_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.store.database.LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(writing, "RETRY", 0.05)
    writer = make.writer(tmp_path)
    writer.flush()
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer.put(make.sample(0))
    with pytest.warns(RuntimeWarning, match="is locked by another program"):
        writer.flush()
    writer.put(make.sample(1))
    assert not writer.flush()  # a second warning would be an error here
    other.execute("ROLLBACK")
    other.close()
    deadline = time.monotonic() + 5
    while not writer.flush() and time.monotonic() < deadline:
        pass
    writer.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1]
    assert "is locked by another program" in run.notes[0]


def test_a_full_queue_drops_samples_counts_them_and_hardly_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CAPACITY", 4 * make.SAMPLE_BYTES)
    writer = make.writer(tmp_path)
    writer.flush()
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for step in range(4):
        writer.put(make.sample(step))
    start = time.perf_counter()
    with pytest.warns(RuntimeWarning, match="written too slowly"):
        writer.put(make.sample(4))
    for step in range(5, 104):
        writer.put(make.sample(step))
    assert time.perf_counter() - start < 1
    other.execute("ROLLBACK")
    other.close()
    writer.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert run.notes == ["100 samples could not be stored."]


def test_a_hundred_layers_before_the_first_sample_do_not_fill_the_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CAPACITY", 4 * make.SAMPLE_BYTES)
    with make.writer(tmp_path, layers=100) as writer:
        writer.put(make.sample(0))
    assert open_run(tmp_path).total == 1


def test_a_sample_larger_than_the_queue_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CAPACITY", 4 * make.SAMPLE_BYTES)
    with make.writer(tmp_path, layers=20) as writer:
        writer.put(make.sample(0, layers=20))
    assert open_run(tmp_path).total == 1


def test_what_the_database_cannot_take_is_dropped_and_what_comes_later_is_stored(tmp_path):
    writer = make.writer(tmp_path)
    writer.flush()
    writer.put(make.Sample(2**70, 0.0, {0: make.layer_sample(0)}))
    with pytest.warns(RuntimeWarning, match="cannot take a sample: .*too large.* Training goes on"):
        writer.flush()
    writer.note("a lone surrogate \udc80")
    writer.put(make.sample(1))
    writer.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [1]
    assert run.notes[1:] == ["a lone surrogate \\udc80", "1 sample could not be stored."]


@pytest.mark.parametrize(
    "bad",
    [
        make.Sample(-1, 0.0, {0: make.layer_sample(0)}),
        make.Sample(2**53 + 1, 0.0, {0: make.layer_sample(0)}),
        make.Sample(2**63 - 1, 0.0, {0: make.layer_sample(0)}),
        make.Sample(2**63, 0.0, {0: make.layer_sample(0)}),
        make.Sample(1, np.inf, {0: make.layer_sample(0)}),
        make.Sample(1, np.nan, {0: make.layer_sample(0)}),
    ],
    ids=lambda bad: f"step {bad.step}, time {bad.time}",
)
def test_a_sample_that_no_reader_takes_is_left_out_and_the_others_can_be_read(tmp_path, bad):
    writer = make.writer(tmp_path)
    writer.put(make.sample(0))
    writer.put(bad)
    with pytest.warns(
        RuntimeWarning, match="cannot take a sample: .*(of the wrong type or size|NOT NULL constraint|too large)"
    ):
        writer.flush()
    writer.put(make.sample(2))
    writer.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 2]
    assert run.notes[1:] == ["1 sample could not be stored."]


@pytest.mark.parametrize(("last_step", "stored"), [(np.int64(5), 5), (-7, 2), (2**60, 2)])
def test_no_last_step_makes_a_run_unreadable(tmp_path, last_step, stored):
    writer = make.writer(tmp_path)
    for step in range(3):
        writer.put(make.sample(step))
    if stored == 2:
        with pytest.warns(RuntimeWarning, match="cannot take a row: .* of the wrong type or size"):
            writer.close(last_step=last_step)
    else:
        writer.close(last_step=last_step)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2]
    assert run.last_step == stored


def test_a_layer_of_a_parameter_group_that_no_reader_takes_is_refused_at_once(tmp_path):
    with make.writer(tmp_path) as writer:
        writer.put(make.sample(0))
        with pytest.raises(RunError, match=r"parameter group 10001.*at most 10,000"):
            writer.add_layer(make.layer("another", group=10_001))
    assert open_run(tmp_path).layers == ["layer0"]


def test_without_a_thread_everything_is_stored_at_the_end(tmp_path, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = make.writer(tmp_path)
    with pytest.warns(RuntimeWarning, match="in the background: can't start new thread"):
        writer.put(make.sample(0))
    writer.close()
    assert open_run(tmp_path).steps.tolist() == [0]


def test_a_closed_writer_takes_nothing_and_says_nothing(tmp_path):
    writer = make.writer(tmp_path)
    writer.close()
    writer.put(make.sample(0))
    writer.note("late")
    writer.close("failed")
    assert not writer.flush()
    run = open_run(tmp_path)
    assert (run.total, run.notes, run.status) == (0, [], "finished")


def test_where_no_log_can_be_kept_a_rollback_journal_is_used_and_the_run_says_so(tmp_path):
    (tmp_path / "run.sqlite-shm").mkdir()  # no file can be made there, as on a filesystem without shared memory
    with pytest.warns(RuntimeWarning, match="rollback journal instead of a write-ahead log"):
        writer = make.writer(tmp_path)
    writer.put(make.sample(0))
    assert writer.flush()
    with open_run(tmp_path) as run:
        assert run.steps.tolist() == [0]
        writer.put(make.sample(1))
        assert writer.flush()
        assert run.refresh() == 1
        assert "rollback journal" in run.notes[0]
    writer.close()


def test_a_network_filesystem_is_recognised_and_gets_no_log(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nhost:/home /net/my\\040home nfs4 rw 0 0\ntmpfs /net/my\\040home/tmp tmpfs rw\n"
    )
    for place, kind in [("/net/my home/x", "nfs4"), ("/net/my homes", "ext4"), ("/net/my home/tmp/a", "tmpfs")]:
        assert filesystem(type(tmp_path)(place), mounts) == kind
    assert filesystem(tmp_path, tmp_path / "none") is None
    monkeypatch.setattr("gyroscope.store.database.filesystem", lambda _: min(NETWORK_FILESYSTEMS))
    with pytest.warns(RuntimeWarning, match=r"network filesystem \(9p\)"):
        writer = make.writer(tmp_path / "run")
    writer.put(make.sample(0))
    writer.flush()
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["run.sqlite"]
    writer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_writes_nothing_and_leaves_the_run_as_it_is(tmp_path):
    writer = make.writer(tmp_path)
    writer.put(make.sample(0))
    child = os.fork()
    if child == 0:
        try:
            writer.put(make.sample(1))
            writer.note("from the fork")
            writer.add_layer(make.layer("from the fork"))
            writer.flush()
            writer._at_exit()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.put(make.sample(2))
    assert writer.flush()
    run = open_run(tmp_path)
    assert (run.steps.tolist(), run.notes, run.layers, run.status) == ([0, 2], [], ["layer0"], "running")
    writer.close()


EXIT = """
import os, sys
from tests.store import make
writer = make.writer(sys.argv[1])
if os.fork() == 0:
    sys.exit()  # runs everything that runs at exit, in the fork too
os.wait()
for step in range(5):
    writer.put(make.sample(step))
{}
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("end", "status"), [("", "finished"), ("sys.exit(3)", "finished"), ("1 / 0", "failed"), ("open('/none')", "failed")]
)
def test_a_program_that_never_closes_its_writer_loses_nothing(tmp_path, end, status):
    subprocess.run(make.python(EXIT.format(end), tmp_path), cwd=make.ROOT, capture_output=True)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert run.status == status


def test_no_thread_is_left_after_close_and_none_is_started_for_nothing(tmp_path):
    before = threading.active_count()
    writer = make.writer(tmp_path, layers=0)
    assert threading.active_count() == before
    writer.note("something")
    assert threading.active_count() == before + 1
    writer.close()
    assert threading.active_count() == before


def test_handing_over_a_sample_of_a_hundred_layers_takes_well_under_a_millisecond(tmp_path):
    taken = []
    with make.writer(tmp_path, layers=100) as writer:
        for step in range(30):
            sample = make.sample(step, layers=100)
            start = time.perf_counter()
            writer.put(sample)
            taken.append(time.perf_counter() - start)
    assert np.median(taken) < 5e-4


def test_close_waits_for_a_database_that_is_locked_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.store.database.LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(writing, "RETRY", 0.05)
    writer = make.writer(tmp_path)
    assert writer.flush()
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    for step in range(50):
        writer.put(make.sample(step))
    free = threading.Timer(1.0, other.close)
    free.start()
    with pytest.warns(RuntimeWarning, match="is locked by another program"):
        writer.close()
    free.join()
    run = open_run(tmp_path)
    assert run.steps.tolist() == list(range(50))
    assert run.status == "finished"


def test_a_database_that_stays_locked_until_the_end_is_a_warning_with_the_number_of_lost_samples(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.store.database.LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(writing, "RETRY", 0.05)
    monkeypatch.setattr(writing, "MAX_WAIT_SECONDS", 0.6)
    writer = make.writer(tmp_path)
    assert writer.flush()
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for step in range(50):
        writer.put(make.sample(step))
    with pytest.warns(RuntimeWarning, match=r"locked by another program.* 50 samples are lost"):
        writer.close()
    other.close()


def test_the_queue_is_bounded_by_bytes_so_that_large_samples_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CAPACITY", 100_000)
    writer = make.writer(tmp_path)
    assert writer.flush()
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    large = replace(make.layer_sample(0), raw=np.zeros((2, 5_000), np.float32))  # 40,000 bytes
    for step in range(2):
        writer.put(make.Sample(step, 0.0, {0: large}))
    with pytest.warns(RuntimeWarning, match="written too slowly"):
        writer.put(make.Sample(2, 0.0, {0: large}))
    other.close()
    writer.close()
    assert open_run(tmp_path).total == 2


@pytest.mark.parametrize(("code", "status"), [(None, "finished"), (0, "finished"), (1, "failed"), ("sorry", "failed")])
def test_sys_exit_within_the_block_of_a_writer_is_a_failure_unless_its_code_is_zero(tmp_path, code, status):
    with pytest.raises(SystemExit), make.writer(tmp_path):
        sys.exit(code)
    assert open_run(tmp_path).status == status


FORK = """
import os, sys
from tests.store import make
writer = make.writer(sys.argv[1])
writer.put(make.sample(0))
assert writer.flush()  # the connection is open now
if os.fork() == 0:
    sys.exit()
os.wait()
writer.put(make.sample(1))
assert writer.flush()
writer.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_ends_while_the_database_is_open_takes_nothing_from_it(tmp_path):
    done = subprocess.run(make.python(FORK, tmp_path), cwd=make.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path)
    assert run.series("layer0", "lr").tolist() == [0, 1]
    assert run.status == "finished"
