"""The contents of a run: dataclasses for what is stored, the bins of a histogram, and the tables of the database.

A run is a directory with one SQLite database, `run.sqlite`. `TABLES` describes every column, and the database is made
from it. The descriptions are also in the table `documentation`, so a file explains itself. SQLite has no checksums, so
every row that is read has one: a flipped bit would otherwise change a number without a sign.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gyroscope._types import Array, Float32

SCHEMA_VERSION = 4
# The letters "Gyro" in the header of the file distinguish a run from any other SQLite database.
APPLICATION_ID = 0x4779726F

# Over the vectors of a layer, without NaN. qNN is a quantile in percent.
STATISTICS = ("mean", "rms", "q05", "q25", "q50", "q75", "q95", "min", "max")

# Half octaves from 2^-48 to 2^16 cover what a float32 network has, from frozen weights to a diverged one.
BINS = 128
# A row about one layer in one sample has the key `sample.id << LAYER_BITS | layer.id`: in the order of writing.
LAYER_BITS = 20
# A row about one quantity of all vectors of it has the key `that key << QUANTITY_BITS | place of the quantity`.
QUANTITY_BITS = 8


class RunError(ValueError):
    """A run that cannot be opened, made or resumed. The message gives the reason and the remedy."""


class RunExistsError(RunError):
    """A run that already exists at the path of a new one."""


@dataclass(frozen=True)
class Quantity:
    """A measured quantity: a distribution over a layer's vectors if `per_vector`, otherwise one number per layer."""

    name: str
    unit: str
    formula: str
    source: str
    per_vector: bool = True


@dataclass(frozen=True)
class LayerInfo:
    """A tensor of weights and how it splits into vectors."""

    name: str
    shape: tuple[int, ...]
    granularity: str
    axis: int
    group_size: int
    vectors: int
    fan_in: int
    group: int
    rule: str | None
    """repr of the update rule when the layer was first seen. None if the optimizer is unknown."""
    rows: tuple[int, ...] | None
    """Ids of the measured vectors. None means all."""


@dataclass(frozen=True)
class LayerSample:
    """One layer in one sample. Quantities are in the order of the run's."""

    statistics: Float32
    """(per-vector quantities, len(STATISTICS)). NaN if undetermined."""
    scalars: Float32
    """(per-layer quantities,)"""
    histograms: npt.NDArray[np.uint32]
    """(per-vector quantities, BINS) counts. They merge by adding."""
    extremes: npt.NDArray[np.int32]
    """(per-vector quantities, 2) ids of the vectors with the smallest and the largest value. -1 means none."""
    raw: Float32 | None = None
    """(per-vector quantities, vectors) of layers whose vectors are all kept."""


@dataclass(frozen=True)
class Sample:
    """All layers at one step. `time` is in Unix seconds. Its arrays must not change after `Writer.put`."""

    step: int
    time: float
    layers: Mapping[int, LayerSample]


def bin_edges() -> Array:
    """Return the BINS + 1 edges of every histogram: bin k counts 2^((k-96)/2) <= |x| < 2^((k-95)/2).

    The first bin also counts everything smaller, including zeros, and the last bin everything larger. All quantities
    and runs have the same edges, so histograms of other steps, layers, ranks or runs merge by adding.

    >>> edges = bin_edges()
    >>> float(edges[96]), float(edges[98]), len(edges)
    (1.0, 2.0, 129)
    """
    return np.exp2((np.arange(BINS + 1) - 96) / 2)


def count_bins(values: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Return the histogram of the magnitudes of `values` over `bin_edges()`, without NaN.

    >>> np.flatnonzero(count_bins([1.0, -1.2, 0.0, np.nan])), count_bins([1.0, -1.2, 0.0, np.nan])[96]
    (array([ 0, 96]), np.uint32(2))
    """
    magnitudes = np.abs(np.asarray(values, dtype=np.float64).ravel())
    bins = np.searchsorted(bin_edges()[1:-1], magnitudes[~np.isnan(magnitudes)], side="right")
    return np.bincount(bins, minlength=BINS).astype(np.uint32)


CHECKSUM = ("INTEGER NOT NULL", "CRC-32 of the other columns, see rows.row_checksum")
BLOB_CHECKSUM = ("INTEGER NOT NULL", "CRC-32 of the blobs, begun with the key, see rows.blob_checksum")
KEY = f"sample.id << {LAYER_BITS} | layer.id"

TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "session": {
        "id": ("INTEGER PRIMARY KEY", "1 for the start of the run, one more for each time it was resumed"),
        "started": ("REAL NOT NULL", "Unix seconds"),
        "heartbeat": ("REAL NOT NULL", "Unix seconds when the writer last gave a sign of life"),
        "status": ("TEXT NOT NULL", "running, finished, failed or stopped, as the writer last knew it"),
        "host": ("TEXT NOT NULL", "name of the machine that writes"),
        "pid": ("INTEGER NOT NULL", "process that writes"),
        "dropped": ("INTEGER NOT NULL", "samples that could not be stored"),
        "config": ("TEXT NOT NULL", "JSON; NaN and Infinity as Python's json and JSON5 write them"),
        "last_step": ("INTEGER", "number of the last step, sampled or not; NULL: not closed yet"),
        "samples": ("INTEGER NOT NULL", "samples in the run when this session last wrote"),
        "scalars": ("INTEGER NOT NULL", "rows of the table scalar when this session last wrote"),
        "checksum": CHECKSUM,
    },
    "quantity": {
        "id": ("INTEGER PRIMARY KEY", "place in the run's list of quantities, from 0"),
        "name": ("TEXT NOT NULL UNIQUE", "name in the API"),
        "unit": ("TEXT NOT NULL", "unit, empty for a pure number"),
        "formula": ("TEXT NOT NULL", "how it is computed"),
        "source": ("TEXT NOT NULL", "paper and equation"),
        "per_vector": ("INTEGER NOT NULL", "1: a distribution over the vectors of a layer; 0: one number per layer"),
        "checksum": CHECKSUM,
    },
    "layer": {
        "id": ("INTEGER PRIMARY KEY", "order in which layers were first seen, from 0"),
        "name": ("TEXT NOT NULL UNIQUE", "name of the parameter in the model"),
        "shape": ("TEXT NOT NULL", "JSON list: shape of the tensor"),
        "granularity": ("TEXT NOT NULL", "neuron, group, tensor, or token of an embedding: what is one weight vector"),
        "axis": ("INTEGER NOT NULL", "dimension along which the vectors are counted"),
        "group_size": ("INTEGER NOT NULL", "neurons that make one vector"),
        "vectors": ("INTEGER NOT NULL", "number of weight vectors"),
        "fan_in": ("INTEGER NOT NULL", "entries of one vector"),
        "param_group": ("INTEGER NOT NULL", "index of the optimizer's parameter group"),
        "rule": ("TEXT", "the theory's rule when the layer was first seen; NULL: unknown"),
        "rows": ("TEXT", "JSON list: ids of the measured vectors; NULL: all"),
        "checksum": CHECKSUM,
    },
    "sample": {
        "id": ("INTEGER PRIMARY KEY AUTOINCREMENT", "order of writing; never used twice, so a reader follows it"),
        "step": ("INTEGER NOT NULL UNIQUE", "optimizer step, from 0; measured again, the later sample replaces"),
        "time": ("REAL NOT NULL", "Unix seconds"),
        "layers": ("BLOB NOT NULL", "bit layer.id, lowest first: 1 where measurement has a row"),
        "raw_layers": ("BLOB NOT NULL", "the same for rows of the table vectors"),
        "checksum": CHECKSUM,
    },
    "measurement": {
        "key": ("INTEGER PRIMARY KEY", KEY),
        "numbers": (
            "BLOB NOT NULL",
            f"float32, little-endian: {', '.join(STATISTICS)} of each quantity with per_vector = 1, in the order of "
            "quantity.id; then one number for each with per_vector = 0; NaN: undetermined",
        ),
        "checksum": BLOB_CHECKSUM,
    },
    "distribution": {
        "key": ("INTEGER PRIMARY KEY", KEY),
        "histograms": (
            "BLOB NOT NULL",
            f"zlib of uint32, little-endian: {BINS} counts for each quantity with per_vector = 1; bin k counts "
            "2^((k-96)/2) <= |x| < 2^((k-95)/2), the first also all below, the last all above",
        ),
        "extremes": (
            "BLOB NOT NULL",
            "int32, little-endian: for each quantity with per_vector = 1 the ids of the vectors with the smallest and "
            "the largest value; -1: none",
        ),
        "checksum": BLOB_CHECKSUM,
    },
    "vectors": {
        "key": ("INTEGER PRIMARY KEY", f"({KEY}) << {QUANTITY_BITS} | place among those with per_vector = 1"),
        "numbers": (
            "BLOB NOT NULL",
            "float32, little-endian: the quantity of every measured vector; only layers chosen by the user have rows",
        ),
        "checksum": BLOB_CHECKSUM,
    },
    "scalar": {
        "id": ("INTEGER PRIMARY KEY AUTOINCREMENT", "order of writing; never used twice, so a reader follows it"),
        "step": ("INTEGER NOT NULL", "optimizer step, from 0; logged again, the later value replaces"),
        "name": ("TEXT NOT NULL", "name under which training logged the value, for example loss"),
        "value": ("REAL", "the value; NULL: NaN, which SQLite does not have"),
        "checksum": CHECKSUM,
    },
    "note": {
        "id": ("INTEGER PRIMARY KEY", "order of writing"),
        "time": ("REAL NOT NULL", "Unix seconds"),
        "text": ("TEXT NOT NULL UNIQUE", "a warning that belongs to the run; stored once"),
        "checksum": CHECKSUM,
    },
    "documentation": {
        "table_name": ("TEXT NOT NULL", "a table of this database"),
        "column_name": ("TEXT NOT NULL", "a column of it"),
        "meaning": ("TEXT NOT NULL", "what the column holds, its unit and layout"),
    },
}


def create_statements() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the SQL that makes an empty run, with its arguments."""
    for table, columns in TABLES.items():
        body = ", ".join(f"{column} {kind}" for column, (kind, _) in columns.items())
        yield f"CREATE TABLE {table} ({body})", ()
    # Finds the value that a later one of the same step replaces.
    yield "CREATE UNIQUE INDEX scalar_step_name ON scalar (step, name)", ()
    for table, columns in TABLES.items():
        for column, (_, meaning) in columns.items():
            yield "INSERT INTO documentation VALUES (?, ?, ?)", (table, column, meaning)
    yield f"PRAGMA application_id = {APPLICATION_ID}", ()
    yield f"PRAGMA user_version = {SCHEMA_VERSION}", ()
