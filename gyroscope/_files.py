"""Write a file that a user names: the whole text or none of it, and never another kind of file in its place."""

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# What a page may be called inside a folder that it is made from.
PAGE_SUFFIXES = (".html", ".htm")


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


def check_output(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise ValueError if a page at `path` would replace an input, or a file of an input folder, by whatever name.

    >>> check_output("runs/first/report.html", ["runs/first"])
    >>> check_output("ckpt.pt", ["./ckpt.pt"])
    Traceback (most recent call last):
    ValueError: 'ckpt.pt' is an input, which the page would replace: choose another path for the page
    """
    target = Path(os.path.realpath(path))
    for each in inputs:
        source = Path(os.path.realpath(each))
        if source == target or _is_link_into(target, source):
            raise ValueError(
                f"{os.fspath(path)!r} is an input, which the page would replace: choose another path for the page"
            )
        if source in target.parents and not _is_page(target):
            raise ValueError(
                f"{os.fspath(path)!r} is in the folder {os.fspath(each)!r}, where it could pass for a file of the run: "
                "end its name in .html"
            )


def _is_page(path: Path) -> bool:
    return path.suffix.lower() in PAGE_SUFFIXES


def _is_link_into(target: Path, source: Path) -> bool:
    """Return whether the target is the source, or a file below it that is no page, as a hard link is."""
    if not target.is_file():
        return False
    files = (file for file in source.rglob("*") if not _is_page(file)) if source.is_dir() else [source]
    return any(file.is_file() and file.samefile(target) for file in files)


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
