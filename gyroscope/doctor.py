"""A check of this installation: every optimizer against float64 and its compiled twin, and the time of a step.

The result is one block of text for an issue. Programs are compiled until the time is up.
"""

import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from gyroscope import __version__
from gyroscope.optim import Rotational, registry

Make = Callable[..., Optimizer]
Progress = Callable[[int, int], None]
SECONDS = 30.0
STEPS = 5
SHAPES = [(32, 48), (32, 48), (48, 32), (8, 4, 3, 3), (32,), (48,)]
# Deviations are shares of the distance that the weights have moved. Rounding of float32 leaves 1e-5.
TOLERANCE = 1e-3
# A small GPT: 3.2 million entries, above the size from which compile="auto" compiles on a CPU.
TIMED_SHAPES = 4 * [(768, 256), (256, 256), (1024, 256), (256, 1024), (1024,), (256,), (256,)]
TIMED_STEPS = 15


@final
@dataclass
class Check:
    """How far an optimizer's weights are from those of its twins, as shares of the distance moved. None: not run."""

    name: str
    from_float64: float
    from_compiled: float | None = None

    @property
    def passed(self) -> bool:
        """Whether both deviations are what rounding leaves."""
        return all(x is None or x <= TOLERANCE for x in (self.from_float64, self.from_compiled))


@final
@dataclass
class InstallationCheck:
    """What `examine` found."""

    device: str
    versions: dict[str, str]
    checks: list[Check] = field(default_factory=list)
    ratio: float | None = None  # time of a compiled step of RotationalAdamW over that of torch's fused AdamW
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every optimizer agrees with its twins."""
        return all(check.passed for check in self.checks)

    def text(self) -> str:
        """Return the block to paste into an issue."""
        failed = [check.name for check in self.checks if not check.passed]
        verdict = f"differ from their twins: {', '.join(failed)}" if failed else "all optimizers agree with their twins"
        lines = [f"gyroscope doctor on {self.device}: {verdict}"]
        lines += [f"  {name:10} {value}" for name, value in self.versions.items()]
        lines += [
            "deviation as a share of the distance moved (-: not checked)",
            f"  {'':20} {'float64':>9} {'compiled':>9}",
        ]
        for check in self.checks:
            compiled = "-" if check.from_compiled is None else f"{check.from_compiled:.1e}"
            failure = "" if check.passed else "  FAILED"
            lines.append(f"  {check.name:20} {check.from_float64:9.1e} {compiled:>9}{failure}")
        if self.ratio is not None:
            times = f"{self.ratio:.2f} times as long as torch's fused AdamW"
            lines.append(f"a compiled step of RotationalAdamW takes {times}")
        return "\n".join(["```", *lines, *(f"note: {note}" for note in self.notes), "```"])

    def json(self) -> str:
        """Return the same as JSON."""
        return json.dumps({"passed": self.passed, **asdict(self)}, indent=2)


def examine(device: str | None = None, progress: Progress | None = None, seconds: float = SECONDS) -> InstallationCheck:
    """Check this installation on a device, by default CUDA if there is one, in about `seconds`.

    `progress` is called with the number of parts done and of all parts.
    """
    end = time.monotonic() + seconds
    where = known_device(device)
    makers: dict[str, Make] = {name: partial(registry.create, name) for name in registry.names()}
    makers["rotational(adamw)"] = lambda params, lr, **options: Rotational(
        AdamW(params, lr=lr, weight_decay=0.1), **options
    )
    found = InstallationCheck(str(where), versions(where))
    parts = len(makers) + 2
    report = progress or (lambda done, parts: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of compilers are among the notes
        weights = {}
        for done, (name, make) in enumerate(makers.items()):
            report(done, parts)
            weights[name] = trained(make, where)
            expected = trained(make, torch.device("cpu"), torch.float64)
            found.checks.append(Check(name, deviation(weights[name], expected)))
        report(parts - 2, parts)
        took = 0.0
        for check in found.checks:
            start = time.monotonic()
            # The first is checked in any case, because it shows whether programs can be compiled. The next takes about
            # as long as the last.
            if start + took > end and check is not found.checks[0]:
                found.notes.append(f"the check of compiled steps stopped after {seconds:.0f} s")
                break
            check.from_compiled = compiled_deviation(makers[check.name], where, weights[check.name])
            took = time.monotonic() - start
        report(parts - 1, parts)
        # torch has its fused step for these devices only.
        if where.type in ("cpu", "cuda"):
            found.ratio = step_ratio(where)
    found.notes += registry.FALLBACKS.values()
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
        found.notes.append("other programs keep the processors busy, so this time is too long")
    report(parts, parts)
    return found


def known_device(name: str | None) -> torch.device:
    """Return the device, or raise a ValueError if torch does not have it."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        known = "Expected one of" not in str(error)  # torch lists all devices that any build has
        reason = str(error).strip().splitlines()[0] if known else "torch has no device of this name"
        raise ValueError(f"device {name!r} cannot be used ({reason}): choose --device cpu") from None
    return device


def versions(device: torch.device) -> dict[str, str]:
    """Return what an issue needs to know of the installation."""
    cuda = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    compiled = {"cuda": "on CUDA", "cpu": "of 65,536 entries and more"}.get(device.type, "none")
    return {
        "gyroscope": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} of {os.cpu_count()} threads",
        "numpy": version("numpy"),
        "triton": version("triton") if find_spec("triton") else "not installed",
        "cuda": f"{torch.version.cuda}: {', '.join(cuda)}" if cuda else "no device",
        "auto": f'compile="auto" compiles weights {compiled}',
    }


def parameters(shapes: Sequence[tuple[int, ...]], device: torch.device, dtype: torch.dtype) -> list[nn.Parameter]:
    """Return the same weights on every device, with gradients."""
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in shapes]
    for p in params:
        p.grad = 0.1 * torch.randn(p.shape, generator=generator).to(device, dtype)
    return params


def trained(make: Make, device: torch.device, dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """Return the first weights and those after a few steps, as float64 on the CPU."""
    params = parameters(SHAPES, device, dtype)
    optimizer = make(params, lr=0.01, **options)
    before = nn.utils.parameters_to_vector(params).detach().double().cpu()
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(device, dtype)
        optimizer.step()
    return [before, nn.utils.parameters_to_vector(params).detach().double().cpu()]


def deviation(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the distance between two results as a share of the distance moved."""
    return float((found[1] - expected[1]).norm() / (expected[1] - expected[0]).norm())


def compiled_deviation(make: Make, device: torch.device, eager: list[Tensor]) -> float | None:
    """Return how far compiled steps lead from eager ones, or None if the optimizer does not compile."""
    options = make(parameters(SHAPES[:1], device, torch.float32), lr=0.01).defaults
    return deviation(trained(make, device, compile=True), eager) if "compile" in options else None


def step_ratio(device: torch.device) -> float:
    """Return the time of a compiled step of RotationalAdamW over that of torch's fused AdamW."""
    make = partial(parameters, TIMED_SHAPES, device, torch.float32)
    steps = [registry.create("rotational-adamw", make(), compile="auto").step, AdamW(make(), fused=True).step]
    # Interleaved, so that both see the same load.
    times = [[timed(step, device) for step in steps] for _ in range(TIMED_STEPS + 2)]
    # The first steps make state and programs.
    rotational, fused = np.median(times[2:], axis=0)
    return float(rotational / fused)


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of a call, with the work that it leaves to the device."""
    start = time.perf_counter()
    run()
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
    return time.perf_counter() - start
