"""The first transaction of a writer: make the run's database, or check that an old one can be resumed."""

import json
import os
import socket
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyroscope.store.database import FILE, check, connect, is_empty, sentences, start_journal
from gyroscope.store.provenance import provenance, to_json
from gyroscope.store.schema import Layer, Quantity, RunError, statements

STALE = 30.0
"""Seconds without a heartbeat after which a run counts as stopped."""


@dataclass(frozen=True)
class Begun:
    """What a writer knows once its session stands in the database."""

    session: int
    layers: dict[str, tuple[int, Layer]]
    warning: str | None
    """That there is no write-ahead log, where that is so."""


def begin(file: Path, quantities: Sequence[Quantity], config: Mapping[str, Any], resume: bool) -> Begun:
    """Make a run, or resume the one that is there; everything that can be refused is refused here."""
    text = to_json({**provenance(), **config})
    if file.name != FILE:
        raise RunError(f"{file} is a file, but a run is a directory. Choose another path.")
    with sentences(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(connect(file, "rwc")) as connection:
            if not is_empty(connection):
                _resumable(connection, file, quantities, resume)
        warning = start_journal(file)
        with closing(connect(file, "rw")) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if is_empty(connection):
                _create(connection, quantities)
            else:  # checked again: another writer may have been faster
                _resumable(connection, file, quantities, resume)
            layers = {layer.name: (index, layer) for index, layer in read_layers(connection)}
            return Begun(_session(connection, text), layers, warning)


def _create(connection: sqlite3.Connection, quantities: Sequence[Quantity]) -> None:
    for statement, arguments in statements():
        connection.execute(statement, arguments)
    connection.executemany(
        "INSERT INTO quantity (id, name, unit, formula, source, per_vector) VALUES (?, ?, ?, ?, ?, ?)",
        [(i, one.name, one.unit, one.formula, one.source, one.per_vector) for i, one in enumerate(quantities)],
    )


def _session(connection: sqlite3.Connection, config: str) -> int:
    now = time.time()
    cursor = connection.execute(
        "INSERT INTO session (started, heartbeat, status, host, pid, dropped, config) VALUES (?, ?, ?, ?, ?, 0, ?)",
        (now, now, "running", socket.gethostname(), os.getpid(), config),
    )
    return int(cursor.lastrowid or 0)


def _resumable(connection: sqlite3.Connection, file: Path, quantities: Sequence[Quantity], resume: bool) -> None:
    check(connection, file)
    directory = file.parent
    if not resume:
        raise RunError(f"{directory} already holds a run. Choose another path, or pass resume=True to continue it.")
    mine = [(one.name, one.per_vector) for one in quantities]
    there = [(one.name, one.per_vector) for one in read_quantities(connection)]
    if mine != there:
        differ = ", ".join(sorted({name for name, _ in set(mine) ^ set(there)})) or "only their order"
        raise RunError(
            f"{directory} holds a run that measures other quantities (what differs: {differ}) and cannot be resumed. "
            "Start a new run at another path."
        )
    for pid, heartbeat in connection.execute(
        "SELECT pid, heartbeat FROM session WHERE status = 'running' AND host = ? AND pid != ?",
        (socket.gethostname(), os.getpid()),
    ):
        if time.time() - heartbeat > STALE or not _alive(pid):
            continue
        raise RunError(f"{directory} is being written by process {pid}. Wait until it ends, or choose another path.")


def _alive(pid: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 is a real signal
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def read_quantities(connection: sqlite3.Connection) -> list[Quantity]:
    """The run's quantities in their order."""
    rows = connection.execute("SELECT name, unit, formula, source, per_vector FROM quantity ORDER BY id")
    return [Quantity(name, unit, formula, source, bool(flag)) for name, unit, formula, source, flag in rows]


def write_layer(connection: sqlite3.Connection, index: int, layer: Layer) -> None:
    """Describe a layer; `read_layers` gives it back."""
    rows = None if layer.rows is None else json.dumps([int(row) for row in layer.rows])
    shape = json.dumps([int(size) for size in layer.shape])
    numbers = [int(n) for n in (layer.axis, layer.group_size, layer.vectors, layer.fan_in, layer.group)]
    connection.execute(
        "INSERT INTO layer VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (index, layer.name, shape, layer.granularity, *numbers, layer.rule, rows),
    )


def read_layers(connection: sqlite3.Connection) -> list[tuple[int, Layer]]:
    """The run's layers in their order, each with its index."""
    found = []
    for index, name, shape, granularity, *numbers, rule, rows in connection.execute("SELECT * FROM layer ORDER BY id"):
        axis, group_size, vectors, fan_in, group = numbers
        measured = None if rows is None else tuple(json.loads(rows))
        size = tuple(json.loads(shape))
        layer = Layer(name, size, granularity, axis, group_size, vectors, fan_in, group, rule, measured)
        found.append((index, layer))
    return found
