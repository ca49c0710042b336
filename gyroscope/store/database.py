"""The database file: where it lies, how it is opened for writing and for reading, and its errors as sentences."""

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gyroscope._json import clean_text
from gyroscope.store.schema import APPLICATION_ID, SCHEMA_VERSION, RunError

FILE = "run.sqlite"
# Seconds to wait for a lock that another program holds.
LOCK_TIMEOUT = 5.0
# Characters of a path in a sentence.
LONGEST_PATH = 400

NETWORK_FILESYSTEMS = {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "panfs", "smb3", "smbfs"}
NETWORK_FILESYSTEMS |= {"fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"}
"""Filesystems whose other machines do not see the shared memory that write-ahead logging keeps beside the file."""

# By the beginning of SQLite's name for the error.
REMEDIES = {
    "SQLITE_NOTADB": "is not a run: it is no SQLite database. Give the directory that the tracker made",
    "SQLITE_CORRUPT": "is damaged. Restore a copy, or save what is left with `sqlite3 run.sqlite .recover`",
    "SQLITE_BUSY": "is locked by another program. Close that program and try again",
    "SQLITE_CANTOPEN": "cannot be opened. Check that it exists and that you may read it and its directory",
    "SQLITE_PERM": "may not be opened. Check its permissions",
    "SQLITE_READONLY": "may not be written. Check the permissions of the file and its directory",
    "SQLITE_FULL": "cannot grow: the disk is full. Free some space",
    "SQLITE_IOERR": "cannot be read or written. Check the disk and its free space",
    "SQLITE_ERROR": "is not as it was written. Restore a copy",
    "SQLITE_PROTOCOL": "cannot be locked on this filesystem. Put the run on a local disk",
}

# What a damaged or hostile file makes decoders raise; JSON that is nested thousands deep is a `RecursionError`.
DECODING_ERRORS = (ValueError, TypeError, RecursionError, zlib.error)


def file_of(path: str | os.PathLike[str]) -> Path:
    """The database of a run, given its directory or the database itself."""
    path = Path(path)
    try:
        if "\0" in str(path):
            raise ValueError("it has a null character")
        path = path.expanduser().absolute()
        return path if path.is_file() or (path.name == FILE and not path.is_dir()) else path / FILE
    # For example a name that is too long. A RuntimeError is a home directory that cannot be found.
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(f"{_short(path)} is no path for a run: {_reason(error)}. Choose another path.") from None


def _short(path: Path) -> str:
    """A path for a sentence; the middle of a very long one is left out."""
    text = clean_text(str(path))
    return text if len(text) <= LONGEST_PATH else f"{text[: LONGEST_PATH // 2]}…{text[-20:]}"


def _reason(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error)
    return words.partition("\n")[0].rstrip(".")[:200]


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """A connection without implicit transactions; `mode` is SQLite's ro, rw or rwc."""
    return sqlite3.connect(
        f"{file.as_uri()}?mode={mode}", uri=True, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )


def explain(error: BaseException, file: Path) -> str:
    """One sentence: what is wrong with the file, and the remedy."""
    words = _reason(error)
    # SQLite has no code of its own for text that is not UTF-8.
    name = "SQLITE_CORRUPT" if isinstance(error, DECODING_ERRORS) or "UTF-8" in words else name_of(error)
    kind = next((kind for kind in REMEDIES if name.startswith(kind)), None)
    path = _short(file)
    return f"{path} cannot be used: {words}." if kind is None else f"{path} {REMEDIES[kind]} ({words})."


def name_of(error: BaseException) -> str:
    """SQLite's name of an error; empty where the error is not SQLite's own."""
    return getattr(error, "sqlite_errorname", None) or ""


@contextmanager
def run_errors(file: Path) -> Iterator[None]:
    """Turn errors of the file, and of what is decoded from it, into a `RunError`."""
    try:
        yield
    except RunError:
        raise
    except (sqlite3.Error, OSError, *DECODING_ERRORS) as error:
        raise RunError(explain(error, file)) from error


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether there is nothing in the database yet."""
    return bool(connection.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])


def check(connection: sqlite3.Connection, file: Path) -> int:
    """Version of the run's schema; raises unless this is a run that this version reads."""
    if is_empty(connection):
        raise RunError(f"{file} is empty: the run ended before it wrote anything. Start it again.")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise RunError(f"{file} is a database, but not of a run. Give the directory that the tracker made.")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise RunError(
            f"{file} was written by a newer Gyroscope: its schema is {version}, this one reads up to {SCHEMA_VERSION}. "
            "Upgrade with `pip install -U gyroscope`."
        )
    return int(version)


@final
@dataclass(frozen=True)
class ReadOnlyDatabase:
    """An open database of a run, and the version of its schema."""

    file: Path
    connection: sqlite3.Connection
    version: int


def open_reader(path: str | os.PathLike[str]) -> ReadOnlyDatabase:
    """A connection that only reads: it never blocks a writer that uses write-ahead logging, and changes nothing.

    SQLite wants to keep shared memory beside a file with a write-ahead log. Where the directory may not be written and
    there is no log to be read, the file is complete and is opened as one that cannot change.
    """
    file = file_of(path)
    with run_errors(file):
        _must_exist(file)
        try:
            return _checked(connect(file, "ro"), file)
        except sqlite3.OperationalError as error:
            if not name_of(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
                raise
            if _size(file.with_name(file.name + "-wal")) > 0:
                raise RunError(
                    f"{file} has a log that cannot be read in a directory without write permission ({error}). "
                    "Copy the whole directory to a place where you may write."
                ) from error
        return _checked(connect(file, "ro&immutable=1"), file)


def _checked(connection: sqlite3.Connection, file: Path) -> ReadOnlyDatabase:
    try:
        return ReadOnlyDatabase(file, connection, check(connection, file))
    except BaseException:
        connection.close()
        raise


def _must_exist(file: Path) -> None:
    if file.is_file():
        return
    directory = file.parent
    if not directory.is_dir():
        raise RunError(f"There is no run at {directory}: no such directory. Check the path.")
    inside = sorted(file.parent.name for file in directory.glob(f"*/{FILE}"))
    if inside:
        names = ", ".join(inside[:5]) + (" …" if len(inside) > 5 else "")
        raise RunError(f"{directory} holds {len(inside)} runs, but is none itself. Name one of them: {names}.")
    raise RunError(f"{directory} holds no run: there is no {FILE} in it. Give the directory that the tracker made.")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def start_journal(file: Path) -> str | None:
    """Turn on write-ahead logging; where that cannot be, a rollback journal and the sentence that says so."""
    kind = filesystem(file)
    why = f"lies on a network filesystem ({kind})" if kind in NETWORK_FILESYSTEMS else _start_log(file)
    if why is None:
        return None
    with closing(connect(file, "rw")) as connection:
        # In exclusive mode SQLite needs no shared memory, so it can undo a change to WAL that got stuck half way.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
    return (
        f"{file} {why}: it is written with a rollback journal instead of a write-ahead log, so a reader can hold up "
        "the writer for a moment. Put runs on a local disk to avoid this."
    )


def _start_log(file: Path) -> str | None:
    with closing(connect(file, "rw")) as connection:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            # Only now the log and its shared memory are made.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if name_of(error).startswith("SQLITE_BUSY"):
                raise
            return f"lies where no log can be kept beside it ({error})"
    return None if mode == "wal" else "lies on a filesystem without shared memory"


def filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the filesystem that `path` lies on, as Linux names it; None where the system does not say."""
    target = str(path.resolve())
    kind = None
    # Of the mount points that contain the path; the one mounted last hides an equal one before it.
    longest = ""
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, point, name, *_ = line.split(" ")
            # The table of mounts writes white space and backslashes as octal numbers.
            point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
            inside = target == point or target.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(longest):
                longest = point
                kind = name
    return kind
