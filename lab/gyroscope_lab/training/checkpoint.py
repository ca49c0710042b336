"""Checkpoints: everything that is needed to resume a run bit for bit, written whole or not at all."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

# Checkpoints that a run keeps: the newest, and one before it in case the newest is from a diverged run.
KEPT = 2


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of `step`, and remove all but the newest `KEPT`.

    The file gets its name only after all of it is on disk. A crash or a full disk leaves the older ones intact.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:09d}.pt"
    partial = folder / f".{secrets.token_hex(8)}.part"
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except (OSError, RuntimeError) as error:
        # torch's zip writer reports a full disk as a RuntimeError.
        with suppress(OSError):
            partial.unlink()
        raise ValueError(
            f"cannot write the checkpoint {str(target)!r} ({error}): free some space. Earlier checkpoints are kept"
        ) from None
    for old in paths(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return target


def paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest readable checkpoint, or None. Only tensors and plain values are unpickled."""
    for path in reversed(paths(folder)):
        with suppress(Exception):  # damaged: try the one before it
            state: dict[str, Any] = torch.load(path, weights_only=True)
            return state
    return None
