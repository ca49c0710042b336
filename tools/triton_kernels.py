"""Triton kernels of our compiled steps, made, run and assembled on a machine without a GPU.

    python -m tools.triton_kernels run FOLDER        run each step in Triton's interpreter, and keep its code
    python -m tools.triton_kernels assemble FOLDER   assemble the kernels for GPUs, and count registers and spills

Inductor writes Triton code for CPU tensors if it is told so. Triton asks a driver which GPU there is, hence the
stand-in below. Each command is a process of its own, because Triton reads TRITON_INTERPRET when it is imported. Both
print JSON.
"""

import importlib.util
import json
import re
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gyroscope as gyro


def rotational_adamw(weights: list[torch.nn.Parameter], compile: bool) -> gyro.optim.Rotational:
    """Return torch's own AdamW in the wrapper, whose rotation is compiled."""
    return gyro.optim.Rotational(torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.1), compile=compile)


# Compute capabilities of A100 and H100.
ARCHITECTURES = (80, 90)
# Entries of a row that one program of a kernel takes at a time, and its warps: Inductor's usual choice for long rows.
BLOCK = 1024
WARPS = 8
# Steps of float32 weights. Of bfloat16 weights it is one, because the interpreter cuts numbers off where a GPU rounds.
STEPS = 5
OPTIMIZERS = {
    "RotationalAdamW": partial(gyro.optim.RotationalAdamW, lr=1e-2, weight_decay=0.1),
    "RotationalSGD": partial(gyro.optim.RotationalSGD, lr=1e-2, weight_decay=5e-2),
    "RotationalLion": partial(gyro.optim.RotationalLion, lr=1e-3, weight_decay=1.0),
    "AdamS": partial(gyro.optim.AdamS, lr=1e-3, weight_decay=1e-3),
    "AdamSRT": partial(gyro.optim.AdamSRT, lr=1e-3, weight_decay=1e-3),
    "SGDMRT": partial(gyro.optim.SGDMRT, lr=1e-2, weight_decay=1e-3),
    "SphericalAdam": partial(gyro.optim.SphericalAdam, lr=1e-2),
    "KAdam": partial(gyro.optim.KAdam, lr=1e-3, weight_decay=1e-3),
    "Rotational(AdamW)": rotational_adamw,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Bytes of one element by Triton's name of a pointer to it.
BYTES = {"*fp64": 8, "*fp32": 4, "*bf16": 2, "*fp16": 2}


@dataclass(frozen=True)
class RunResult:
    """A compiled step beside the eager one.

    name, dtype  optimizer and type of the weights
    error        largest difference of a weight over the largest weight, beyond what cutting off bfloat16 explains
    kernels      Triton kernels by program, one program for each kind of tensor
    foreign      calls of anything that is not a Triton kernel
    """

    name: str
    dtype: str
    error: float
    kernels: list[int]
    foreign: int


@dataclass(frozen=True)
class Assembly:
    """A kernel in machine code."""

    name: str
    architecture: int
    registers: int
    spilled_bytes: int


@dataclass(frozen=True)
class Kernel:
    """The source of one generated kernel.

    signature  Triton's type of each argument by name
    """

    name: str
    source: str
    signature: dict[str, str]

    @property
    def bytes_per_weight(self) -> int:
        """Bytes that a step moves for one weight, if what is read twice is still in the cache."""
        moved = 0
        for pointer, kind in self.signature.items():
            if kind not in BYTES or not self._is_indexed_by_entry(pointer):
                continue
            reads = f"tl.load({pointer} +" in self.source
            writes = f"tl.store({pointer} +" in self.source
            moved += BYTES[kind] * (reads + writes)
        return moved

    def _is_indexed_by_entry(self, pointer: str) -> bool:
        """Return whether an argument has one element per weight: its index contains the index within a row."""
        return re.search(rf"tl\.(load|store)\({pointer} \+ \([^)]*r0", self.source) is not None or (
            "r0_" not in self.source and re.search(rf"tl\.(load|store)\({pointer} \+ \(x", self.source) is not None
        )


def read_kernels(path: Path) -> list[Kernel]:
    """Return the kernels in a file of generated code."""
    code = path.read_text(encoding="utf-8")
    kernels = []
    for part in code.split("@triton.jit")[1:]:
        source = part[: part.index("''', device_str")]
        before = code[: code.index(part)]
        signature = re.findall(r"'signature': (\{[^}]*\})", before)[-1]
        name = re.search(r"def (\w+)\(", source)
        assert name is not None
        types = dict(re.findall(r"'(\w+)': '([^']+)'", signature))
        kernels.append(Kernel(name[1], f"@triton.jit{source}", types))
    return kernels


def stand_in_driver() -> None:
    """Let Triton see a GPU, and Inductor write Triton code for CPU tensors."""
    import torch._inductor.config as inductor
    import triton
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class StandIn(DriverBase):  # type: ignore[misc]
        """A driver that only answers what Inductor asks while it writes code."""

        def __init__(self) -> None:
            pass

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", ARCHITECTURES[-1], 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            raise NotImplementedError

        def map_python_to_cpp_type(self, kind: str) -> str:
            return kind

    triton.runtime.driver.set_active(StandIn())
    inductor.cpu_backend = "triton"
    inductor.fx_graph_cache = False
    inductor.compile_threads = 1
    # The interpreter has no library of the device: these functions would return None.
    triton_helpers.libdevice.rsqrt = lambda x: tl.math.rsqrt(x)
    triton_helpers.libdevice.sqrt = lambda x: tl.math.sqrt(x)


def trained_weights(make: Any, dtype: torch.dtype, compiled: bool) -> list[torch.nn.Parameter]:
    """Return matrices of two shapes and a bias after some steps with random gradients."""
    generator = torch.Generator().manual_seed(0)
    # Few rows, because the interpreter takes them one at a time.
    shapes = [(8, 96), (8, 96), (6, 48), (8,)]
    weights = [torch.nn.Parameter((torch.randn(shape, generator=generator) * 0.1).to(dtype)) for shape in shapes]
    optimizer = make(weights, compile=compiled)
    for _ in range(STEPS if dtype is torch.float32 else 1):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
        optimizer.step()
    return weights


def largest_error(eager: torch.Tensor, compiled: torch.Tensor) -> float:
    """Return the largest difference over the largest weight. Cutting off bfloat16 explains one spacing towards zero."""
    excess = (compiled.double() - eager.double()).abs()
    if eager.dtype is torch.bfloat16:
        spacing = eager.double().abs() * torch.finfo(torch.bfloat16).eps
        missing = eager.double().abs() - compiled.double().abs()
        excess = torch.where((missing >= 0) & (missing <= spacing), 0.0, excess)
    return float(excess.max() / eager.double().abs().max())


def run(folder: Path) -> list[RunResult]:
    """Run every optimizer eagerly and as Triton kernels, and write the generated code to the folder."""
    from torch._inductor.utils import run_and_get_code

    stand_in_driver()
    results = []
    for name, make in OPTIMIZERS.items():
        for dtype_name, dtype in DTYPES.items():
            eager = trained_weights(make, dtype, compiled=False)
            compiled, programs = run_and_get_code(trained_weights, make, dtype, compiled=True)
            error = max(largest_error(a.detach(), b.detach()) for a, b in zip(eager, compiled, strict=True))
            for number, code in enumerate(programs):
                (folder / f"{name}.{dtype_name}.{number}.py").write_text(code, encoding="utf-8")
            kernels = [code.count("@triton.jit") for code in programs]
            foreign = sum(code.count("cpp_fused") + code.count("extern_kernels.") for code in programs)
            results.append(RunResult(name, dtype_name, error, kernels, foreign))
            torch._dynamo.reset()
    return results


def assemble(folder: Path) -> list[Assembly]:
    """Assemble every kernel in the folder for each architecture."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    results = []
    for path in sorted(folder.glob("*.*.py")):
        for kernel in read_kernels(path):
            function = _load(kernel, folder)
            blocks = {"XBLOCK": 1, "R0_BLOCK": BLOCK} if "R0_BLOCK" in kernel.source else {"XBLOCK": BLOCK}
            if "R0_BLOCK: tl.constexpr =" in kernel.source:
                blocks.pop("R0_BLOCK")
            for architecture in ARCHITECTURES:
                compiled = triton.compile(
                    ASTSource(fn=function, signature=kernel.signature, constexprs=blocks),
                    target=GPUTarget("cuda", architecture, 32),
                    options={"num_warps": WARPS},
                )
                ptx = folder / "kernel.ptx"
                ptx.write_text(compiled.asm["ptx"], encoding="utf-8")
                # Triton writes for the variant of an architecture that its code names.
                target = re.search(r"\.target (\w+)", compiled.asm["ptx"])
                assert target is not None
                assembler = get_ptxas(architecture).path
                command = [assembler, "-v", f"--gpu-name={target[1]}", str(ptx), "-o", str(folder / "kernel.cubin")]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
                registers = int(re.findall(r"Used (\d+) registers", said)[-1])
                spilled = sum(int(number) for number in re.findall(r"(\d+) bytes spill", said))
                results.append(Assembly(path.stem, architecture, registers, spilled))
    return results


def _load(kernel: Kernel, folder: Path) -> Any:
    """Return the kernel as a function that Triton can compile. It reads the source from a file."""
    path = folder / f"kernel_{kernel.name}.py"
    imports = (
        "import triton\nimport triton.language as tl\nfrom torch._inductor.runtime import triton_helpers\n"
        "from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math\n\n"
    )
    path.write_text(imports + kernel.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kernel.name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = {"run": run, "assemble": assemble}[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write(json.dumps([asdict(result) for result in results]) + "\n")
