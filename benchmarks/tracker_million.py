"""Does the tracker stay cheap and flat over a million steps, and does such a run open at once?

Three questions, each with a limit:

- Hooks take at most 1 % of a step of nanoGPT on a CPU (its README's 4 layers of 128, batch 12), 110 ms, at the default
  sampling. It is the processor time of the training thread, so that other work on the machine does not count.
- Memory of the process is flat over the second half of a million steps, within 2 MiB.
- A run of a million steps with 100,000 samples and a million losses is open within 2 s, its loss and the line that the
  list of `watch` shows included.

Exits with 1 when a limit is missed.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from synthetic_runs import samples, writer
from torch import nn
from tracker_overhead import GPT

import gyroscope as gyro
from gyroscope.report.run_head import run_head
from gyroscope.store import Sample

STEP = 0.110
MAX_SHARE = 0.01
MAX_GROWTH_MIB = 2.0
MAX_SECONDS = 2.0
# Of steps, as the default sampling has it after its dense start.
EVERY = 10


def hook_seconds(count):
    """Thread's seconds of hooks in a step that is sampled, and in one that is not: medians."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(width=126, layers=4, context=64)  # 6 heads
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    sampled, others = [], []
    with tempfile.TemporaryDirectory() as folder, gyro.Tracker(model, optimizer, folder, every=2) as tracker:
        hooks = (tracker._pre, tracker._post)
        for hook in tracker._hooks:
            hook.remove()
        for step in range(2 * count):
            seconds = []
            # As torch calls them, but with a clock around each.
            for number, hook in enumerate(hooks):
                start = time.thread_time()
                hook(optimizer, (optimizer,), {})
                seconds.append(time.thread_time() - start)
                if number == 0:
                    optimizer.step()
            (others if step % 2 else sampled).append(sum(seconds))
            tracker.flush()
    return median(sampled[2:]), median(others)


def median(values):
    return sorted(values)[len(values) // 2]


class Nothing(torch.optim.Optimizer):
    """An optimizer whose step costs nothing, so that a million of them are the tracker's."""

    def step(self, closure=None):  # noqa: D102
        return None


def million_steps(steps):
    """Peak memory after each tenth of the steps, in MiB, and seconds per step."""
    model = nn.Linear(8, 8, bias=False)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer = Nothing(model.parameters(), {"lr": 0.1, "weight_decay": 0.0})
    peaks = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, gyro.Tracker(model, optimizer, folder) as tracker:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
            optimizer.step()
            tracker.log(loss=1.0 / (1 + step))
            if (step + 1) % (steps // 10) == 0:
                tracker.flush()
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return peaks, (time.perf_counter() - start) / steps


def long_run(folder, steps):
    """A run of so many steps, sampled at every tenth, in which the loss is logged at every step."""
    with writer(folder) as new:
        (first,) = samples(1)
        for number in range(steps // EVERY):
            new.put(Sample(EVERY * number, 1.7e9 + number, {0: first.layers[0]}))
            new.put_scalars(
                [(step, {"loss": 1.0 / (1 + step)}) for step in range(EVERY * number, EVERY * (number + 1))]
            )
            if number % 1000 == 0:
                new.flush()


def opening(folder):
    """Seconds until a run is open, and until its loss and its line in a list are read."""
    start = time.perf_counter()
    with gyro.store.open_run(folder, most=64) as run:
        opened = time.perf_counter() - start
        run_head(run)
        logged = len(run.scalar("loss")[0])
        return opened, time.perf_counter() - start, run.total, logged


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    missed = []
    sampled, other = hook_seconds(options.rounds)
    share = (sampled + (EVERY - 1) * other) / EVERY / STEP
    print(f"hooks: {1e3 * sampled:.2f} ms in a sampled step, {1e6 * other:.0f} µs in another: {share:.2%} of {STEP} s")
    if share > MAX_SHARE:
        missed.append("hooks")
    peaks, seconds = million_steps(options.steps)
    print(f"memory, MiB, after each tenth of {options.steps:,} steps: {', '.join(f'{peak:.1f}' for peak in peaks)}")
    print(f"  a step that costs nothing takes {1e6 * seconds:.0f} µs with hooks and a logged loss")
    if peaks[-1] - peaks[4] > MAX_GROWTH_MIB:
        missed.append("memory")
    with tempfile.TemporaryDirectory() as folder:
        long_run(Path(folder), options.steps)
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
        opened, read, total, logged = opening(folder)
    print(f"opening: {opened:.2f} s for {total:,} samples in {size:.0f} MiB, {read:.2f} s with {logged:,} losses")
    if read > MAX_SECONDS:
        missed.append("opening")
    print("missed: " + ", ".join(missed) if missed else "within limits")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
