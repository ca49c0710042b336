"""Processes that die without warning, and a reader in another process that never stops asking."""

import os
import random
import signal
import sqlite3
import subprocess
import time

import numpy as np
import pytest

from gyroscope.store import RunError, open_run
from tests.store import make

pytestmark = pytest.mark.slow

LAYERS = 10

WRITE = """
import random, sys
from tests.store import make

first = int(sys.argv[2])
writer = make.writer(sys.argv[1], layers=10, resume=True)
rng = random.Random(first)
for step in range(first, first + 100_000):
    writer.put(make.sample(step, layers=10))
    if rng.random() < 0.2:
        assert writer.flush()
        print(step, flush=True)
"""


def killed_after(path, first, moment, wait):
    """Steps that a process said it had flushed before it was killed; `wait`: the moment counts from its first word."""
    command = make.python(WRITE, path, first)
    child = subprocess.Popen(command, cwd=make.ROOT, stdout=subprocess.PIPE, text=True)
    said = child.stdout.readline() if wait else ""
    time.sleep(moment)
    child.send_signal(signal.SIGKILL)
    said += child.communicate()[0]
    assert child.returncode == -signal.SIGKILL
    # The last line may be torn; a line that is whole was flushed before it was printed.
    return [int(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_twenty_kills_at_random_moments_lose_nothing_that_was_flushed(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "run"
    flushed = -1
    for life in range(20):
        wait = life % 4 != 3  # one in four dies while it starts
        said = killed_after(path, flushed + 1, rng.uniform(0, 0.2 if wait else 0.5), wait)
        flushed = max([flushed, *said])
        if flushed < 0:
            continue
        with open_run(path) as run:
            steps = run.steps
            assert np.array_equal(steps, np.arange(len(steps)))
            assert len(steps) > flushed
            for name in (run.layers[0], run.layers[-1]):
                assert np.array_equal(run.series(name, "lr"), steps)
    assert flushed > 20
    whole(path)
    with make.writer(path, layers=LAYERS, resume=True) as writer:
        writer.put(make.sample(flushed + 1, layers=LAYERS))
    with open_run(path) as run:
        assert run.status == "finished"
        assert flushed + 1 in run.steps
        last = [make.layer_sample(flushed + 1, i).statistics[1, 0] for i in range(LAYERS)]
        assert [run.series(name, "norm")[flushed + 1] for name in run.layers] == last


def whole(path):
    connection = sqlite3.connect(path / "run.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_process_that_dies_while_it_makes_the_run_leaves_a_place_where_a_run_can_begin(tmp_path):
    refusals = []
    for life in range(4):
        path = tmp_path / str(life)
        killed_after(path, 0, 0.16 + 0.06 * life, wait=False)
        try:
            open_run(path).close()
        except RunError as error:
            refusals.append(str(error))
        make.writer(path, resume=True).close()
        assert open_run(path).status == "finished"
    assert all("empty" in said or "There is no run" in said or "contains no run" in said for said in refusals)


POLL = """
import sys, time
from gyroscope.store import open_run

run = open_run(sys.argv[1])
polls = 0
print("ready", flush=True)
while run.status == "running":
    run.refresh()
    for layer in run.layers:
        assert run.series(layer, "lr").tolist() == list(range(run.total))
        run.histogram(layer, "norm")
    polls += 1
    time.sleep(0.05)
print(polls, run.total, flush=True)
"""


def latencies(writer, first, count):
    taken = []
    for step in range(first, first + count):
        sample = make.sample(step, layers=LAYERS)
        start = time.perf_counter()
        writer.put(sample)
        taken.append(time.perf_counter() - start)
        time.sleep(0.002)
    start = time.perf_counter()
    assert writer.flush()
    return np.array(taken), time.perf_counter() - start


def test_a_reader_that_polls_twenty_times_a_second_never_blocks_the_writer(tmp_path):
    count = 400
    with make.writer(tmp_path, layers=LAYERS) as writer:
        alone, _ = latencies(writer, 0, count)
        reader = subprocess.Popen(
            make.python(POLL, tmp_path), cwd=make.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert reader.stdout.readline() == "ready\n"
        watched, flush = latencies(writer, count, count)
    said, errors = reader.communicate(timeout=20)
    assert reader.returncode == 0, errors
    polls, total = map(int, said.split())
    assert polls > 5
    assert total == 2 * count
    assert np.median(watched) < 5 * np.median(alone) + 1e-4
    assert np.mean(watched > 0.01) < 0.02
    assert flush < 2
    assert open_run(tmp_path).notes == []
