"""What bounds a step? Bytes and instructions per weight, the time that the bytes alone take, and the measured time.

    python benchmarks/step_floor.py [--record]

On the matrices of a GPT, 13.8M weights. Bytes of eager steps are those that their kernels read and write, counted. A
compiled step reads each array from memory once and again from the cache, so only the first read counts: they are read
off the C++ code that Inductor has generated. Instructions are those of its vectorised loops, and those per vector
between them, read off the machine code by objdump. The floor divides bytes by the bandwidth of an in-place product of
256 MB, in this process. The loop of torch's fused AdamW was read off libtorch_cpu of torch 2.13 for x86-64, which has
this kernel with registers of 8 weights and not of 16.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

import torch
from cost_growth import CountBytes
from optim_step import gpt, median_times
from records import write_record
from torch import nn

from gyroscope.optim import Rotational, RotationalAdamW

BASE = "torch fused AdamW"
# It reads weight, gradient and two moments, and writes all but the gradient.
FUSED_BYTES = 28
# Instructions of its loop over 8 weights, without amsgrad.
FUSED_INSTRUCTIONS = 28 / 8
ENTRIES = 2**26


def fused(weights):
    return torch.optim.AdamW(weights, weight_decay=0.1, fused=True)


MAKERS = {
    BASE: fused,
    "RotationalAdamW compiled": lambda weights: RotationalAdamW(weights, compile=True),
    "Rotational(fused) compiled": lambda weights: Rotational(fused(weights), compile=True),
    "RotationalAdamW eager": RotationalAdamW,
    "Rotational(fused) eager": lambda weights: Rotational(fused(weights)),
}


def weights():
    """Weights with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in gpt() if len(shape) == 2]
    for p in made:
        p.grad = 1e-3 * torch.randn(p.shape, generator=generator)
    return made


def bandwidth():
    """Bytes per second of an in-place product, the best of several."""
    x = torch.ones(ENTRIES)
    times = [median_times({"product": lambda: x.mul_(1.0)}, 1)["product"] for _ in range(15)]
    return 8 * ENTRIES / min(times[3:])


def eager_bytes(optimizer, size):
    with CountBytes() as counted:
        optimizer.step()
    return counted.bytes / size


def program_bytes(source):
    """Bytes per weight of a generated program, without those that it reads again from the cache."""
    read = set(re.findall(r"Vectorized<float>::loadu\((in_ptr\w+) \+", source))
    written = set(re.findall(r"\.store\((\w+) \+ static_cast<int64_t>\(x1", source))
    # The first loop reads the weight under the name of an input. What is written has been read too.
    return 4 * (len(read) - 1 + 2 * len(written))


def loops(library):
    """Instructions of the two vectorised loops over a vector, per weight, and of what is between them, per vector."""
    command = ["objdump", "-d", "--no-show-raw-insn", library]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [re.match(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)", line) for line in listing.splitlines()]
    code = [(int(line[1], 16), line[2], line[3]) for line in lines if line]
    place = {address: number for number, (address, _, _) in enumerate(code)}
    innermost = []
    for end, (address, name, operands) in enumerate(code):
        target = re.match(r"[0-9a-f]+", operands)
        if not name.startswith("j") or target is None or int(target[0], 16) > address:
            continue
        start = place.get(int(target[0], 16), end)
        body = code[start : end + 1]
        vectorised = any(re.match(r"v(add|mul)ps .*[yz]mm", f"{name} {operands}") for _, name, operands in body)
        if vectorised and sum(name.startswith("j") for _, name, _ in body) == 1:
            lanes = 16 if any("zmm" in operands for _, _, operands in body) else 8
            innermost.append((start, end, len(body) / lanes))
    (_, first_end, first), (second_start, _, second) = innermost
    # Without the loop over the entries that are left over, whose instructions have masks.
    between = [operands for _, _, operands in code[first_end + 1 : second_start] if "{%k" not in operands]
    return first + second, len(between)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    speed = bandwidth()
    known = set()
    steps = {}
    rows = {}
    for name, make in MAKERS.items():
        made = weights()
        size = sum(p.numel() for p in made)
        optimizer = make(made)
        optimizer.step()
        rows[name] = {"bytes": FUSED_BYTES, "instructions": FUSED_INSTRUCTIONS, "per_vector": 0}
        if "eager" in name:
            rows[name] = {"bytes": eager_bytes(optimizer, size), "instructions": None, "per_vector": None}
        for source in set(folder.rglob("*.main.cpp")) - known:
            known.add(source)
            inner = "Rotational(" in name
            moved = program_bytes(source.read_text())
            per_weight, per_vector = loops(source.with_suffix(".so"))
            # The wrapper's inner step starts from zeros, which are written first.
            rows[name] = {
                "bytes": moved + (FUSED_BYTES + 4 if inner else 0),
                "instructions": per_weight + (FUSED_INSTRUCTIONS if inner else 0),
                "per_vector": per_vector,
            }
        optimizer.step()
        steps[name] = optimizer.step
    times = median_times(steps, arguments.repeats)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {speed / 1e9:.0f} GB/s")
    print(
        f"{'':28} {'bytes':>6} {'instructions':>13} {'per vector':>11} {'floor, ns':>10} {'measured':>9} {'ratio':>6}"
    )
    for name, row in rows.items():
        row["floor_ns"] = 1e9 * row["bytes"] / speed
        row["measured_ns"] = 1e9 * times[name] / size
        row["ratio"] = times[name] / times[BASE]
        counts = ["-" if row[key] is None else f"{row[key]:.1f}" for key in ("instructions", "per_vector")]
        print(
            f"{name:28} {row['bytes']:6.0f} {counts[0]:>13} {counts[1]:>11} {row['floor_ns']:10.2f} "
            f"{row['measured_ns']:9.2f} {row['ratio']:6.2f}"
        )
    if arguments.record:
        write_record("step_floor", {"weights": size, "bandwidth": speed, "steps": rows})


if __name__ == "__main__":
    main()
