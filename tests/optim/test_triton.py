"""Compiled steps as Triton kernels: run in Triton's interpreter, and assembled for GPUs that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.triton_kernels import ARCHITECTURES, DTYPES, OPTIMIZERS, read_kernels

ROOT = Path(__file__).parents[2]
if not os.environ.get("GYROSCOPE_REQUIRE_TRITON"):
    pytest.importorskip("triton", reason="triton is not installed: pip install 'gyroscope[gpu-codegen]'")
pytestmark = [pytest.mark.triton, pytest.mark.slow]
every_step = pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in OPTIMIZERS for dtype in DTYPES], ids=lambda value: value
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The folder of generated code, and by optimizer and dtype how its kernels ran."""
    folder = tmp_path_factory.mktemp("kernels")
    results = _command("run", folder, TRITON_INTERPRET="1")
    return folder, {(result["name"], result["dtype"]): result for result in results}


@pytest.fixture(scope="module")
def assembled(generated):
    folder, _ = generated
    return _command("assemble", folder)


def _command(name, folder, **variables):
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        **variables,
    }
    command = [sys.executable, "-m", "tools.triton_kernels", name, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@every_step
def test_a_compiled_step_is_one_kernel_and_equals_the_eager_step(generated, name, dtype):
    result = generated[1][name, dtype]
    assert result["kernels"] == [1]
    assert result["foreign"] == 0
    # Five steps in float32. One step in bfloat16, equal except that the interpreter cuts off instead of rounding.
    assert result["error"] <= (5e-7 if dtype == "float32" else 0)


@every_step
def test_a_kernel_assembles_for_gpus_without_spilling_registers(assembled, name, dtype):
    kernels = [kernel for kernel in assembled if kernel["name"] == f"{name}.{dtype}.0"]
    assert [kernel["architecture"] for kernel in kernels] == list(ARCHITECTURES)
    assert all(kernel["spilled_bytes"] == 0 and kernel["registers"] <= 96 for kernel in kernels)


def test_the_bytes_of_a_step_are_those_of_its_tensors(generated):
    # A weight and two moments are read and written, a gradient is read. The update is stored and read in between.
    (kernel,) = read_kernels(generated[0] / "RotationalAdamW.float32.0.py")
    assert kernel.bytes_per_weight in (4 * (2 * 3 + 1), 4 * (2 * 3 + 1 + 2))
    (kernel,) = read_kernels(generated[0] / "KAdam.float32.0.py")
    assert kernel.bytes_per_weight == 4 * (2 * 5 + 1)
