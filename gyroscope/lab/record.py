"""A finished experiment on disk: `<out>/<id>.json` holds the values, the claims, and what made them."""

import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import isfinite, nan
from pathlib import Path
from typing import Any

from gyroscope.lab.claim import Claim, Estimate


@dataclass(frozen=True)
class Record:
    """What a file in `results/` says: the JSON as it is, and the claims in it."""

    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The experiment."""
        return str(self.data["id"])

    @property
    def claims(self) -> list[Claim]:
        """The claims as they were judged."""
        return [
            Claim(**{**_numbers(one), "measured": Estimate(**_numbers(one["measured"]))}) for one in self.data["claims"]
        ]

    @property
    def verdict(self) -> str:
        """How many claims hold, in words."""
        claims = self.claims
        return f"{sum(claim.holds for claim in claims)} of {len(claims)} hold"


def path_of(out: Path, name: str) -> Path:
    """Where the record of an experiment lies."""
    return out / f"{name}.json"


def read(out: Path, name: str) -> Record | None:
    """The record of an experiment, if it has been run here."""
    path = path_of(out, name)
    if not path.exists():
        return None
    try:
        found = Record(json.loads(path.read_text(encoding="utf-8")))
        found.claims, found.data["versions"]["torch"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read {str(path)!r} as a record: {error!r}; run the experiment again") from None
    return found


def describe(name: str, claim: str, size: str, config: Any, seconds: float) -> dict[str, Any]:
    """All of a record but its values and claims: what was run, when, with what."""
    settings = asdict(config)
    return {
        "id": name,
        "claim": claim,
        "size": size,
        "config": settings,
        "n": config.seeds,
        "seeds": list(range(config.seeds)),
        "seconds": round(seconds, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        **_commit(),
    }


def write(out: Path, description: Mapping[str, Any], claims: list[Claim], values: Mapping[str, Any]) -> Path:
    """Write a record, one value per line; a number that is not finite becomes null."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in description.items()]
    judged = ",\n".join("  " + json.dumps(_finite(asdict(claim)), ensure_ascii=False) for claim in claims)
    arrays = ",\n".join(f"  {json.dumps(name)}: {_compact(array)}" for name, array in values.items())
    lines += [f' "claims": [\n{judged}\n ]', f' "values": {{\n{arrays}\n }}']
    path = path_of(out, str(description["id"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    partial.replace(path)
    return path


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Null is a number that was not finite."""
    return {name: nan if value is None else value for name, value in values.items()}


def _compact(array: Any) -> str:
    return json.dumps(_finite(array.tolist()), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("gyroscope", "torch", "numpy", "plotly"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _commit() -> dict[str, Any]:
    """The commit of the code, and whether files have changed since; null where it is no repository."""
    package = Path(__file__).parents[1]
    commit = _git(package, "rev-parse", "HEAD")
    changed = bool(_git(package, "status", "--porcelain", "--", str(package))) if commit else None
    return {"commit": commit or None, "changed": changed}


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
