"""Does the tracker stay cheap and flat over a million steps, and does such a run open at once?

Three questions, each with a limit:

- The share of a 110 ms step of nanoGPT (6 layers, 384 wide) that hooks take of the training thread at the default
  sampling: at most 1 %. Processor time of the thread, so that other work on the machine does not count.
- Memory of the process over a million steps of a tiny model, from step 100,000 on: flat, within 8 MiB.
- Seconds until a run of a million steps is open, with its last norm and its logged loss read: at most 2.

Exits with 1 when a limit is missed.
"""

import argparse
import resource
import sys
import tempfile
import time

import torch
from torch import nn
from tracker_overhead import GPT

import gyroscope as gyro

STEP = 0.110
MAX_SHARE = 0.01
MAX_GROWTH_MIB = 8.0
MAX_SECONDS = 2.0
# Of steps, as the default sampling has it after its dense start.
EVERY = 10


def share_of_step(samples):
    """Thread's seconds of hooks for a step that is sampled, and for one that is not."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    sampled, others, plain = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(model, optimizer, folder, every=EVERY) as tracker:
            for step in range(EVERY * samples):
                seconds = step_seconds(optimizer)
                (sampled if step % EVERY == 0 else others).append(seconds)
                if step % EVERY == 0:
                    tracker.flush()
        plain = [step_seconds(optimizer) for _ in range(EVERY * samples)]
    base = median(plain)
    return median(sampled[2:]) - base, median(others) - base


def step_seconds(optimizer):
    start = time.thread_time()
    optimizer.step()
    return time.thread_time() - start


def median(values):
    return sorted(values)[len(values) // 2]


class Nothing(torch.optim.Optimizer):
    """An optimizer whose step costs nothing, so that a million of them are the tracker's."""

    def step(self, closure=None):  # noqa: D102
        return None


def million_steps(folder, steps):
    """Peak memory after a tenth of the steps and after all, in MiB."""
    model = nn.Linear(8, 8, bias=False)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer = Nothing(model.parameters(), {"lr": 0.1, "weight_decay": 0.0})
    peaks = []
    with gyro.Tracker(model, optimizer, folder) as tracker:
        for step in range(steps):
            optimizer.step()
            tracker.log(loss=1.0 / (1 + step))
            if step + 1 in (steps // 10, steps):
                tracker.flush()
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return peaks


def opening(folder):
    start = time.perf_counter()
    run = gyro.store.open_run(folder)
    opened = time.perf_counter() - start
    run.series("weight", "norm")
    steps, _ = run.scalar("loss")
    return opened, time.perf_counter() - start, run.total, len(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=30)
    options = parser.parse_args()
    missed = []
    sampled, other = share_of_step(options.samples)
    share = (sampled + (EVERY - 1) * other) / EVERY / STEP
    print(f"hooks: {1e3 * sampled:.2f} ms in a sampled step, {1e6 * other:.0f} µs in another: {share:.2%} of {STEP} s")
    if share > MAX_SHARE:
        missed.append("hooks")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        before, after = million_steps(folder, options.steps)
        seconds = time.perf_counter() - start
        print(
            f"memory: {before:.0f} MiB after {options.steps // 10:,} steps, {after:.0f} MiB after {options.steps:,}",
            end="",
        )
        print(f" ({1e6 * seconds / options.steps:.0f} µs per step)")
        if after - before > MAX_GROWTH_MIB:
            missed.append("memory")
        opened, read, samples, logged = opening(folder)
        print(
            f"opening: {opened:.2f} s, with all norms and losses {read:.2f} s ({samples:,} samples, {logged:,} losses)"
        )
        if read > MAX_SECONDS:
            missed.append("opening")
    print("missed: " + ", ".join(missed) if missed else "within limits")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
