"""Finished experiments on disk: `<out>/<id>.json` has values, claims and their origin."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gyroscope
from gyroscope_lab.framework.catalogue import CatalogueEntry, catalogue, headings, order
from gyroscope_lab.framework.claims import Claim, ClaimOutcome, ConfidenceInterval
from gyroscope_lab.framework.seeds import choosing_seeds, judged_seeds


@dataclass(frozen=True)
class ExperimentRecord:
    """The content of a file in `results/`: its JSON and its claims."""

    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The experiment."""
        return str(self.data["id"])

    @property
    def claims(self) -> list[Claim]:
        """The claims as they were judged."""
        return [
            Claim(
                claim["sentence"],
                _number(claim["predicted"]),
                ConfidenceInterval(**{name: _number(value) for name, value in claim["measured"].items()}),
                claim["tolerance"],
                ClaimOutcome(claim["outcome"]),
            )
            for claim in self.data["claims"]
        ]

    @property
    def commit(self) -> str:
        """The short commit of the code, and of the code that judged the record again."""
        again = self.data.get("judged_by")
        return _short(self.data) + (f", judged by {_short(again)}" if again else "")

    @classmethod
    def read(cls, out: Path, name: str) -> "ExperimentRecord | None":
        """Return the record of an experiment, if it has been run here."""
        path = record_path(out, name)
        if not path.exists():
            return None
        try:
            record = cls(json.loads(path.read_text(encoding="utf-8")))
            # Damage is reported here, because the path is known here and not at the first use of the values.
            _ = (record.claims, record.commit, record.data["versions"]["torch"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"cannot read {str(path)!r} as a record: {error!r}. Run the experiment again") from None
        return record


def with_records(out: Path, source: Path | None = None) -> dict[str, CatalogueEntry]:
    """Return the catalogue, and an entry for each record of a folder whose experiment no longer exists."""
    entries = dict(catalogue(source))
    for path in (path for prefix in headings(source) for path in (out / prefix).glob("*.json")):
        name = f"{path.parent.name}/{path.stem}"
        record = None if name in entries else ExperimentRecord.read(out, name)
        if record is not None:
            entries[name] = CatalogueEntry(name, record.data["claim"], f"removed, measured by commit {record.commit}")
    return {name: entries[name] for name in sorted(entries, key=order)}


def _short(code: Mapping[str, Any]) -> str:
    if not code["commit"]:
        return "no commit"
    return str(code["commit"])[:10] + (" with changes" if code["changed"] else "")


def record_path(out: Path, name: str) -> Path:
    """Return the path of an experiment's record."""
    return out / f"{name}.json"


def figure_path(out: Path, name: str) -> Path | None:
    """Return the path of an experiment's figure, if there is one."""
    paths = (out / f"{name}{suffix}" for suffix in (".svg", ".html"))
    return next((path for path in paths if path.exists()), None)


def describe(
    name: str,
    claim: str,
    size: str,
    config: Any,
    seconds: float,
    first_seed: int = 0,
) -> dict[str, Any]:
    """Return a record without its values and claims: what was run, when, and with which versions."""
    from gyroscope.store.session import provenance  # with NumPy, which a list of experiments does without

    return {
        "id": name,
        "claim": claim,
        "size": size,
        "config": asdict(config),
        "n": config.seeds,
        "seeds": list(judged_seeds(config, first_seed)),
        "choosing_seeds": list(choosing_seeds(config, first_seed)),
        "seconds": round(seconds, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": provenance()["versions"],
        **commit_of_code(),
    }


def write_record(
    out: Path,
    description: Mapping[str, Any],
    claims: list[Claim],
    values: Mapping[str, Any],
    choosing: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a record, one value per line. A number that is not finite becomes null."""
    from gyroscope.tools import dumps, write_text  # with NumPy too

    lines = [f" {dumps(key)}: {dumps(value)}" for key, value in description.items()]
    judged = ",\n".join(f"  {dumps(claim)}" for claim in claims)
    lines.append(f' "claims": [\n{judged}\n ]')
    for key, arrays in (("choosing", choosing), ("values", values)):
        each = ",\n".join(f"  {dumps(name)}: {dumps(array, compact=True)}" for name, array in arrays.items())
        lines.append(f' "{key}": {{\n{each}\n }}')
    path = record_path(out, str(description["id"]))
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _number(value: Any) -> Any:
    """Return NaN for null, which is a number that was not finite."""
    return nan if value is None else value


def commit_of_code() -> dict[str, Any]:
    """Return the commit of the code, and whether files have changed since. Both are null without a repository."""
    packages = (Path(__file__).parents[1], Path(gyroscope.__file__).parent)
    commit = _git(packages[0], "rev-parse", "HEAD")
    changed = any(_git(package, "status", "--porcelain", "--", ".") for package in packages) if commit else None
    return {"commit": commit or None, "changed": changed}


def _git(folder: Path, *arguments: str) -> str:
    try:
        # A slow network disk must not delay a finished run.
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
