"""Files that a user names: read with an error in one sentence, written completely or not at all."""

import os
import secrets
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Suffixes of pages. A page may be written into the folder of its run.
PAGE_SUFFIXES = (".html", ".htm")
# Levels of nesting in a TOML file. Settings need three.
MAX_LEVELS = 20


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a TOML file. Raise `ValueError` in one sentence if it cannot be read."""
    name = os.fspath(path)
    try:
        # Some editors on Windows begin a file with a byte order mark.
        content = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        _check_levels(content)
    except OSError as error:
        raise ValueError(f"cannot read {name!r}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name!r} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{name!r} has more than {MAX_LEVELS} levels of tables or lists") from None
    except ValueError:  # the limit of int()
        raise ValueError(f"{name!r} has a number of more than {sys.get_int_max_str_digits():,} digits") from None
    return content


def _check_levels(content: dict[str, Any]) -> None:
    """Raise RecursionError for what is nested too deep to be quoted in an error."""
    level: list[Any] = [content]
    for _ in range(MAX_LEVELS):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    if level:
        raise RecursionError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 to `path` and make the directories above it. Raise `ValueError` if that is impossible.

    A regular file is replaced in one move (see `replacing`). A device or a pipe is written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/deep/page.html", "hello")
    ...     print(Path(folder, "deep", "page.html").read_text())
    hello
    """
    with _refusing(path):
        if os.path.exists(path) and not os.path.isfile(path):
            # Not the resolved path: /dev/stdout is a link whose target has no name in the file system.
            Path(path).write_text(text, encoding="utf-8")
            return
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Open a new file for writing, which replaces the regular file at `path` at the end if no error occurred.

    A reader sees the old content or the new one. The file keeps its mode and, if permitted, its owner. If `path` is a
    symbolic link, its target is replaced. The directories above it are made. An `OSError` becomes a `ValueError`.
    """
    with _refusing(path):
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, because a move is atomic only within one file system. The name does not contain the
        # target's name, which may already be as long as the file system allows.
        partial = target.parent / f".gyroscope-{secrets.token_hex(8)}.part"
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            yield partial
            _copy_owner(target, partial)
            os.replace(partial, target)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


def _copy_owner(source: Path, target: Path) -> None:
    if not source.exists():
        return
    known = source.stat()
    # Only root may change the owner of a file, and Windows has no owners.
    with suppress(OSError, AttributeError):
        os.chown(target, known.st_uid, known.st_gid)
    # After chown, which clears special bits.
    os.chmod(target, stat.S_IMODE(known.st_mode))


@contextmanager
def _refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of the pipe has ended. The caller handles this
        raise
    except OSError as error:
        raise ValueError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from None


def check_output(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise ValueError if a file at `path` would replace an input, or a file of an input folder, under any name.

    Only pages may be written into the folder of a run.

    >>> check_output("runs/first/report.html", ["runs/first"])
    >>> check_output("ckpt.pt", ["./ckpt.pt"])
    Traceback (most recent call last):
    ValueError: 'ckpt.pt' is an input, and the output would replace it: choose another path
    """
    target = Path(os.path.realpath(path))
    for each in inputs:
        source = Path(os.path.realpath(each))
        below = [file for file in source.rglob("*") if file.is_file() and not _is_page(file)]
        # `samefile` also recognises links, including hard links.
        if source == target or (
            target.is_file() and any(file.exists() and file.samefile(target) for file in (source, *below))
        ):
            raise ValueError(f"{os.fspath(path)!r} is an input, and the output would replace it: choose another path")
        if source in target.parents and not _is_page(target):
            raise ValueError(
                f"{os.fspath(path)!r} is in the folder {os.fspath(each)!r}, where it could pass for a file of the run. "
                "Choose another path, or end the name of a page in .html"
            )


def _is_page(path: Path) -> bool:
    return path.suffix.lower() in PAGE_SUFFIXES
