"""What does measuring cost? Training with and without the tracker, interleaved in one run: medians and shares.

ResNet-20 on random 32×32 images at batch 128, and a GPT of 10M parameters: < 1 % at the default sampling, < 5 % at
every=1 with rows=64. Judged twice: by the tracker's own clock, the time for which its hooks held a step up; and by the
ratio of neighbouring turns with and without, to which a busy machine adds noise: that one may exceed the limit by what
turns without the tracker differ. Memory is what it keeps beside the model. Exits with 1 when a limit is missed.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro

SETTINGS = {"default": ({}, 0.01), "every=1, rows=64": ({"every": 1, "rows": 64}, 0.05)}


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
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x):  # noqa: D102
        short = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
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
    x, y = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return model, optimizer, lambda: cross_entropy(model(x), y)


class GPT(nn.Module):
    """A decoder of 6 layers, 384 wide: 10.6M parameters beside the embeddings."""

    def __init__(self, vocabulary=65, width=384, layers=6, context=128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):  # noqa: D102
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.blocks(self.tokens(x) + self.places.weight, mask, is_causal=True)
        return self.head(hidden)


def gpt():
    """The GPT, 16 sequences of 128 tokens."""
    model = GPT()
    x = torch.randint(65, (16, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    return model, optimizer, lambda: cross_entropy(model(x).flatten(0, 1), x.flatten())


def timed(optimizer, loss, steps):
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return time.perf_counter() - start


def measure(name, make, rounds, steps):
    """Two copies of the training, one tracked, in turns of some steps; what threads still do counts as tracking."""
    torch.manual_seed(0)
    model, *plain = make()
    size = sum(p.numel() for p in model.parameters())
    print(f"\n{name}: {size / 1e6:.2f}M parameters, {rounds} pairs of {steps} steps")
    timed(*plain, 2)
    failures = []
    for label, (options, limit) in SETTINGS.items():
        model, *watched = make()
        with tempfile.TemporaryDirectory() as folder, gyro.Tracker(model, watched[0], folder, **options) as tracker:
            timed(*watched, 10)  # the first sample makes the copy
            pairs = [turn(plain, watched, tracker, steps, number % 2) for number in range(rounds)]
            kept = sum(watch.copy.nbytes for watch in tracker._gauge._watches.values())
        failures += judge(f"{name}, {label}", pairs, steps, limit)
        print(f"    keeps {kept / 2**20:.1f} MiB beside {4 * size / 2**20:.1f} MiB of weights")
    return failures


def turn(plain, watched, tracker, steps, tracked_first):
    """Seconds without and with the tracker, and those that its hooks took by their own clock."""
    times, own = {}, tracker.seconds
    for tracked in (tracked_first, not tracked_first):
        start = time.perf_counter()
        timed(*(watched if tracked else plain), steps)
        if tracked:
            tracker._recorder.desk.flush()
        times[bool(tracked)] = time.perf_counter() - start
    return times[False], times[True], tracker.seconds - own


def judge(label, pairs, steps, limit):
    without, ratios = [pair[0] for pair in pairs], sorted(pair[1] / pair[0] - 1 for pair in pairs)
    base, ratio = statistics.median(without), statistics.median(ratios)
    own = statistics.median(pair[2] for pair in pairs)
    share, noise = own / base, statistics.median(abs(seconds / base - 1) for seconds in without)
    print(f"  {label}: step {1e3 * base / steps:.1f} ms; by its own clock {1e3 * own / steps:.2f} ms = {share:.2%},")
    print(f"    with against without {ratio:+.2%} (turns without differ by {noise:.2%}); limit {limit:.0%}")
    missed = [f"{label}: {share:.2%} by its own clock"] if share > limit else []
    return missed + ([f"{label}: {ratio:.2%} with against without"] if ratio > limit + noise else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--models", nargs="*", default=["resnet20", "gpt"])
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    failures = []
    for name in arguments.models:
        failures += measure(name, {"resnet20": resnet20, "gpt": gpt}[name], arguments.rounds, arguments.steps)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    for failure in failures:
        print(f"MISSED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
