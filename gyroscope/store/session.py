"""The first transaction of a writer: make the run's database, or check that an old one can be resumed."""

import os
import platform
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import gyroscope
from gyroscope._json import dumps
from gyroscope.store.database import FILE, check, connect, is_empty, run_errors, start_journal
from gyroscope.store.metadata import Session, read_layers, read_quantities, write_quantities, write_session
from gyroscope.store.schema import SCHEMA_VERSION, LayerInfo, Quantity, RunError, RunExistsError, create_statements

# Seconds between heartbeats when no sample comes.
HEARTBEAT = 4.0
# Seconds without a heartbeat after which a run counts as stopped.
STALE = 30.0


@final
@dataclass(frozen=True)
class OpenedRun:
    """What a writer knows once its session is in the database."""

    session: Session
    layers: dict[str, tuple[int, LayerInfo]]
    warning: str | None
    """That there is no write-ahead log, where that is so."""


def open_for_writing(file: Path, quantities: Sequence[Quantity], config: Mapping[str, Any], resume: bool) -> OpenedRun:
    """Make a run, or resume the one that is there; everything that can be refused is refused here."""
    # First of all: encoding calls the user's code, which may be slow, and holds no lock meanwhile.
    text = dumps({**provenance(), **config}, keep_non_finite=True)
    if file.name != FILE:
        raise RunError(f"{file} is a file, but a run is a directory. Choose another path.")
    with run_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(connect(file, "rwc")) as connection:
            if not is_empty(connection):
                _check_resumable(connection, file, quantities, resume)
        # Before the transaction: SQLite changes the kind of journal only outside of one.
        warning = start_journal(file)
        with closing(connect(file, "rw")) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if is_empty(connection):
                for statement, arguments in create_statements():
                    connection.execute(statement, arguments)
                write_quantities(connection, quantities)
            else:  # checked again under the lock: another writer may have been faster
                _check_resumable(connection, file, quantities, resume)
            layers = {layer.name: (index, layer) for index, layer in read_layers(connection, SCHEMA_VERSION)}
            session = _new_session(connection, text)
            write_session(connection, session)
            return OpenedRun(session, layers, warning)


def _new_session(connection: sqlite3.Connection, config: str) -> Session:
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM session").fetchone()
    (samples,) = connection.execute("SELECT count(*) FROM sample").fetchone()
    (scalars,) = connection.execute("SELECT count(*) FROM scalar").fetchone()
    now = time.time()
    return Session(last + 1, now, now, "running", socket.gethostname(), os.getpid(), 0, config, samples, scalars)


def _check_resumable(connection: sqlite3.Connection, file: Path, quantities: Sequence[Quantity], resume: bool) -> None:
    version = check(connection, file)
    directory = file.parent
    if not resume:
        raise RunExistsError(
            f"{directory} already holds a run. Choose another path, or pass resume=True to continue it."
        )
    if version < SCHEMA_VERSION:
        raise RunError(
            f"{directory} holds a run of an older Gyroscope (schema {version}), which can be read but not resumed. "
            "Start a new run at another path."
        )
    wanted = [(quantity.name, quantity.per_vector) for quantity in quantities]
    stored = [(quantity.name, quantity.per_vector) for quantity in read_quantities(connection, version)]
    if wanted != stored:
        differ = ", ".join(sorted({name for name, _ in set(wanted) ^ set(stored)})) or "only their order"
        raise RunError(
            f"{directory} holds a run that measures other quantities (what differs: {differ}) and cannot be resumed. "
            "Start a new run at another path."
        )
    here = socket.gethostname()
    for id, host, pid, heartbeat in connection.execute(
        "SELECT id, host, pid, heartbeat FROM session WHERE status = 'running'"
    ).fetchall():
        # A session of this process was closed before (`Writer`), or its process had the same number.
        if time.time() - heartbeat > STALE or (host, pid) == (here, os.getpid()):
            continue
        if _is_alive(pid) if host == here else _beats(connection, id, heartbeat):
            where = "" if host == here else f" on {host}"
            raise RunError(
                f"{directory} is being written by process {pid}{where}. Wait until it ends, or choose another path."
            )


def _beats(connection: sqlite3.Connection, id: int, heartbeat: float) -> bool:
    """Return whether a writer of another machine is alive: whether its heartbeat changes within three of them."""
    deadline = time.monotonic() + 3 * HEARTBEAT
    while time.monotonic() < deadline:
        time.sleep(HEARTBEAT / 8)
        (now,) = connection.execute("SELECT max(heartbeat) FROM session WHERE id = ?", (id,)).fetchone()
        if now != heartbeat:
            return True
    return False


def _is_alive(pid: int) -> bool:
    # Elsewhere signal 0 is a real signal.
    if os.name != "posix":
        return False
    try:
        with suppress(PermissionError):  # it is there, and belongs to somebody else
            os.kill(pid, 0)  # sent to nobody; only its errors matter
    except ProcessLookupError:
        return False
    return True


def provenance() -> dict[str, Any]:
    """Versions of what computes, and the commit of the current directory (None outside a repository).

    >>> sorted(provenance())
    ['commit', 'versions']
    """
    versions = {"python": platform.python_version(), "numpy": np.__version__, "gyroscope": gyroscope.__version__}
    # Not imported: the store works without it.
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", "unknown"))
    return {"versions": versions, "commit": _commit()}


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, stdin=subprocess.DEVNULL, timeout=2, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() or None
