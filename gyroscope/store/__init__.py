"""Measurements on disk: one SQLite database per run, written by a thread, followed live by any number of readers.

with Writer("runs/first", quantities=[…], config={…}) as writer:
    writer.put(Sample(step, time(), {writer.add_layer(layer): LayerSample(…)}))
    writer.put_scalars([(step, {"loss": loss})])

run = open_run("runs/first")
run.series("fc.weight", "angular_update")
steps, losses = run.scalar("loss")
export([run, open_run("runs/second")], "runs.parquet")
"""

from gyroscope.store.frames import export, frame
from gyroscope.store.reader import Run, open_run
from gyroscope.store.schema import (
    BINS,
    SCHEMA_VERSION,
    STATISTICS,
    LayerInfo,
    LayerSample,
    Quantity,
    RunError,
    RunExistsError,
    Sample,
    bin_edges,
)
from gyroscope.store.writer import Writer

__all__ = [
    "BINS",
    "SCHEMA_VERSION",
    "STATISTICS",
    "LayerInfo",
    "LayerSample",
    "Quantity",
    "Run",
    "RunError",
    "RunExistsError",
    "Sample",
    "Writer",
    "bin_edges",
    "export",
    "frame",
    "open_run",
]
