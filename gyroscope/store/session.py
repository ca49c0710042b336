"""The first transaction of a writer: make the run's database, or check that an existing one can be resumed."""

import os
import platform
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

import gyroscope
from gyroscope._json import dumps
from gyroscope.store.database import FILE, check, connect, is_empty, run_errors, start_journal
from gyroscope.store.rows import Layers, insert, read_layers, read_quantities, write_quantities
from gyroscope.store.schema import Quantity, RunError, RunExistsError, create_statements

# Seconds between heartbeats when no sample comes.
HEARTBEAT = 4.0
# Seconds without a heartbeat after which a run counts as stopped.
STALE = 30.0


@final
@dataclass
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
    last_step: int | None
    samples: int
    scalars: int

    def write(self, connection: sqlite3.Connection) -> None:
        """Store the row, or replace the one with the same id."""
        insert(connection, "session", astuple(self), otherwise="OR REPLACE")


class OpenedRun(NamedTuple):
    """A run that is open for writing: its new session, its layers, and a warning if it has no write-ahead log."""

    session: Session
    layers: Layers
    warning: str | None


def open_for_writing(file: Path, quantities: Sequence[Quantity], config: Mapping[str, Any], resume: bool) -> OpenedRun:
    """Create a run, or resume the existing one. All checks that may refuse it are here."""
    # First, because encoding calls the user's code, which may be slow, and no lock must be held meanwhile.
    text = dumps({**provenance(), **config}, keep_non_finite=True)
    if file.name != FILE:
        raise RunError(f"{file} is a file, but a run is a directory. Choose another path.")
    with run_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(connect(file, "rwc")) as connection:
            if not is_empty(connection):
                _check_resumable(connection, file, quantities, resume)
        # Before the transaction, because SQLite changes the kind of journal only outside of one.
        warning = start_journal(file)
        with closing(connect(file, "rw")) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if is_empty(connection):
                for statement, arguments in create_statements():
                    connection.execute(statement, arguments)
                write_quantities(connection, quantities)
            else:  # again under the lock, because another writer may have been first
                _check_resumable(connection, file, quantities, resume)
            session = _new_session(connection, text)
            session.write(connection)
            return OpenedRun(session, read_layers(connection), warning)


def _new_session(connection: sqlite3.Connection, config: str) -> Session:
    before = connection.execute("SELECT id, last_step FROM session ORDER BY id DESC LIMIT 1").fetchone()
    last, last_step = before or (0, None)
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM sample), (SELECT coalesce(sum(length(steps)) / 8, 0) FROM scalar)"
    ).fetchone()
    now = time.time()
    return Session(last + 1, now, now, "running", socket.gethostname(), os.getpid(), 0, config, last_step, *counts)


def _check_resumable(connection: sqlite3.Connection, file: Path, quantities: Sequence[Quantity], resume: bool) -> None:
    check(connection, file)
    directory = file.parent
    if not resume:
        raise RunExistsError(f"{directory} already has a run. Choose another path, or pass resume=True to continue it.")
    wanted = [(quantity.name, quantity.per_vector) for quantity in quantities]
    stored = [(quantity.name, quantity.per_vector) for quantity in read_quantities(connection)]
    if wanted != stored:
        differ = ", ".join(sorted({name for name, _ in set(wanted) ^ set(stored)})) or "only their order"
        raise RunError(
            f"{directory} cannot be resumed because its run measures other quantities (difference: {differ}). "
            "Start a new run at another path."
        )
    _check_no_writer(connection, directory)


def _check_no_writer(connection: sqlite3.Connection, directory: Path) -> None:
    here = socket.gethostname()
    running = "SELECT host, pid, heartbeat FROM session WHERE status = 'running'"
    for host, pid, heartbeat in connection.execute(running).fetchall():
        # `Writer` has closed a session of this process, or an earlier process had the same number.
        if time.time() - heartbeat > STALE or (host, pid) == (here, os.getpid()):
            continue
        # A process of another machine cannot be asked, so a fresh heartbeat counts.
        if host != here or _is_alive(pid):
            where, killed = ("", "") if host == here else (f" on {host}", f" (or {STALE:.0f} seconds if it was killed)")
            raise RunError(
                f"{directory} is being written by process {pid}{where}. Wait until it ends{killed}, or choose another "
                "path."
            )


def _is_alive(pid: int) -> bool:
    # On other systems signal 0 is a real signal.
    if os.name != "posix":
        return False
    try:
        with suppress(PermissionError):  # it exists and belongs to another user
            os.kill(pid, 0)  # sends nothing, but raises if there is no such process
    except ProcessLookupError:
        return False
    return True


def provenance() -> dict[str, Any]:
    """Return the versions of Python and its libraries, and the commit of the current directory (or None).

    >>> sorted(provenance())
    ['commit', 'versions']
    """
    versions = {"python": platform.python_version(), "numpy": np.__version__, "gyroscope": gyroscope.__version__}
    # Not imported, because the store works without it.
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
