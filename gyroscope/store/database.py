"""The database file: its path, how it is opened for writing and for reading, and its errors as sentences."""

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gyroscope._json import clean_text
from gyroscope.store.schema import APPLICATION_ID, SCHEMA_VERSION, RunError

FILE = "run.sqlite"
# Seconds to wait for a lock that another program holds.
LOCK_TIMEOUT = 5.0
# Characters of a path in a sentence.
LONGEST_PATH = 400

# On these filesystems other machines do not share the memory that write-ahead logging needs.
NETWORK_FILESYSTEMS = {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "panfs", "smb3", "smbfs"}
NETWORK_FILESYSTEMS |= {"fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"}

# Remedies by the beginning of SQLite's name for the error.
REMEDIES = {
    "SQLITE_NOTADB": "is not a SQLite database, so it is not a run. Pass the directory that the tracker made",
    "SQLITE_CORRUPT": "is damaged. Restore a copy, or save what is left with `sqlite3 run.sqlite .recover`",
    "SQLITE_BUSY": "is locked by another program. Close that program and try again",
    "SQLITE_CANTOPEN": "cannot be opened. Check that it exists and that you may read it and its directory",
    "SQLITE_PERM": "may not be opened. Check its permissions",
    "SQLITE_READONLY": "may not be written. Check the permissions of the file and its directory",
    "SQLITE_FULL": "cannot grow because the disk is full. Free some space",
    "SQLITE_IOERR": "cannot be read or written. Check the disk and its free space",
    "SQLITE_ERROR": "is damaged. Restore a copy",
    "SQLITE_PROTOCOL": "cannot be locked on this filesystem. Put the run on a local disk",
}

# Errors of decoding a damaged or hostile file. JSON that is nested thousands deep raises a RecursionError.
DECODING_ERRORS = (ValueError, TypeError, RecursionError, zlib.error)


def file_of(path: str | os.PathLike[str]) -> Path:
    """Return the database of a run, given its directory or the database itself."""
    path = Path(path)
    try:
        if "\0" in str(path):
            raise ValueError("it has a null character")
        path = path.expanduser().absolute()
        return path if path.is_file() or (path.name == FILE and not path.is_dir()) else path / FILE
    # For example a name that is too long. A RuntimeError means an unknown home directory.
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(f"{_short(path)} is not a path for a run: {_reason(error)}. Choose another path.") from None


def _short(path: Path) -> str:
    """Return a path for a sentence, without the middle of a very long one."""
    text = clean_text(str(path))
    return text if len(text) <= LONGEST_PATH else f"{text[: LONGEST_PATH // 2]}…{text[-20:]}"


def _reason(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error)
    return words.partition("\n")[0].rstrip(".")[:200]


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """Return a connection without implicit transactions. `mode` is SQLite's ro, rw or rwc."""
    return sqlite3.connect(
        f"{file.as_uri()}?mode={mode}", uri=True, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )


def explain(error: BaseException, file: Path) -> str:
    """Return one sentence: what is wrong with the file, and the remedy."""
    words = _reason(error)
    # SQLite has no code of its own for text that is not UTF-8.
    name = "SQLITE_CORRUPT" if isinstance(error, DECODING_ERRORS) or "UTF-8" in words else name_of(error)
    kind = next((kind for kind in REMEDIES if name.startswith(kind)), None)
    path = _short(file)
    return f"{path} cannot be used: {words}." if kind is None else f"{path} {REMEDIES[kind]} ({words})."


def name_of(error: BaseException) -> str:
    """Return SQLite's name of an error, or an empty text for other errors."""
    return getattr(error, "sqlite_errorname", None) or ""


@contextmanager
def run_errors(file: Path) -> Iterator[None]:
    """Convert errors of reading, writing and decoding the file into a `RunError`."""
    try:
        yield
    except RunError:
        raise
    except (sqlite3.Error, OSError, *DECODING_ERRORS) as error:
        raise RunError(explain(error, file)) from error


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether the database has no tables yet."""
    return bool(connection.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])


def check(connection: sqlite3.Connection, file: Path) -> None:
    """Raise `RunError` unless this is a run of this version's schema."""
    if is_empty(connection):
        raise RunError(f"{file} is empty: the run ended before it wrote anything. Start it again.")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise RunError(f"{file} is a database, but not of a run. Pass the directory that the tracker made.")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{file} was written by another version of Gyroscope. It has schema {version}, and this version reads only "
            f"schema {SCHEMA_VERSION}. Open it with the version that wrote it, or start a new run at another path."
        )


def open_reader(file: Path) -> sqlite3.Connection:
    """Return a connection that only reads. It never blocks a writer that uses write-ahead logging.

    SQLite keeps shared memory beside a file with a write-ahead log. If the directory is not writable and there is no
    log, the file is complete and is opened as immutable.
    """
    with run_errors(file):
        _must_exist(file)
        try:
            return _checked(connect(file, "ro"), file)
        except sqlite3.OperationalError as error:
            if not name_of(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
                raise
            log = file.with_name(file.name + "-wal")
            if log.is_file() and log.stat().st_size > 0:
                raise RunError(
                    f"{file} has a log that cannot be read in a directory without write permission ({error}). "
                    "Copy the whole directory to a place where you may write."
                ) from error
        return _checked(connect(file, "ro&immutable=1"), file)


def _checked(connection: sqlite3.Connection, file: Path) -> sqlite3.Connection:
    try:
        check(connection, file)
    except BaseException:
        connection.close()
        raise
    return connection


def _must_exist(file: Path) -> None:
    if file.is_file():
        return
    directory = file.parent
    if not directory.is_dir():
        raise RunError(f"There is no run at {directory}: no such directory. Check the path.")
    inside = sorted(file.parent.name for file in directory.glob(f"*/{FILE}"))
    if inside:
        names = ", ".join(inside[:5]) + (" …" if len(inside) > 5 else "")
        raise RunError(f"{directory} contains {len(inside)} runs, but is not a run. Choose one of them: {names}.")
    raise RunError(f"{directory} contains no run: it has no {FILE}. Pass the directory that the tracker made.")


def start_journal(file: Path) -> str | None:
    """Start write-ahead logging. If that is impossible, use a rollback journal and return a warning."""
    kind = filesystem(file)
    why = f"is on a network filesystem ({kind})" if kind in NETWORK_FILESYSTEMS else _start_log(file)
    if why is None:
        return None
    with closing(connect(file, "rw")) as connection:
        # In exclusive mode SQLite needs no shared memory, so it can undo an incomplete change to WAL.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
    return (
        f"{file} {why}: it is written with a rollback journal instead of a write-ahead log, so a reader can delay "
        "the writer briefly. Put runs on a local disk to avoid this."
    )


def _start_log(file: Path) -> str | None:
    with closing(connect(file, "rw")) as connection:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            # The log and its shared memory are created only now.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if name_of(error).startswith("SQLITE_BUSY"):
                raise
            return f"is in a place where no log can be written ({error})"
    return None if mode == "wal" else "is on a filesystem without shared memory"


def filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the filesystem of `path`, as Linux names it, or None if it is unknown."""
    target = str(path.resolve())
    kind = None
    # The longest mount point that contains the path. Of equal ones the last counts.
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
