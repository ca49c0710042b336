"""What does a live page cost the server, and does training slow down while ten viewers watch it?

python benchmarks/live_server.py [directory]    the runs are made there
"""

import http.client
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_runs import samples, write_run, writer

from gyroscope.live.feed import Feed
from gyroscope.store import open_run

# Shares are what the server takes of a core with 10 viewers: of 50 runs, one of which grows each second, and of one
# that grows at every step of a training. The update is in seconds of processor time.
LIMITS = {
    "live update": 0.020,
    "share of a core": 0.25,
    "step, watched ÷ alone": 1.1,
    "share while training": 0.25,
}


def update_cost(folder: Path, viewers: int = 10, count: int = 30) -> float:
    """Median processor time of an update of a run with 1,000 samples that ten viewers see."""
    path = folder / f"live{os.getpid()}"
    costs = []
    with writer(path) as new:
        ready = list(samples(900 + count))
        for number, sample in enumerate(ready):
            new.put(sample)
            if number < 900 and number % 20 == 19:
                new.flush()
            if number < 900:
                continue
            new.flush()
            if number == 900:
                feed = Feed("id", "live", path)
                at, _ = feed.whole()
                feed.since(at)
            time.sleep(0.6)  # a reading is at most this old
            start = time.thread_time()
            for _ in range(viewers):
                update = feed.since(at)
            costs.append(time.thread_time() - start)
            assert update is not None
            at = update[0]
    return statistics.median(costs)


def server_share(folder: Path, runs: int = 50, duration: float = 20.0) -> float:
    """Share of one core that the server takes: many runs, viewers of the list and of a run that grows each second."""
    watched = folder / f"watched{os.getpid()}"
    for i in range(runs - 1):
        write_run(watched / f"run{i:02}", 3)
    with writer(watched / "now") as new:
        ready = samples(int(duration) + 60)
        for _ in range(40):
            new.put(next(ready))
        new.flush()
        with watching(watched, "now") as server:
            before = processor(server)
            begun = time.monotonic()
            while time.monotonic() - begun < duration:
                new.put(next(ready))
                time.sleep(1)
            return (processor(server) - before) / (time.monotonic() - begun)


def training_while_watched(folder: Path, rounds: int = 8, window: float = 2.0) -> tuple[float, float]:
    """Median step of a training while it is watched over that while the server is stopped, and the server's share.

    By turns, and the median over the turns: a machine that others use as well changes from minute to minute.
    """
    path = folder / f"trained{os.getpid()}" / "now"
    process = multiprocessing.get_context("spawn")
    stop = process.Event()
    training = process.Process(target=train, args=(path, stop))
    training.start()
    while not (path / "run.sqlite").exists():
        time.sleep(0.2)
    spans = []
    shares = []
    with watching(path.parent, "now") as server:
        for _ in range(rounds):
            before = processor(server)
            watched = wait(window)
            shares.append((processor(server) - before) / window)
            os.kill(server, signal.SIGSTOP)
            spans.append((watched, wait(window)))
            os.kill(server, signal.SIGCONT)
    stop.set()
    training.join()
    with open_run(path) as run:
        times = run.times
    steps = [[np.median(np.diff(times[(times > start) & (times < end)])) for start, end in pair] for pair in spans]
    return statistics.median(float(watched / alone) for watched, alone in steps), statistics.mean(shares)


def wait(seconds: float) -> tuple[float, float]:
    """Wait so long; times of the start and of the end."""
    start = time.time()
    time.sleep(seconds)
    return start, time.time()


def train(path: Path, stop: Event) -> None:
    """A small network that trains until `stop` is set, measured at every step; runs in a process of its own."""
    import torch
    from torch import nn

    import gyroscope as gyro

    torch.set_num_threads(1)
    blocks = [part for _ in range(8) for part in (nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.1), lr=1e-3)
    with gyro.Tracker(model, optimizer, path, every=1):
        while not stop.is_set():
            x = torch.randn(256, 256)
            loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@contextmanager
def watching(folder: Path, name: str, viewers: int = 10) -> Iterator[int]:
    """`gyroscope watch` over a folder, with viewers who all have loaded one run; its process id."""
    command = [sys.executable, "-m", "gyroscope.cli", "watch", str(folder), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split(" at ")[1].split()[0]
    id = next(run["id"] for run in get_json(address + "runs") if run["name"] == name)
    ready = threading.Barrier(viewers + 1)
    for _ in range(viewers):
        threading.Thread(target=view, args=(address, id, ready), daemon=True).start()
    ready.wait(60)
    try:
        yield server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


def view(address: str, id: str, ready: threading.Barrier) -> None:
    """What a browser does: the whole run, then events, and now and then the list; all anew after a reset."""
    connected = False
    with suppress(OSError, http.client.HTTPException):
        while True:
            at = get_json(f"{address}data?run={id}")["at"][id]
            events = urllib.request.urlopen(f"{address}events?run={id}&at={'.'.join(map(str, at))}", timeout=60)
            if not connected:
                ready.wait()
            connected = True
            listed = time.monotonic()
            for line in events:
                if b'"reset":true' in line:
                    break
                if time.monotonic() - listed > 3:
                    listed = time.monotonic()
                    get_json(address + "runs")


def get_json(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


def processor(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="gyroscope-live-"))
    folder.mkdir(parents=True, exist_ok=True)
    ratio, share = training_while_watched(folder)
    measured = {
        "live update": update_cost(folder),
        "share of a core": server_share(folder),
        "step, watched ÷ alone": ratio,
        "share while training": share,
    }
    for name, value in measured.items():
        print(f"{name:22} {value:8.3f}   limit {LIMITS[name]:g}")
    return int(any(value > LIMITS[name] for name, value in measured.items()))


if __name__ == "__main__":
    sys.exit(main())
