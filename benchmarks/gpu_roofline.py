"""How long would a compiled step take on a GPU? Bytes of the generated kernels over the bandwidth of its memory.

    python benchmarks/gpu_roofline.py

A prediction, never measured: a step streams through memory once and computes little, so that its bytes set its time.
Kernels reach 80 to 90 % of the bandwidth on a data sheet. That multiplies all times alike and leaves the ratios alone.
A wrapped optimizer is listed with its rotation alone, and its inner step comes on top.
Install triton first: pip install "gyroscope[gpu-codegen]".
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.triton_kernels import DTYPES, OPTIMIZERS, read_kernels  # noqa: E402

# Bytes per second by the makers' data sheets: A100 SXM with 80 GB, H100 SXM.
BANDWIDTH = {"A100": 2.039e12, "H100": 3.35e12}
PARAMETERS = 1e9
# torch's fused AdamW reads weight, gradient and two moments, and writes all but the gradient.
FUSED_ADAMW = {"float32": 28, "bfloat16": 14}


def main() -> None:
    """Print bytes per weight and predicted times of every optimizer."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        variables = {"TRITON_INTERPRET": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        command = [sys.executable, "-m", "tools.triton_kernels", "run", name]
        subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, stdout=subprocess.PIPE)
        table = Table(title=f"One step of {PARAMETERS:.0e} weights, predicted")
        for heading in (
            "optimizer",
            "weights",
            "bytes per weight",
            "over fused AdamW",
            *(f"{g}, ms" for g in BANDWIDTH),
        ):
            table.add_column(heading, justify="left" if heading in ("optimizer", "weights") else "right", no_wrap=True)
        for optimizer in OPTIMIZERS:
            for dtype in DTYPES:
                (kernel,) = read_kernels(folder / f"{optimizer}.{dtype}.0.py")
                moved = kernel.bytes_per_weight
                times = [f"{1e3 * PARAMETERS * moved / bandwidth:.1f}" for bandwidth in BANDWIDTH.values()]
                table.add_row(optimizer, dtype, str(moved), f"{moved / FUSED_ADAMW[dtype]:.2f}", *times)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
