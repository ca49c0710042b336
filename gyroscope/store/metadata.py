"""Rows that describe a run: quantities, layers, notes, sessions and logged scalars, written and read with checks.

Types are checked too: a file may be damaged or hostile, and a viewer of many runs must refuse it with a sentence.
"""

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, TypeVar, final

from gyroscope._json import dumps
from gyroscope.store.codec import Value, row_checksum, verified
from gyroscope.store.schema import TABLES, LayerInfo, Quantity

# Whole numbers beyond this are not exact in JSON.
LARGEST = 2**53
# Parameter groups of an optimizer. A page lists them.
MOST_GROUPS = 10_000
# Entry of a session's configuration that is added when the run ends.
LAST_STEP = "last_step"

Kind = TypeVar("Kind")


@final
@dataclass(frozen=True)
class RunState:
    """A run's description of itself at some moment.

    resumed    times at which it was resumed
    last_step  number of its last step, if the run was closed
    """

    started: float
    resumed: tuple[float, ...]
    heartbeat: float
    status: str
    dropped: int
    config: dict[str, Any]
    last_step: int | None
    samples: int
    scalars: int
    notes: tuple[str, ...]
    layers: dict[str, tuple[int, LayerInfo]]


@final
@dataclass(frozen=True)
class Session:
    """The row of the table `session` that one writer owns. The fields are in the order of the columns."""

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


class ScalarRow(NamedTuple):
    """A logged value. Ids grow in the order of writing."""

    id: int
    step: int
    name: str
    value: float


def with_last_step(config: str, last_step: int) -> str:
    """Return a session's configuration with the number of the last step."""
    return dumps({**json.loads(config), LAST_STEP: last_step}, keep_non_finite=True)


def write_session(connection: sqlite3.Connection, session: Session) -> None:
    """Store the row of a session, or replace the one with the same id."""
    insert(connection, "session", astuple(session), otherwise="OR REPLACE")


def read_state(connection: sqlite3.Connection) -> RunState:
    """Return the state that the last transaction left. Raise `ValueError` if it is invalid."""
    sessions = [Session(*row) for row in _rows(connection, "session")]
    if not sessions:
        raise ValueError("it has no session")
    last = sessions[-1]
    started = [_time(session.started, "the start") for session in sessions]
    config = _of_type(json.loads(_text(last.config, "the configuration")), dict, "the configuration")
    last_step = config.pop(LAST_STEP, None)
    return RunState(
        started=min(started),
        resumed=tuple(started[1:]),
        heartbeat=_time(last.heartbeat, "the heartbeat"),
        status=_text(last.status, "the status"),
        dropped=sum(_whole(session.dropped, "a count of dropped samples") for session in sessions),
        config=config,
        last_step=None if last_step is None else _whole(last_step, "the last step"),
        samples=_whole(last.samples, "the count of samples"),
        scalars=_whole(last.scalars, "the count of scalars"),
        notes=tuple(_text(text, "a note") for _, _, text in _rows(connection, "note")),
        layers=read_layers(connection),
    )


def write_quantities(connection: sqlite3.Connection, quantities: Sequence[Quantity]) -> None:
    """Store the run's quantities in their order."""
    for number, quantity in enumerate(quantities):
        *texts, per_vector = astuple(quantity)
        insert(connection, "quantity", (number, *texts, int(per_vector)))


def read_quantities(connection: sqlite3.Connection) -> list[Quantity]:
    """Return the run's quantities in their order."""
    quantities = []
    for _, *texts, per_vector in _rows(connection, "quantity"):
        name, unit, formula, source = (_text(text, "a quantity") for text in texts)
        quantities.append(Quantity(name, unit, formula, source, bool(per_vector)))
    return quantities


def write_layer(connection: sqlite3.Connection, index: int, layer: LayerInfo) -> None:
    """Store the description of a layer. `read_layers` returns it."""
    # SQLite would store NumPy's integers as blobs.
    columns = [_plain(value) for value in astuple(layer)]
    # It may come again after a failure.
    insert(connection, "layer", (index, *columns), otherwise="OR REPLACE")


def read_layers(connection: sqlite3.Connection) -> dict[str, tuple[int, LayerInfo]]:
    """Return the run's layers by name in their order, each with its index."""
    layers = [(index, _layer(columns)) for index, *columns in _rows(connection, "layer")]
    return {layer.name: (index, layer) for index, layer in layers}


def _plain(value: Any) -> Value:
    if isinstance(value, tuple):
        return json.dumps([int(item) for item in value])
    return value if value is None or isinstance(value, str) else int(value)


def _layer(columns: Sequence[Any]) -> LayerInfo:
    name, shape, granularity, axis, group_size, vectors, fan_in, group, rule, rows = columns
    return LayerInfo(
        name=_text(name, "a layer's name"),
        shape=_whole_list(shape, "a layer's shape"),
        granularity=_text(granularity, "a layer's granularity"),
        axis=_of_type(axis, int, "a layer's axis"),
        group_size=_whole(group_size, "a layer's group size"),
        vectors=_whole(vectors, "a layer's number of vectors"),
        fan_in=_whole(fan_in, "a layer's fan-in"),
        group=_whole(group, "a layer's parameter group", MOST_GROUPS),
        rule=None if rule is None else _text(rule, "a layer's rule"),
        rows=None if rows is None else _whole_list(rows, "a layer's rows"),
    )


def write_note(connection: sqlite3.Connection, now: float, text: str) -> None:
    """Store a warning that belongs to the run. The same text is stored once."""
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM note").fetchone()
    insert(connection, "note", (last + 1, now, text), otherwise="OR IGNORE")


def write_scalar(connection: sqlite3.Connection, step: int, name: str, value: float) -> int:
    """Store a logged value instead of an earlier one of its step and name. Return by how many rows the table grew."""
    replaced = connection.execute("DELETE FROM scalar WHERE step = ? AND name = ?", (step, name)).rowcount
    # As SQLite returns it: it has no NaN, and does not keep -0.0.
    stored = None if math.isnan(value) else value + 0.0
    insert(connection, "scalar", (next_id(connection, "scalar"), step, name, stored))
    return 1 - replaced


def read_scalars(connection: sqlite3.Connection, after: int) -> list[ScalarRow]:
    """Return the rows that were written after the one with the id `after`, in the order of writing."""
    rows = connection.execute("SELECT * FROM scalar WHERE id > ? ORDER BY id", (after,))
    return [
        ScalarRow(
            _whole(id, "the id of a scalar"),
            _whole(step, "the step of a scalar"),
            _text(name, "the name of a scalar"),
            math.nan if value is None else _of_type(value, float, "a scalar"),
        )
        for id, step, name, value in verified(rows, "scalar")
    ]


def insert(connection: sqlite3.Connection, table: str, columns: tuple[Value, ...], otherwise: str = "") -> None:
    """Store a row and its checksum. The checksum includes the id, so a row under another id does not match."""
    marks = ", ".join("?" * len(TABLES[table]))
    connection.execute(f"INSERT {otherwise} INTO {table} VALUES ({marks})", (*columns, row_checksum(columns)))


def next_id(connection: sqlite3.Connection, table: str) -> int:
    """Return the next id of a table with AUTOINCREMENT. The checksum needs it before there is a row."""
    query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?"
    return int(connection.execute(query, (table,)).fetchone()[0]) + 1


def _rows(connection: sqlite3.Connection, table: str) -> list[Sequence[Any]]:
    return list(verified(connection.execute(f"SELECT * FROM {table} ORDER BY id"), table))


def _of_type(value: Any, kind: type[Kind], what: str) -> Kind:
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {repr(value)[:40]}, which is no {kind.__name__}")
    return value


def _text(value: Any, what: str) -> str:
    return _of_type(value, str, what)


def _whole(value: Any, what: str, largest: int = LARGEST) -> int:
    if not 0 <= _of_type(value, int, what) <= largest:
        raise ValueError(f"{what} is {repr(value)[:40]}, which is not between 0 and {largest:,}")
    return int(value)


def _time(value: Any, what: str) -> float:
    if not math.isfinite(_of_type(value, float, what)):
        raise ValueError(f"{what} is {value}, which is no time")
    return float(value)


def _whole_list(text: Value, what: str) -> tuple[int, ...]:
    items = _of_type(json.loads(_text(text, what)), list, what)
    return tuple(_whole(item, what) for item in items)
