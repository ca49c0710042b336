"""Write a file that a user names: the whole text or none of it, and never another kind of file in its place."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 to `path` and make the directories above it; `ValueError` says in a sentence why not.

    A regular file is replaced in one move, so a reader sees the old text or the new one, and keeps its mode and, where
    permitted, its owner. A symbolic link stays a link: its target is written. A device or a pipe is written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/deep/page.html", "hello")
    ...     print(Path(folder, "deep", "page.html").read_text())
    hello
    """
    try:
        _write(Path(path), text)
    except BrokenPipeError:  # the program that reads the pipe has seen enough; the caller knows what to do then
        raise
    except OSError as error:
        raise ValueError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from None


def _write(path: Path, text: str) -> None:
    try:
        # Of the target, where the path is a link.
        known = os.stat(path)
    except FileNotFoundError:
        known = None
    if known is not None and not stat.S_ISREG(known.st_mode):
        # Not the resolved path: /dev/stdout is a link whose target has no name in the file system.
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        return
    _replace(Path(os.path.realpath(path)), text, known)


def _replace(target: Path, text: str, known: os.stat_result | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # A fresh name, in the same directory because a move is atomic only within one file system. It does not contain the
    # target's name, which may already be as long as the file system allows.
    partial = target.parent / f".gyroscope-{secrets.token_hex(8)}.part"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="utf-8") as stream:
            stream.write(text)
            if known is not None:
                # Only root may give a file away; Windows has no owners.
                with suppress(OSError, AttributeError):
                    os.chown(partial, known.st_uid, known.st_gid)
                # After chown, which clears special bits.
                os.chmod(partial, stat.S_IMODE(known.st_mode))
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
