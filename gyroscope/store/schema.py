"""The contents of a run: dataclasses of stored values, the bins of a histogram, and the tables of the database.

A run is a directory with one SQLite database, `run.sqlite`, made by `schema.sql`, which describes every column. The
descriptions are also in the table `documentation`, so that a file explains itself. SQLite has no checksums, so every
row has its own. Otherwise a flipped bit would change a number unnoticed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gyroscope._types import Array, Float32

SCHEMA_VERSION = 5
# The letters "Gyro" in the header of the file distinguish a run from any other SQLite database.
APPLICATION_ID = 0x4779726F

# Over the vectors of a layer, without NaN. qNN is a quantile in percent.
STATISTICS = ("mean", "rms", "q05", "q25", "q50", "q75", "q95", "min", "max")

# Half octaves from 2^-48 to 2^16 cover the values of float32 networks, from frozen to diverged weights.
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
    """A tensor of weights and how it splits into vectors.

    name         of the parameter in the model
    shape        of the tensor
    granularity  kind of a vector: neuron, group, tensor, or token of an embedding
    axis         dimension along which vectors are counted
    group_size   indices of that dimension in one vector
    vectors      their number
    fan_in       entries of one vector
    group        number of the parameter group
    rule         repr of the update rule when the layer was first seen. None if the optimizer is unknown
    rows         ids of the measured vectors. None means all
    """

    name: str
    shape: tuple[int, ...]
    granularity: str
    axis: int
    group_size: int
    vectors: int
    fan_in: int
    group: int
    rule: str | None
    rows: tuple[int, ...] | None


@dataclass(frozen=True)
class LayerSample:
    """One layer in one sample. Quantities are in the order of the run."""

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


SQL = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
COLUMN = re.compile(r"^    (\w+) ([A-Z ]+),? -- (.+)$", re.MULTILINE)
TABLES: dict[str, dict[str, tuple[str, str]]] = {
    table: {column: (kind, meaning) for column, kind, meaning in COLUMN.findall(body)}
    for table, body in re.findall(r"^CREATE TABLE (\w+) \((.+?)^\);", SQL, re.MULTILINE | re.DOTALL)
}
"""The columns of every table: SQL's declaration and the meaning."""


def create_statements() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the SQL that makes an empty run, with its arguments."""
    for statement in SQL.strip().split(";\n"):
        yield statement, ()
    for table, columns in TABLES.items():
        for column, (_, meaning) in columns.items():
            yield "INSERT INTO documentation VALUES (?, ?, ?)", (table, column, meaning)
    yield f"PRAGMA application_id = {APPLICATION_ID}", ()
    yield f"PRAGMA user_version = {SCHEMA_VERSION}", ()
