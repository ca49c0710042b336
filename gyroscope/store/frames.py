"""Runs as one long table: a row per run, step, layer and quantity. Logged scalars have no layer."""

import csv
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gyroscope._files import check_output, replacing
from gyroscope._types import Array, Int64
from gyroscope.store.schema import STATISTICS

if TYPE_CHECKING:
    from gyroscope.store.reader import Run

COLUMNS = ("run", "step", "layer", "quantity", *STATISTICS)
# Libraries of data frames, the preferred one first.
LIBRARIES = ("pandas", "polars")


class Block(NamedTuple):
    """The rows of one quantity: (steps, statistics) values. A scalar has only a mean."""

    run: str
    layer: str
    quantity: str
    steps: Int64
    values: Array

    @property
    def columns(self) -> dict[str, Any]:
        """The rows as columns by name."""
        run, layer, quantity = ([name] * len(self.steps) for name in (self.run, self.layer, self.quantity))
        return dict(zip(COLUMNS, (run, self.steps, layer, quantity, *self.values.T), strict=True))


def frame(runs: Sequence["Run"]) -> Any:
    """Return runs as one data frame of pandas, or of polars if pandas is not installed.

    The columns are run (the name of its folder), step, layer, quantity, and one for each statistic over the layer's
    vectors: mean, rms, quantiles, min and max. A quantity per layer, such as a prediction, is one number, the same in
    all of them. Logged scalars, such as the loss, have an empty layer and only a mean.
    """
    library = next(filter(None, map(_imported, LIBRARIES)), None)
    if library is None:
        raise ValueError(f"frame needs {' or '.join(LIBRARIES)}, which is not installed: pip install {LIBRARIES[0]}")
    blocks = [block.columns for block in _blocks(runs)]
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, ())
    if blocks:
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in COLUMNS}
    return library.DataFrame(columns)


def _imported(name: str) -> Any:
    """Return a module, or None if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def export(runs: Sequence["Run"], path: str | os.PathLike[str]) -> None:
    """Write runs as the table of `frame` to a .csv or .parquet file."""
    formats = {".csv": _write_csv, ".parquet": _write_parquet}
    suffix = Path(path).suffix
    if suffix not in formats:
        raise ValueError(f"{path} ends in {suffix!r}: end it in .csv or .parquet to choose the format")
    if suffix == ".parquet" and _imported("pyarrow") is None:
        raise ValueError(f"{path} needs pyarrow, which is not installed: pip install pyarrow, or export to .csv")
    check_output(path, [run.path for run in runs])
    with replacing(path) as partial:
        formats[suffix](runs, partial)


def _blocks(runs: Sequence["Run"]) -> Iterator[Block]:
    names = [run.path.name for run in runs]
    for run, name in zip(runs, names, strict=True):
        # Folders of one name are distinguished by their paths.
        label = name if names.count(name) == 1 else str(run.path)
        for layer in run.layers:
            for quantity in run.quantities:
                yield from _measured(run, label, layer, quantity)
        for scalar in run.scalars:
            steps, values = run.scalar(scalar)
            block = np.full((len(steps), len(STATISTICS)), np.nan)
            block[:, 0] = values
            yield Block(label, "", scalar, steps, block)


def _measured(run: "Run", label: str, layer: str, quantity: str) -> Iterator[Block]:
    block = np.column_stack([run.series(layer, quantity, stat) for stat in STATISTICS])
    # A quantity that a layer never had would only add empty cells.
    there = ~np.isnan(block).all(axis=1)
    if there.any():
        yield Block(label, layer, quantity, run.steps[there], block[there])


def _write_csv(runs: Sequence["Run"], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for run, layer, quantity, steps, block in _blocks(runs):
            # Nine digits restore a float32 exactly, 17 a float64.
            digits = 9 if layer else 17
            for step, numbers in zip(steps.tolist(), block.tolist(), strict=True):
                values = [None if x != x else float(f"{x:.{digits}g}") for x in numbers]
                writer.writerow([run, step, layer, quantity, *values])


def _write_parquet(runs: Sequence["Run"], path: Path) -> None:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    kinds = (arrow.string(), arrow.int64(), arrow.string(), arrow.string(), *[arrow.float64()] * len(STATISTICS))
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:
        # One layer at a time, so that memory does not grow with the number of layers.
        for _, blocks in groupby(_blocks(runs), key=lambda block: block[:2]):
            tables = [arrow.table(block.columns, schema=schema) for block in blocks]
            writer.write_table(arrow.concat_tables(tables))
