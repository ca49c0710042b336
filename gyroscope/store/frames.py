"""Runs as one long table: a row per run, step, layer and quantity. Logged scalars have no layer."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gyroscope._files import check_output, replacing
from gyroscope._types import Array, Int64
from gyroscope.spelling import one_of
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


def frame(runs: Sequence["Run"], library: str | None = None) -> Any:
    """Return runs as one data frame of pandas or polars, whichever is installed, or of the given `library`.

    The columns are run (the name of its folder), step, layer, quantity, and one for each statistic over the layer's
    vectors: mean, rms, quantiles, min and max. A quantity per layer, such as a prediction, is one number, the same in
    all of them. Logged scalars, such as the loss, have an empty layer and only a mean.
    """
    chosen = _library(library)
    blocks = [block.columns for block in _blocks(runs)]
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, ())
    if blocks:
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in COLUMNS}
    return import_module(chosen).DataFrame(columns)


def _library(library: str | None) -> str:
    wanted = LIBRARIES if library is None else (one_of("library", library, LIBRARIES),)
    for name in wanted:
        if _is_installed(name):
            return name
    raise ValueError(f"frame needs {' or '.join(wanted)}, which is not installed: pip install {wanted[0]}")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module without a spec, such as a stub in sys.modules
        return False


def export(runs: Sequence["Run"], path: str | os.PathLike[str]) -> None:
    """Write runs as the table of `frame` to a .csv, .json or .parquet file. A .json file is a list of rows."""
    formats = {".csv": _write_csv, ".json": _write_json, ".parquet": _write_parquet}
    suffix = Path(path).suffix
    if suffix not in formats:
        raise ValueError(f"{path} ends in {suffix!r}: end it in .csv, .json or .parquet to choose the format")
    if suffix == ".parquet" and not any(map(_is_installed, ("pyarrow", "polars"))):
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


def _rows(runs: Sequence["Run"]) -> Iterator[list[Any]]:
    """Yield the rows as plain values, without NaN. Nine digits restore a float32 exactly, 17 a float64."""
    for run, layer, quantity, steps, block in _blocks(runs):
        digits = 9 if layer else 17
        for step, numbers in zip(steps.tolist(), block.tolist(), strict=True):
            values = [None if x != x else float(f"{x:.{digits}g}") for x in numbers]
            yield [run, step, layer, quantity, *values]


def _write_csv(runs: Sequence["Run"], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(_rows(runs))


def _write_json(runs: Sequence["Run"], path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        start = "[\n"
        for row in _rows(runs):
            # JSON has no infinity.
            values = (None if value in (np.inf, -np.inf) else value for value in row)
            file.write(start + json.dumps(dict(zip(COLUMNS, values, strict=True)), ensure_ascii=False))
            start = ",\n"
        file.write("[]\n" if start == "[\n" else "\n]\n")


def _write_parquet(runs: Sequence["Run"], path: Path) -> None:
    if _is_installed("pyarrow"):
        _write_arrow(runs, path)
    else:
        frame(runs, "polars").write_parquet(path)


def _write_arrow(runs: Sequence["Run"], path: Path) -> None:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    kinds = (arrow.string(), arrow.int64(), arrow.string(), arrow.string(), *[arrow.float64()] * len(STATISTICS))
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:
        # One layer at a time, so that memory does not grow with the number of layers.
        for _, blocks in groupby(_blocks(runs), key=lambda block: block[:2]):
            tables = [arrow.table(block.columns, schema=schema) for block in blocks]
            writer.write_table(arrow.concat_tables(tables))
