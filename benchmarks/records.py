"""Records of benchmarks whose numbers the README quotes: a JSON file each in benchmarks/records."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "records"


def write_record(name: str, values: dict[str, Any]) -> Path:
    """Write what a benchmark measured, with the date, the commit and the machine's cores."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=FOLDER.parent, capture_output=True, text=True, check=True
    ).stdout.strip()
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        **values,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path
