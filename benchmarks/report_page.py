"""How long does a run's page take to make, and how large is it? 100 layers, 1,000 and 20,000 samples.

python benchmarks/report_page.py [directory]    the runs are made there, once: 2 GB
"""

import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from synthetic_runs import LAYERS, write_run

from gyroscope.render.run_page import page
from gyroscope.report import gather
from gyroscope.store.rows import blob_checksum, row_checksum
from gyroscope.store.schema import LAYER_BITS, TABLES

SHORT = 1_000
LONG = 20_000
# Seconds, unless named otherwise.
LIMITS = {"page, 1,000 samples": 5.0, "page in megabytes": 6.0, "page, 20,000 samples": 10.0}


def lengthen(source: Path, path: Path, times: int) -> Path:
    """The same run many times over; layers change places each time, so that no layer's numbers come twice."""
    if path.exists():
        return path
    path.mkdir()
    with closing(sqlite3.connect(source / "run.sqlite")) as old, closing(sqlite3.connect(path / "run.sqlite")) as new:
        old.backup(new)
        # Rows made by SQL need checksums too, or they would not be read.
        new.create_function("row_checksum", -1, lambda *values: row_checksum(values))
        new.create_function("blob_checksum", -1, blob_checksum)
        ids, steps = new.execute("SELECT max(id), max(step) + 10 FROM sample").fetchone()
        for i in range(1, times):
            columns = "id + ?1, step + ?2, time, layers, raw_layers"
            new.execute(
                f"INSERT INTO sample SELECT {columns}, row_checksum({columns}) FROM sample WHERE id <= ?3",
                (i * ids, i * steps, ids),
            )
            key = f"((key >> {LAYER_BITS}) + ?1) << {LAYER_BITS} | ((key & {(1 << LAYER_BITS) - 1}) + ?2) % {LAYERS}"
            for table, blobs in (("measurement", "numbers"), ("distribution", "histograms, extremes")):
                columns = f"{key}, {blobs}"
                new.execute(
                    f"INSERT INTO {table} SELECT {columns}, blob_checksum({columns}) FROM {table} WHERE key < ?3",
                    (i * ids, 7 * i, (ids + 1) << LAYER_BITS),
                )
            new.commit()
        new.execute("UPDATE session SET samples = ?", (times * ids,))
        columns = ", ".join(list(TABLES["session"])[:-1])
        new.execute(f"UPDATE session SET checksum = row_checksum({columns})")
        new.commit()
    return path


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="gyroscope-report-"))
    folder.mkdir(parents=True, exist_ok=True)
    short = write_run(folder / "short", SHORT)
    long = lengthen(short, folder / "long", LONG // SHORT)
    measured = {
        "page, 1,000 samples": statistics.median(seconds(lambda: page(gather([short]))) for _ in range(5)),
        "page in megabytes": len(page(gather([short])).encode()) / 1e6,
        "page, 20,000 samples": statistics.median(seconds(lambda: page(gather([long]))) for _ in range(3)),
    }
    for name, value in measured.items():
        print(f"{name:22} {value:8.3f}   limit {LIMITS[name]:g}")
    return int(any(value > LIMITS[name] for name, value in measured.items()))


if __name__ == "__main__":
    sys.exit(main())
