"""How long does a page take, what does a live update cost the server, and does training notice that it is watched?

python benchmarks/report.py [directory]    the runs are made there, once: 100 layers, 1,000 and 20,000 samples, 2 GB
"""

import http.client
import json
import multiprocessing
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from gyroscope.live.feed import At, Feed
from gyroscope.render.gather_runs import gather
from gyroscope.render.run_page import page
from gyroscope.store import BINS, STATISTICS, Layer, LayerSample, Quantity, Sample, Writer, open_run
from gyroscope.store.schema import LAYER_BITS

LAYERS, VECTORS, FAN_IN = 100, 256, 576
SHORT, LONG = 1_000, 20_000
LIMITS = {
    "page, 1,000 samples": 5.0,
    "page in megabytes": 6.0,
    "page, 20,000 samples": 10.0,
    "live update": 0.020,
    "share of a core": 0.25,
    "step, watched ÷ alone": 1.1,
    "share while training": 0.25,
}
"""Seconds, unless named otherwise; shares are what the server takes of a core with 10 viewers: of 50 runs, one of which
grows each second, and of one that grows at every step of a training."""
PER_VECTOR = (
    *("angular_update", "norm", "update_norm", "radial_update", "tangential_update", "unit_grad_norm"),
    *("grad_weight_cosine", "grad_momentum_cosine", "lambda_u", "lambda_e", "scaled_grad_norm", "smd_h"),
    *("effective_lr", "perpendicular_update", "max_update", "accumulated_angle", "kappa"),
)
PER_LAYER = {
    "predicted_angular_update": 3e-3,
    "predicted_norm": 1.0,
    "predicted_timescale": 1e4,
    "forecast_angular_update": 3e-3,
    "forecast_norm": 1.0,
    "lr": 1e-3,
    "weight_decay": 0.1,
    "dead_vectors": 0.0,
    "frozen_entries": 0.0,
    "entries": float(VECTORS * FAN_IN),
}
RULE = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999]}


def writer(path: Path) -> Writer:
    quantities = [Quantity(name, "", "", "") for name in PER_VECTOR]
    quantities += [Quantity(name, "", "", "", per_vector=False) for name in PER_LAYER]
    new = Writer(path, quantities=quantities, config={"groups": [{"optimizer": "AdamW", "rule": RULE}]})
    for i in range(LAYERS):
        name = f"blocks.{i // 4}.part{i % 4}.weight"
        new.add_layer(Layer(name, (VECTORS, FAN_IN), "neuron", 0, 1, VECTORS, FAN_IN, 0, None, None))
    return new


def samples(count: int) -> Iterator[Sample]:
    """Noise around what is predicted: no two numbers alike, so that nothing compresses by luck."""
    rng = np.random.default_rng(0)
    typical = np.array([3e-3 if "angular" in name else 1.0 for name in PER_VECTOR])[:, None]
    places = np.linspace(-0.1, 0.1, len(STATISTICS))
    histograms = np.zeros((len(PER_VECTOR), BINS), np.uint32)
    histograms[:, 94:99] = [9, 60, 120, 60, 7]
    extremes = np.tile(np.array([3, 200], np.int32), (len(PER_VECTOR), 1))
    level = np.fromiter(PER_LAYER.values(), np.float32)
    for step in range(count):
        layers = {}
        for i in range(LAYERS):
            noise = 0.05 * rng.standard_normal((len(PER_VECTOR), 1)) + 0.01 * rng.standard_normal(len(places))
            statistics = (typical * np.exp(places + noise)).astype(np.float32)
            wobble = np.ones(len(level), np.float32)
            wobble[3:5] += 0.001 * rng.standard_normal(2)
            layers[i] = LayerSample(statistics, level * wobble, histograms, extremes)
        yield Sample(10 * step, time.time(), layers)


def make(path: Path, count: int) -> Path:
    if path.exists():
        return path
    with writer(path) as new:
        for number, sample in enumerate(samples(count)):
            new.put(sample)
            if number % 20 == 19:
                new.flush()
    return path


def lengthen(source: Path, path: Path, times: int) -> Path:
    """The same run many times over; layers change places each time, so that no layer's numbers come twice."""
    if path.exists():
        return path
    path.mkdir()
    with closing(sqlite3.connect(source / "run.sqlite")) as old, closing(sqlite3.connect(path / "run.sqlite")) as new:
        old.backup(new)
        ids, steps = new.execute("SELECT max(id), max(step) + 10 FROM sample").fetchone()
        for i in range(1, times):
            new.execute(
                "INSERT INTO sample SELECT id + ?, step + ?, time FROM sample WHERE id <= ?", (i * ids, i * steps, ids)
            )
            key = f"((key >> {LAYER_BITS}) + ?) << {LAYER_BITS} | ((key & {(1 << LAYER_BITS) - 1}) + ?) % {LAYERS}"
            for table, columns in (("measurement", "numbers"), ("distribution", "histograms, extremes")):
                new.execute(
                    f"INSERT INTO {table} SELECT {key}, {columns} FROM {table} WHERE key < ?",
                    (i * ids, 7 * i, (ids + 1) << LAYER_BITS),
                )
            new.commit()
    return path


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def updates(folder: Path, viewers: int = 10, count: int = 30) -> float:
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
                found = feed.since(at)
            costs.append(time.thread_time() - start)
            assert found is not None
            at = found[0] if isinstance(found[0], At) else at
    return statistics.median(costs)


def crowd(folder: Path, runs: int = 50, duration: float = 20.0) -> float:
    """Share of one core that the server takes: many runs, viewers of the list and of a run that grows each second."""
    watched = folder / f"watched{os.getpid()}"
    for i in range(runs - 1):
        make_small(watched / f"run{i:02}")
    with writer(watched / "now") as new:
        ready = samples(int(duration) + 60)
        for _ in range(40):
            new.put(next(ready))
        new.flush()
        with watching(watched, "now") as server:
            before, begun = processor(server), time.monotonic()
            while time.monotonic() - begun < duration:
                new.put(next(ready))
                time.sleep(1)
            return (processor(server) - before) / (time.monotonic() - begun)


def company(folder: Path, rounds: int = 8, window: float = 2.0) -> tuple[float, float]:
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
    spans, shares = [], []
    with watching(path.parent, "now") as server:
        for _ in range(rounds):
            before = processor(server)
            watched = span(window)
            shares.append((processor(server) - before) / window)
            os.kill(server, signal.SIGSTOP)
            spans.append((watched, span(window)))
            os.kill(server, signal.SIGCONT)
    stop.set()
    training.join()
    with open_run(path) as run:
        times = run.times
    steps = [[np.median(np.diff(times[(times > start) & (times < end)])) for start, end in pair] for pair in spans]
    return statistics.median(float(watched / alone) for watched, alone in steps), statistics.mean(shares)


def span(seconds: float) -> tuple[float, float]:
    """Wait; from when to when."""
    start = time.time()
    time.sleep(seconds)
    return start, time.time()


def train(path: Path, stop: Event) -> None:
    """A small network that trains until told to stop, measured at every step; runs in a process of its own."""
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
    """`gyroscope watch` over a folder, with viewers who all have the whole of one run by now; its process id."""
    command = [sys.executable, "-m", "gyroscope.cli", "watch", str(folder), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split(" at ")[1].split()[0]
    id = next(one["id"] for one in ask(address + "runs") if one["name"] == name)
    here = threading.Barrier(viewers + 1)
    for _ in range(viewers):
        threading.Thread(target=view, args=(address, id, here), daemon=True).start()
    here.wait(60)
    try:
        yield server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


def view(address: str, id: str, here: threading.Barrier) -> None:
    """What a browser does: the whole run, then events, and now and then the list; all anew where it is told to."""
    came = False
    with suppress(OSError, http.client.HTTPException):
        while True:
            at = ask(f"{address}data?run={id}")["at"][id]
            events = urllib.request.urlopen(f"{address}events?run={id}&at={'.'.join(map(str, at))}", timeout=60)
            if not came:
                here.wait()
            came, asked = True, time.monotonic()
            for line in events:
                if b'"reset":true' in line:
                    break
                if time.monotonic() - asked > 3:
                    asked = time.monotonic()
                    ask(address + "runs")


def ask(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


def processor(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_small(path: Path) -> None:
    with writer(path) as new:
        for sample in samples(3):
            new.put(sample)


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="gyroscope-report-"))
    folder.mkdir(parents=True, exist_ok=True)
    short = make(folder / "short", SHORT)
    long = lengthen(short, folder / "long", LONG // SHORT)
    found = {
        "page, 1,000 samples": statistics.median(seconds(lambda: page(gather([short]))) for _ in range(5)),
        "page in megabytes": len(page(gather([short])).encode()) / 1e6,
        "page, 20,000 samples": statistics.median(seconds(lambda: page(gather([long]))) for _ in range(3)),
        "live update": updates(folder),
        "share of a core": crowd(folder),
    }
    found["step, watched ÷ alone"], found["share while training"] = company(folder)
    for name, value in found.items():
        print(f"{name:22} {value:8.3f}   limit {LIMITS[name]:g}")
    return int(any(value > LIMITS[name] for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
