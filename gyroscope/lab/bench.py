"""The bench an experiment runs on: it goes through seeds and parts, keeps what is finished, and tells how far it is."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from gyroscope.lab.experiment import FloatArray, Result, Settings

Values = Mapping[str, ArrayLike]
C = TypeVar("C", bound=Settings)
P = TypeVar("P")

DIGITS = 7
"""Significant digits that are kept of a measured number: what is judged is what is written."""


class Bench:
    """Runs the parts of an experiment one after the other; each finished part is kept in `keep`, if given.

    >>> from gyroscope.lab.sp import eq44
    >>> eq44.run(eq44.Config(neurons=2, fan_in=4, batch=8, steps=3, seeds=2), Bench())["distance"].shape
    (2, 2, 3)
    """

    def __init__(self, keep: Path | None = None, tell: Callable[[float], None] | None = None) -> None:
        self._keep, self._tell = keep, tell
        self.seconds = 0.0  # that measuring took, also before an interruption
        self._done, self._parts = 0, 1

    def over_seeds(self, config: C, measure: Callable[[int], Values]) -> Result[C]:
        """Measure with every seed of the config: values of shape (seeds, …).

        `measure(seed)` returns numbers and arrays by name, of the same shapes for every seed.
        """
        found = self._all(config, ("",), lambda seed, _: measure(seed))
        return Result(config, {name: array[:, 0] for name, array in found.items()})

    def over_parts(self, config: C, parts: Sequence[P], measure: Callable[[int, P], Values]) -> Result[C]:
        """Measure every part with every seed of the config: values of shape (seeds, parts, …)."""
        return Result(config, self._all(config, parts, measure))

    def _all(self, config: C, parts: Sequence[P], measure: Callable[[int, P], Values]) -> dict[str, FloatArray]:
        folder = self._folder(config, len(parts))
        tasks = [(seed, number) for seed in range(config.seeds) for number in range(len(parts))]
        self._parts, found = len(tasks), []
        for self._done, (seed, number) in enumerate(tasks):
            self._report(0.0)
            path = folder / f"{seed}-{number}.json" if folder else None
            part = _recall(path) or _store(path, measure, seed, parts[number])
            self.seconds += part["seconds"]
            found.append(part["values"])
        self._done = len(tasks)
        self._report(0.0)
        return {name: _stack([one[name] for one in found], (config.seeds, len(parts))) for name in found[0]}

    def steps(self, count: int) -> Iterator[int]:
        """0 … count-1, telling the progress within the part that is being measured."""
        for step in range(count):
            if step % 64 == 0:
                self._report(step / count)
            yield step

    def _report(self, within: float) -> None:
        if self._tell is not None:
            self._tell((self._done + within) / self._parts)

    def _folder(self, config: C, parts: int) -> Path | None:
        """Where parts of this very experiment are kept: another config or other code never meets them."""
        if self._keep is None:
            return None
        same = asdict(config) | {"seeds": None, "parts": parts, "code": _fingerprint(type(config).__module__)}  # type: ignore[call-overload]
        folder = self._keep / hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def rounded(values: ArrayLike) -> FloatArray:
    """Values with `DIGITS` significant digits.

    >>> rounded([3.14159265358979, 0.0]).tolist()
    [3.141593, 0.0]
    """
    x = np.asarray(values, dtype=np.float64)
    exact = [float(f"{value:.{DIGITS}g}") for value in x.ravel().tolist()]
    return np.array(exact, dtype=np.float64).reshape(x.shape)


def _stack(values: list[Any], shape: tuple[int, ...]) -> FloatArray:
    arrays = [np.asarray(value, dtype=np.float64) for value in values]
    return rounded(np.stack(arrays).reshape(*shape, *arrays[0].shape))


def _fingerprint(module: str) -> str:
    """A hash of the code that an experiment rests on: the rooms below, the lab, and the folder of its own module."""
    package = Path(__file__).parents[1]
    rooms = [package / room for room in ("theory", "simulate", "optim", "nn")]
    own = package.joinpath(*module.split(".")[1:-1])
    files = {package / "geometry.py", *own.glob("*.py"), *Path(__file__).parent.glob("*.py")}
    files |= {path for room in rooms for path in room.rglob("*.py")}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _recall(path: Path | None) -> dict[str, Any] | None:
    if path is None or not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _store(path: Path | None, measure: Callable[[int, P], Values], seed: int, part: P) -> dict[str, Any]:
    start = time.monotonic()
    values = {name: np.asarray(value, dtype=np.float64).tolist() for name, value in measure(seed, part).items()}
    done = {"seconds": time.monotonic() - start, "values": values}
    if path is not None:
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(done))
        partial.replace(path)  # whole or not at all, whenever the process is killed
    return done
