"""Where a run comes from: versions, the commit, and a configuration made fit for JSON."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

import gyroscope

LONGEST_REPR = 2000
DEEPEST = 10


def provenance() -> dict[str, Any]:
    """Versions of what computes, and the commit of the current directory (None outside a repository).

    >>> sorted(provenance())
    ['commit', 'versions']
    """
    versions = {"python": platform.python_version(), "numpy": np.__version__, "gyroscope": gyroscope.__version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", "unknown"))
    return {"versions": versions, "commit": _commit()}


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, stdin=subprocess.DEVNULL, timeout=2, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() or None


def to_json(config: Mapping[str, Any]) -> str:
    """JSON of any configuration: what JSON does not know becomes its repr; NaN and infinities stay what they are.

    >>> to_json({"lr": np.float32(0.5), "betas": (0.9, 0.99), "decay": float("inf"), "type": int})
    '{"lr": 0.5, "betas": [0.9, 0.99], "decay": Infinity, "type": "<class \\'int\\'>"}'
    """
    return json.dumps(_plain(config, 0), ensure_ascii=False)


def _plain(value: Any, depth: int) -> Any:
    try:
        return _known(value, depth)
    except Exception:  # mappings and reprs are the user's code and may do anything
        return f"<{type(value).__name__}>"


def _known(value: Any, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, PurePath)):
        return clean(str(value))
    if depth < DEEPEST and isinstance(value, Mapping):
        return {str(_plain(key, depth + 1)): _plain(one, depth + 1) for key, one in value.items()}
    if depth < DEEPEST and isinstance(value, (list, tuple)):
        return [_plain(one, depth + 1) for one in value]
    return clean(repr(value)[:LONGEST_REPR])


def clean(text: str) -> str:
    """Without the lone surrogates that Python allows, for example in names of files, and UTF-8 does not."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
