"""How long does the autopsy of a checkpoint of a billion parameters take, and how much memory?

python benchmarks/autopsy_large.py [directory]    the file is made there, once: 10 GB on disk

Weights in bfloat16, Adam's state in float32, as a transformer of 24 layers of width 1,792 with 50,304 tokens has them.
Pages of the file do not count as memory, because the system reclaims them.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import gyroscope as gyro

WIDTH = 1792
LAYERS = 24
TOKENS = 50_304
# Seconds, and gigabytes of memory after any parameter.
LIMITS = {"seconds": 180.0, "gigabytes": 4.0}


def shapes() -> dict[str, tuple[int, int]]:
    """Matrices of the model by name, tokens first."""
    named = {"wte.weight": (TOKENS, WIDTH)}
    for layer in range(LAYERS):
        named |= {
            f"h.{layer}.attn.c_attn.weight": (3 * WIDTH, WIDTH),
            f"h.{layer}.attn.c_proj.weight": (WIDTH, WIDTH),
            f"h.{layer}.mlp.c_fc.weight": (4 * WIDTH, WIDTH),
            f"h.{layer}.mlp.c_proj.weight": (WIDTH, 4 * WIDTH),
        }
    return named


def write(path: Path) -> None:
    """A checkpoint in nanoGPT's form, each tensor a window of one long random one: drawing a billion takes minutes."""
    torch.manual_seed(0)
    longest = max(rows * columns for rows, columns in shapes().values())
    noise = torch.randn(longest)
    model, state = {}, {}
    for number, (name, shape) in enumerate(shapes().items()):
        # A copy: torch.save would otherwise store the window once for all.
        window = torch.roll(noise[: shape[0] * shape[1]], number).view(shape)
        model[name] = (0.02 * window).to(torch.bfloat16)
        state[number] = {
            "step": torch.tensor(1000.0),
            "exp_avg": 1e-4 * window.flip(0),
            "exp_avg_sq": (4e-4 * window) ** 2,
        }
    group = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False}
    group |= {"decoupled_weight_decay": True, "params": list(range(len(state)))}
    torch.save({"model": model, "optimizer": {"state": state, "param_groups": [group]}, "iter_num": 1000}, path)


def gigabytes() -> float:
    """The resident memory of this process without pages of files."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) / 2**20


def main(directory: Path) -> int:
    """Make the file if need be, in a process of its own so that its memory does not count, and examine it."""
    file = directory / "billion.pt"
    count = sum(rows * columns for rows, columns in shapes().values())
    if not file.exists():
        print(f"writing {file}")
        code = f"import autopsy_large, pathlib; autopsy_large.write(pathlib.Path({str(file)!r}))"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
    start = time.perf_counter()
    busy = time.process_time()
    memory: list[float] = []
    autopsy = gyro.autopsy(file, progress=lambda done, of: memory.append(gigabytes()))
    seconds = time.perf_counter() - start
    busy = time.process_time() - busy
    print(f"{count / 1e9:.2f} billion parameters, {file.stat().st_size / 1e9:.1f} GB, {len(autopsy.layers)} layers")
    print(f"{seconds:.0f} s ({busy:.0f} s of processor), {max(memory):.2f} GB at most")
    return int(seconds > LIMITS["seconds"] or max(memory) > LIMITS["gigabytes"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
