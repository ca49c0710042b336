"""What does measuring cost? Training with and without the tracker, interleaved in one run: medians and shares.

ResNet-20 on random 32×32 images at batch 128, and a GPT of 10M parameters: < 1 % at the default sampling, < 5 % at
every=1 with rows=64. Judged twice: by the time for which hooks held training up, together with the share of all cores
that the tracker's threads took, as if none had been idle; and by the ratio of the same training's steps with and
without, to which a busy machine adds noise: that one may exceed the limit by what rounds differ. Memory is what it
keeps beside the model. Processor time of the whole process is compared too, because other programs hardly change it.

Small models take less time for a step than the tracker for a sample. There the default interval widens, after a dense
start and an allowance, until hooks take 1 %: whole runs of some thousand steps may take 1 % and half a second longer.
Exits with 1 when a limit is missed. `--record` writes what large networks take to
benchmarks/records/tracker_overhead.json.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import pairwise

import torch
from records import write_record
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro

# Label -> options of the tracker, and the share of training time that it may take. Steps are counted from 20, after the
# dense start of the default sampling: among thousands of steps its 20 samples are few, among ten they would be all.
SETTINGS = {"default": ({"start": 20}, 0.01), "every=1, rows=64": ({"every": 1, "rows": 64}, 0.05)}


class Block(nn.Module):
    """Two convolutions with BatchNorm around a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.stride = stride
        self.added_channels = outputs - inputs

    def forward(self, x):  # noqa: D102
        short = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added_channels))
        return torch.relu(self.body(x) + short)


def resnet20():
    """ResNet-20, batch 128 of random images."""
    widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *(Block(*width) for width in widths),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    x = torch.randn(128, 3, 32, 32)
    y = torch.randint(10, (128,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return model, optimizer, lambda: cross_entropy(model(x), y)


class GPT(nn.Module):
    """A decoder, by default of 6 layers, 384 wide: 10.6M parameters beside the embeddings."""

    def __init__(self, layers=6, width=384, context=128, vocabulary=65):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):  # noqa: D102
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.blocks(self.tokens(x) + self.places.weight, mask, is_causal=True)
        return self.head(hidden)


def gpt(layers=6, width=384, sequences=16, context=128):
    """A GPT, by default with 16 sequences of 128 tokens."""
    model = GPT(layers, width, context)
    x = torch.randint(65, (sequences, context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    return model, optimizer, lambda: cross_entropy(model(x).flatten(0, 1), x.flatten())


def fully_connected(inputs, width, layers):
    """Linear layers with ReLU in between, batch 32 of random numbers."""
    widths = [inputs, *[width] * (layers - 1), 10]
    linear = [nn.Linear(*pair) for pair in pairwise(widths)]
    model = nn.Sequential(linear[0], *(part for later in linear[1:] for part in (nn.ReLU(), later)))
    x = torch.randn(32, inputs)
    y = torch.randint(10, (32,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    return model, optimizer, lambda: cross_entropy(model(x), y)


LARGE = {"resnet20": resnet20, "gpt": gpt}
SMALL = {
    "2 layers": partial(fully_connected, 32, 32, 2),
    "40 layers": partial(fully_connected, 32, 32, 40),
    "MLP": partial(fully_connected, 784, 256, 3),
}
# Layers, width, sequences and context: steps of a few, some ten and some fifty milliseconds.
WHOLE = {
    "GPT 2 × 64": partial(gpt, 2, 64, 8, 32),
    "GPT 2 × 128": partial(gpt, 2, 128, 8, 32),
    "GPT 4 × 192": partial(gpt, 4, 192, 6, 64),
}
# Share of the processor time of training that the tracker's threads may take, from a step of so many seconds on.
THREADS_LIMIT = 0.02
LIMITED_FROM = 0.05
# Seconds that a whole run of a small model may take longer, beside the share of its time.
SMALL_LIMIT = 0.5


def measure_small(name, make, rounds, steps):
    """Whole runs at the default sampling, with the tracker and without in turns: what the start costs counts."""
    runs = []
    for number in range(rounds):
        with_first = number % 2
        plain = 0.0 if with_first else seconds_of(make, steps)[0]
        tracked, hooks, interval, samples = seconds_of(make, steps, tracked=True)
        runs.append((plain or seconds_of(make, steps)[0], tracked, hooks))
    base, hooks = (statistics.median(run[place] for run in runs) for place in (0, 2))
    longer = [tracked - plain for plain, tracked, _ in runs]
    noise = statistics.median(abs(seconds - statistics.median(longer)) for seconds in longer)
    limit = SETTINGS["default"][1] * base + SMALL_LIMIT
    print(f"\n{name}: {rounds} runs of {steps} steps each way; step {1e3 * base / steps:.2f} ms")
    print(
        f"  default: hooks {hooks:.2f} s = {hooks / base:.1%} ({samples} samples, at the end every {interval} steps),"
    )
    print(f"    with against without {statistics.median(longer):+.2f} s (runs differ by {noise:.2f} s);", end=" ")
    print(f"limit {SETTINGS['default'][1]:.0%} and {SMALL_LIMIT:g} s, here {limit:.2f} s")
    missed = [f"{name}: {hooks:.2f} s by hooks"] if hooks > limit else []
    late = statistics.median(longer) > limit + noise
    return missed + ([f"{name}: {statistics.median(longer):.2f} s with against without"] if late else [])


def measure_whole(name, make, rounds, steps):
    """Processor time of whole runs at the default sampling, with the tracker and without in turns."""
    runs = []
    for number in range(rounds):
        turns = (False, True) if number % 2 else (True, False)
        by_turn = {tracked: processor_of(make, steps, tracked) for tracked in turns}
        (plain, _, _), (tracked, threads, samples) = by_turn[False], by_turn[True]
        runs.append((plain, tracked / plain - 1, threads / plain))
    base, total, threads = (statistics.median(run[place] for run in runs) for place in range(3))
    print(f"\n{name}: {rounds} runs of {steps} steps each way; step {1e3 * base / steps:.1f} ms of processor time")
    print(f"  default: {total:+.1%}, of which threads {threads:.1%} ({samples} samples)")
    shares = {"seconds_per_step": base / steps, "processor": total, "threads": threads, "samples": samples}
    limited = base / steps >= LIMITED_FROM and threads > THREADS_LIMIT
    missed = [f"{name}: {threads:.1%} by threads, limit {THREADS_LIMIT:.0%}"] if limited else []
    return missed, {"network": name, "rounds": rounds, "steps": steps, **shares}


def processor_of(make, steps, tracked):
    """Processor seconds of one run, of these the tracker's threads', and the number of samples."""
    torch.manual_seed(0)
    step(*make()[1:])  # what torch prepares once
    model, *training = make()
    start = time.process_time()
    if not tracked:
        for _ in range(steps):
            step(*training)
        return time.process_time() - start, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(model, training[0], folder) as tracker:
            for _ in range(steps):
                step(*training)
        threads = sum(worker.seconds for worker in tracker._recorder.workers)
        return time.process_time() - start, threads, tracker.samples


def seconds_of(make, steps, tracked=False):
    """Of one run: its seconds, those of the hooks, the interval at its end, and how many samples were taken."""
    torch.manual_seed(0)
    model, *training = make()
    step(*training)
    if not tracked:
        return sum(step(*training) for _ in range(steps)), 0.0, None, 0
    with tempfile.TemporaryDirectory() as folder, gyro.Tracker(model, training[0], folder) as tracker:
        seconds = sum(step(*training) for _ in range(steps))
        return seconds, tracker.seconds, tracker._sampling.n, tracker.samples


def step(optimizer, loss):
    start = time.perf_counter()
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    return time.perf_counter() - start


def measure(name, make, rounds, steps, settings):
    """One training, now with the tracker and now without: limits that were missed, and what was measured."""
    torch.manual_seed(0)
    model, *training = make()
    size = sum(p.numel() for p in model.parameters())
    print(f"\n{name}: {size / 1e6:.2f}M parameters, {rounds} rounds of {steps} steps each way")
    failures = []
    measured = []
    for label in settings:
        options, limit = SETTINGS[label]
        step(*training)
        found = [turns(model, training, options, steps, number % 2) for number in range(rounds)]
        missed, shares = judge(f"{name}, {label}", found, steps, limit)
        failures += missed
        measured.append({"network": name, "setting": label, "rounds": rounds, "steps": steps, **shares})
        print(f"    keeps {found[0][3] / 2**20:.1f} MiB beside {4 * size / 2**20:.1f} MiB of weights")
    return failures, measured


def turns(model, training, options, steps, tracked_first):
    """Seconds without and with the tracker, its own, bytes that it keeps, and processor seconds of both."""
    plain, plain_processor = (0.0, 0.0) if tracked_first else plain_turn(training, steps)
    with tempfile.TemporaryDirectory() as folder, gyro.Tracker(model, training[0], folder, **options) as tracker:
        step(*training)  # the first sample makes the copy
        tracker._recorder.flush()
        own = taken(tracker)
        processor = time.process_time()
        watched = sum(step(*training) for _ in range(steps))
        start = time.perf_counter()
        tracker._recorder.flush()  # what its threads have left to do counts as well
        watched += time.perf_counter() - start
        processor = time.process_time() - processor
        own = taken(tracker) - own
        kept = sum(layer.copy.nbytes for layer in tracker._measurement.layers.values())
    if tracked_first:
        plain, plain_processor = plain_turn(training, steps)
    return plain, watched, own, kept, plain_processor, processor


def plain_turn(training, steps):
    """Seconds and processor seconds of some steps without the tracker."""
    start = time.process_time()
    seconds = sum(step(*training) for _ in range(steps))
    return seconds, time.process_time() - start


def taken(tracker):
    """Seconds for which hooks held training up, and the tracker's threads' processor time as a share of all cores."""
    threads = [thread.ident for thread in threading.enumerate() if thread.name.startswith("gyroscope-")]
    cores = torch.get_num_threads()
    return tracker.seconds + sum(time.clock_gettime(time.pthread_getcpuclockid(one)) for one in threads) / cores


def judge(label, found, steps, limit):
    base, own = (statistics.median(one[place] for one in found) for place in (0, 2))
    ratios = [one[1] / one[0] - 1 for one in found]
    share = own / base
    ratio = statistics.median(ratios)
    noise = statistics.median(abs(one - ratio) for one in ratios)
    print(f"  {label}: step {1e3 * base / steps:.1f} ms; hooks and threads {1e3 * own / steps:.2f} ms = {share:.2%},")
    print(f"    with against without {ratio:+.2%} (rounds differ by {noise:.2%}); limit {limit:.0%}")
    processor = [tracked / plain - 1 for *_, plain, tracked in found]
    print(f"    processor time {statistics.median(processor):+.2%}")
    shares = {"share": share, "ratio": ratio, "rounds_differ_by": noise, "processor": statistics.median(processor)}
    missed = [f"{label}: {share:.2%} by hooks and threads"] if share > limit else []
    missed += [f"{label}: {ratio:.2%} with against without"] if ratio > limit + noise else []
    return missed, {"seconds_per_step": base / steps, **shares}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--small-steps", type=int, default=3000)
    parser.add_argument("--whole-steps", type=int, default=400)
    parser.add_argument("--models", nargs="*", default=[*LARGE, *SMALL, *WHOLE])
    parser.add_argument("--settings", nargs="*", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--record", action="store_true", help="write records to benchmarks/records")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    failures = []
    measured = []
    whole = []
    for name in arguments.models:
        if name in LARGE:
            missed, shares = measure(name, LARGE[name], arguments.rounds, arguments.steps, arguments.settings)
            failures += missed
            measured += shares
        elif name in WHOLE:
            missed, shares_of_run = measure_whole(name, WHOLE[name], arguments.rounds, arguments.whole_steps)
            failures += missed
            whole.append(shares_of_run)
        else:
            failures += measure_small(name, SMALL[name], arguments.rounds, arguments.small_steps)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    for record, networks in (("tracker_overhead", measured), ("tracker_processor", whole)):
        if arguments.record and networks:
            write_record(record, {"networks": networks})
    for failure in failures:
        print(f"MISSED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
