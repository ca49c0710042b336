"""The trials that `gyroscope convert` quotes, from the records of `gyroscope lab run transfer`.

python -m tools.conversion_trials    write gyroscope/report/conversion_trials.json again
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gyroscope import theory

ROOT = Path(__file__).parent.parent
FILE = ROOT / "gyroscope" / "report" / "conversion_trials.json"
# How the sentence names each network.
NETWORKS = {"mlp": "an MLP", "cnn": "a CNN", "gpt": "a GPT"}
# Columns of a record for each optimizer: lr × ½, × 1 and × 2, or converted, tuned and converted back.
COLUMNS = 3


def trials() -> list[dict[str, Any]]:
    """Return the mean loss minus that of tuned AdamW for each conversion that was tried, in nats by network."""
    by_conversion: dict[tuple[str, str], dict[str, Any]] = {}
    for network, title in NETWORKS.items():
        for source, target, n, difference in _differences(network):
            trial = by_conversion.setdefault((source, target), {"from": source, "to": target, "n": n, "nats": {}})
            if trial["n"] != n:
                raise ValueError(f"{source} to {target} has n = {n} on {title}, and {trial['n']} on another network")
            trial["nats"][title] = round(difference, 3) + 0.0  # not -0.0
    return list(by_conversion.values())


def _differences(network: str) -> Iterator[tuple[str, str, int, float]]:
    """Yield optimizer, new optimizer, number of seeds and difference. Only theory rules have names for `convert`."""
    for name in ("conversion", "conversion_back"):
        path = ROOT / "results" / "transfer" / f"{name}_{network}.json"
        if not path.is_file():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        loss = np.array(record["values"]["loss"])
        optimizers = record["config"]["optimizers"]
        if name == "conversion":
            by_name = dict(zip(optimizers, loss.reshape(len(loss), -1, COLUMNS)[:, :, 1].mean(0), strict=True))
            others = {other: by_name[other] for other in optimizers if other != "AdamW"}
            pairs = [("AdamW", other, value - by_name["AdamW"]) for other, value in others.items()]
        else:
            back = loss[:, 1:].reshape(len(loss), -1, COLUMNS)[:, :, 2].mean(0)
            pairs = [(other, "AdamW", value - loss[:, 0].mean()) for other, value in zip(optimizers, back, strict=True)]
        yield from (
            (a, b, len(loss), float(value)) for a, b, value in pairs if hasattr(theory, a) and hasattr(theory, b)
        )


if __name__ == "__main__":
    FILE.write_text(json.dumps(trials(), indent=1) + "\n", encoding="utf-8")
