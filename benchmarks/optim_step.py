"""How long does a step take? Medians and ratios to torch's fused AdamW, interleaved in one run.

Three sets of shapes: a GPT of 13.8M parameters, a ResNet-50, 200 tiny layers. A table at the end has the ratios beside
the goals of GOALS. Exits with 1 when a ratio of LIMITS is missed, a step marked compiled compiled nothing, or a
schedule made it compile again. Less than 5 minutes on two quiet cores.
"""

import argparse
import random
import resource
import statistics
import sys
import time

import torch
from torch import nn

from gyroscope.optim import (
    SGDMRT,
    AdamSRT,
    KAdam,
    Lion,
    Rotational,
    RotationalAdamW,
    RotationalLion,
    RotationalSGD,
)
from gyroscope.optim._engine.compiled import PROGRAMS

LIMITS = {
    ("gpt", "RotationalAdamW compiled"): 2.0,
    ("gpt", "RotationalAdamW eager"): 5.0,
    ("gpt", "Rotational(fused) compiled"): 3.0,
    # Twice the memory traffic of their own state, where fused AdamW reads w, g, m, v and writes w, m, v.
    ("gpt", "AdamSRT compiled"): 2 * 5 / 7,
    ("gpt", "SGDMRT compiled"): 2 * 5 / 7,
    ("gpt", "KAdam(k=2) compiled"): 2 * 11 / 7,
}

# What we aim for, on quiet cores. "Rotational(fused)" is the wrapper.
GOALS = {
    ("gpt", "RotationalAdamW compiled"): 1.25,
    ("resnet50", "RotationalAdamW compiled"): 1.25,
    ("gpt", "RotationalAdamW eager"): 2.5,
    ("resnet50", "RotationalAdamW eager"): 2.5,
    ("gpt", "Rotational(fused) compiled"): 1.7,
    ("resnet50", "Rotational(fused) compiled"): 1.7,
    ("tiny", "RotationalAdamW eager"): 2.5,
}


def gpt(layers=4, width=512, vocabulary=2048, context=256):
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (3 * width,), (4 * width,)]
    return [(vocabulary, width), (context, width)] + layers * (block + 6 * [(width,)]) + 2 * [(width,)]


def resnet50():
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            convolutions += [(4 * width, channels, 1, 1)] if block == 0 else []
            shapes += [shape for conv in convolutions for shape in (conv, conv[:1], conv[:1])]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def tiny():
    return 200 * [(16, 16), (16,)]


def optimizers(shapes):
    """Name -> optimizer on its own copy of the weights."""

    def parameters():
        generator = torch.Generator().manual_seed(0)
        made = [nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in shapes]
        for p in made:
            p.grad = 1e-3 * torch.randn(p.shape, generator=generator)
        return made

    def fused(parameters):
        return torch.optim.AdamW(parameters, weight_decay=0.1, fused=True)

    return {
        "torch fused AdamW": torch.optim.AdamW(parameters(), fused=True),
        "torch foreach AdamW": torch.optim.AdamW(parameters(), foreach=True),
        "RotationalAdamW compiled": RotationalAdamW(parameters(), compile=True),
        "RotationalAdamW eager": RotationalAdamW(parameters()),
        "Rotational(fused) compiled": Rotational(fused(parameters()), compile=True),
        "Rotational(fused) eager": Rotational(fused(parameters())),
        "RotationalSGD compiled": RotationalSGD(parameters(), lr=0.1, compile=True),
        "RotationalLion compiled": RotationalLion(parameters(), compile=True),
        "AdamSRT compiled": AdamSRT(parameters(), compile=True),
        "SGDMRT compiled": SGDMRT(parameters(), lr=0.1, compile=True),
        "KAdam(k=2) compiled": KAdam(parameters(), compile=True),
        "Lion eager": Lion(parameters()),
    }


def median_times(steps, repeats):
    """Seconds per step of each, interleaved so that whatever else the machine does falls on all alike.

    In another order each time: what a step leaves in caches and page tables falls on the next one. With one thread it
    is the thread's own time, which other processes lengthen less.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = {name: [] for name in steps}
    order = random.Random(0)
    for _ in range(repeats):
        for name, step in order.sample(list(steps.items()), len(steps)):
            start = clock()
            step()
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def programs():
    return len(PROGRAMS)


def measure(name, shapes, repeats, ratios):
    """Print the times of one set of shapes, and add its ratios. Return the limits that are missed."""
    steps = {}
    failures = []
    size = sum(torch.Size(shape).numel() for shape in shapes)
    print(f"\n{name}: {len(shapes)} tensors, {size / 1e6:.1f}M parameters")
    for label, optimizer in optimizers(shapes).items():
        before = programs()
        start = time.perf_counter()
        optimizer.step()
        if "compiled" in label:
            print(f"  {label}: first step {time.perf_counter() - start:.1f} s, {programs() - before} programs compiled")
        optimizer.step()
        steps[label] = optimizer.step
    times = median_times(steps, repeats)
    for label, seconds in times.items():
        ratio = ratios[name, label] = seconds / times["torch fused AdamW"]
        limit = LIMITS.get((name, label))
        missed = limit is not None and ratio > limit
        failures += [f"{label} on {name}: {ratio:.2f} times torch's fused AdamW, limit {limit:.2f}"] if missed else []
        note = "" if limit is None else f"  limit {limit:.2f}" + (" MISSED" if missed else "")
        print(f"  {label:26s} {1e3 * seconds:8.2f} ms  {ratio:5.2f} ×{note}")
    return failures


def recompilations(steps=1000):
    """Programs compiled after the second of `steps` steps under a cosine schedule."""
    p = nn.Parameter(torch.randn(128, 160))
    optimizer = RotationalAdamW([p], compile=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    p.grad = torch.randn_like(p)
    for step in range(steps):
        if step == 2:
            before = programs()
        optimizer.step()
        scheduler.step()
    if not before:
        return ["nothing was compiled"]
    print(f"\n{steps} steps of a cosine schedule: {programs() - before} recompilations")
    return ["a schedule makes the compiled step compile again"] if programs() > before else []


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--shapes", nargs="*", default=["gpt", "resnet50", "tiny"])
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    failures = []
    ratios = {}
    for name in arguments.shapes:
        failures += measure(name, {"gpt": gpt, "resnet50": resnet50, "tiny": tiny}[name](), arguments.repeats, ratios)
    failures += recompilations()
    print("\ntimes torch's fused AdamW    ratio   goal")
    for (name, label), goal in GOALS.items():
        if (name, label) in ratios:
            print(f"{name:8s} {label:26s} {ratios[name, label]:6.2f} {goal:6.2f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    for failure in failures:
        print(f"MISSED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
