"""A run as one long table for other programs: a row per step, layer and quantity; logged scalars have no layer."""

import csv
import os
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gyroscope.store.schema import STATISTICS

if TYPE_CHECKING:
    from gyroscope.store.reader import Run

# Layer, quantity, steps, and (steps, statistics). A quantity per layer and a scalar have one number, in the first
# column; a scalar has an empty layer.
Block = tuple[str, str, npt.NDArray[np.int64], npt.NDArray[np.float64]]


def export(run: "Run", path: str | os.PathLike[str]) -> None:
    """Write `run` to a .csv or, with pyarrow, a .parquet file."""
    path = Path(path)
    formats = {".csv": _csv, ".parquet": _parquet}
    if path.suffix not in formats:
        raise ValueError(f"{path} ends in {path.suffix!r}. End it in .csv or .parquet to choose the format.")
    formats[path.suffix](run, path)


def _blocks(run: "Run") -> Iterator[Block]:
    steps = run.steps
    for layer in run.layers:
        for name, quantity in run.quantities.items():
            block = np.full((len(steps), len(STATISTICS)), np.nan)
            for i, stat in enumerate(STATISTICS if quantity.per_vector else STATISTICS[:1]):
                block[:, i] = run.series(layer, name, stat)
            # A quantity that a layer never had would be a table of empty cells.
            there = ~np.isnan(block).all(axis=1)
            if there.any():
                yield layer, name, steps[there], block[there]
    for name in run.scalars:
        logged, values = run.scalar(name)
        block = np.full((len(logged), len(STATISTICS)), np.nan)
        block[:, 0] = values
        yield "", name, logged, block


def _csv(run: "Run", path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "layer", "quantity", *STATISTICS])
        for layer, quantity, steps, block in _blocks(run):
            for step, numbers in zip(steps.tolist(), block.tolist(), strict=True):
                # Nine digits give a float32 back exactly, 17 a float64; only NaN differs from itself.
                digits = 9 if layer else 17
                writer.writerow([step, layer, quantity, *("" if x != x else f"{x:.{digits}g}" for x in numbers)])


def _parquet(run: "Run", path: Path) -> None:
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise RuntimeError(
            f"{path} needs pyarrow, which is not installed. Run `pip install pyarrow`, or export to .csv."
        ) from error
    fields = [("step", arrow.int64()), ("layer", arrow.string()), ("quantity", arrow.string())]
    schema = arrow.schema([*fields, *((stat, arrow.float32()) for stat in STATISTICS)])
    with parquet.ParquetWriter(path, schema) as writer:
        for _, blocks in groupby(_blocks(run), key=lambda block: block[0]):
            tables = [arrow.Table.from_arrays(_columns(*block), schema=schema) for block in blocks]
            writer.write_table(arrow.concat_tables(tables))


def _columns(layer: str, quantity: str, steps: npt.NDArray[np.int64], block: npt.NDArray[np.float64]) -> list[Any]:
    n = len(steps)
    return [steps, [layer] * n, [quantity] * n, *block.T.astype(np.float32)]
