"""What a run says about itself: its quantities, layers, notes and sessions as rows, written and read with checks.

Whatever is read is checked for its type too: a file may be damaged, or made by somebody who means harm, and a viewer of
many runs must be able to refuse one of them with a sentence.
"""

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar, final

from gyroscope.store.codec import Value, row_checksum, verified
from gyroscope.store.schema import TABLES, LayerInfo, Quantity, column_list

# Of whole numbers: those beyond are not exact in JSON.
LARGEST = 2**53
# Parameter groups of an optimizer. A page makes a list of them.
MOST_GROUPS = 10_000
# Quantities that older runs hold under another name, because κ once named both.
RENAMED = {"kappa": "rotation_discrepancy", "signal": "signal_ratio"}

Kind = TypeVar("Kind")


@final
@dataclass(frozen=True)
class RunState:
    """What a run says about itself at some moment."""

    started: float
    resumed: tuple[float, ...]
    """When it was resumed."""
    heartbeat: float
    status: str
    dropped: int
    config: dict[str, Any]
    samples: int | None
    """Samples in the run; None: not known, as in schema 1, or because two writers counted at the same time."""
    scalars: int
    """Rows of logged scalars in the run."""
    notes: tuple[str, ...]
    layers: dict[str, tuple[int, LayerInfo]]


@final
@dataclass(frozen=True)
class Session:
    """The row of the table `session` that one writer owns; the fields are in the order of the columns."""

    id: int
    started: float
    heartbeat: float
    status: str
    host: str
    pid: int
    dropped: int
    config: str
    samples: int
    scalars: int


def write_session(connection: sqlite3.Connection, session: Session) -> None:
    """Store the row of a session, or replace the one with the same id."""
    _insert(connection, "session", astuple(session), otherwise="OR REPLACE")


def read_state(connection: sqlite3.Connection, version: int) -> RunState:
    """The state that the last transaction left; `ValueError` where it does not make sense."""
    sessions = _rows(connection, "session", version)
    if not sessions:
        raise ValueError("it has no session")
    _, _, heartbeat, status, _, _, _, config, samples, *scalars = sessions[-1]
    # Earlier versions allowed two writers at a time within a process, and each counted its own rows only.
    began = _time(sessions[-1][1], "the start")
    is_counted = all(_time(row[2], "the heartbeat") <= began for row in sessions[:-1])
    notes = [_of_type(text, str, "a note") for _, _, text in _rows(connection, "note", version)]
    return RunState(
        started=min(_time(row[1], "the start") for row in sessions),
        resumed=tuple(_time(row[1], "the start") for row in sessions[1:]),
        heartbeat=_time(heartbeat, "the heartbeat"),
        status=_of_type(status, str, "the status"),
        dropped=sum(_whole(row[6], "a count of dropped samples") for row in sessions),
        config=_of_type(json.loads(_of_type(config, str, "the configuration")), dict, "the configuration"),
        samples=None if samples is None or not is_counted else _whole(samples, "the count of samples"),
        # Schema 3 counts them; a run of an older one has none.
        scalars=_whole(scalars[0], "the count of scalars") if scalars else 0,
        notes=tuple(notes),
        layers={layer.name: (index, layer) for index, layer in read_layers(connection, version)},
    )


def write_quantities(connection: sqlite3.Connection, quantities: Sequence[Quantity]) -> None:
    """Store the run's quantities in their order."""
    for number, quantity in enumerate(quantities):
        texts = (quantity.name, quantity.unit, quantity.formula, quantity.source)
        _insert(connection, "quantity", (number, *texts, int(quantity.per_vector)))


def read_quantities(connection: sqlite3.Connection, version: int) -> list[Quantity]:
    """The run's quantities in their order, under their names of today."""
    quantities = []
    for _, *texts, per_vector in _rows(connection, "quantity", version):
        name, unit, formula, source = (_of_type(text, str, "a quantity") for text in texts)
        quantities.append(Quantity(RENAMED.get(name, name), unit, formula, source, bool(per_vector)))
    return quantities


def write_layer(connection: sqlite3.Connection, index: int, layer: LayerInfo) -> None:
    """Describe a layer; `read_layers` gives it back."""
    rows = None if layer.rows is None else json.dumps([int(row) for row in layer.rows])
    shape = json.dumps([int(size) for size in layer.shape])
    numbers = [int(n) for n in (layer.axis, layer.group_size, layer.vectors, layer.fan_in, layer.group)]
    columns = (index, layer.name, shape, layer.granularity, *numbers, layer.rule, rows)
    # After a failure it may come again.
    _insert(connection, "layer", columns, otherwise="OR REPLACE")


def read_layers(connection: sqlite3.Connection, version: int) -> list[tuple[int, LayerInfo]]:
    """The run's layers in their order, each with its index."""
    return [(index, _layer(columns)) for index, *columns in _rows(connection, "layer", version)]


def _layer(columns: Sequence[Any]) -> LayerInfo:
    name, shape, granularity, axis, group_size, vectors, fan_in, group, rule, rows = columns
    return LayerInfo(
        name=_of_type(name, str, "a layer's name"),
        shape=_whole_list(shape, "a layer's shape"),
        granularity=_of_type(granularity, str, "a layer's granularity"),
        axis=_of_type(axis, int, "a layer's axis"),
        group_size=_whole(group_size, "a layer's group size"),
        vectors=_whole(vectors, "a layer's number of vectors"),
        fan_in=_whole(fan_in, "a layer's fan-in"),
        group=_whole(group, "a layer's parameter group", MOST_GROUPS),
        rule=None if rule is None else _of_type(rule, str, "a layer's rule"),
        rows=None if rows is None else _whole_list(rows, "a layer's rows"),
    )


def write_note(connection: sqlite3.Connection, now: float, text: str) -> None:
    """Keep a warning that belongs to the run; the same text is kept once."""
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM note").fetchone()
    _insert(connection, "note", (last + 1, now, text), otherwise="OR IGNORE")


def write_scalar(connection: sqlite3.Connection, step: int, name: str, value: float) -> int:
    """Store a logged value instead of an earlier one of the same step and name; by how many rows the table grew."""
    replaced = connection.execute("DELETE FROM scalar WHERE step = ? AND name = ?", (step, name)).rowcount
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'scalar'").fetchone()
    # As SQLite gives it back: it has no NaN, and does not keep -0.0.
    stored = None if math.isnan(value) else value + 0.0
    _insert(connection, "scalar", (last + 1, step, name, stored))
    return 1 - replaced


def read_scalars(connection: sqlite3.Connection, version: int, after: int) -> list[tuple[int, int, str, float]]:
    """Rows (id, step, name, value) that were written after the one with the id `after`, in the order of writing."""
    if version < 3:
        return []
    rows = connection.execute(f"SELECT {column_list('scalar', version)} FROM scalar WHERE id > ? ORDER BY id", (after,))
    scalars = []
    for id, step, name, value in verified(rows, "scalar", version):
        number = math.nan if value is None else _of_type(value, float, "a scalar")
        place = _whole(step, "the step of a scalar")
        scalars.append((_whole(id, "the id of a scalar"), place, _of_type(name, str, "the name of a scalar"), number))
    return scalars


def _insert(connection: sqlite3.Connection, table: str, columns: tuple[Value, ...], otherwise: str = "") -> None:
    # `id` is a column like others here: a row that is found under another id does not match its checksum.
    marks = ", ".join("?" * len(TABLES[table]))
    connection.execute(f"INSERT {otherwise} INTO {table} VALUES ({marks})", (*columns, row_checksum(columns)))


def _rows(connection: sqlite3.Connection, table: str, version: int) -> list[Sequence[Any]]:
    """Rows without their checksums, which are verified; columns that schema 1 lacks are None."""
    rows = connection.execute(f"SELECT {column_list(table, version)} FROM {table} ORDER BY id")
    return list(verified(rows, table, version))


def _of_type(value: Any, kind: type[Kind], what: str) -> Kind:
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {repr(value)[:40]}, which is no {kind.__name__}")
    return value


def _whole(value: Any, what: str, largest: int = LARGEST) -> int:
    if not 0 <= _of_type(value, int, what) <= largest:
        raise ValueError(f"{what} is {repr(value)[:40]}, which is not between 0 and {largest:,}")
    return int(value)


def _time(value: Any, what: str) -> float:
    if not math.isfinite(_of_type(value, float, what)):
        raise ValueError(f"{what} is {value}, which is no time")
    return float(value)


def _whole_list(text: Value, what: str) -> tuple[int, ...]:
    items = _of_type(json.loads(_of_type(text, str, what)), list, what)
    return tuple(_whole(item, what) for item in items)
