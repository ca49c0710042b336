"""Writing a file that a user names: through links and devices, whole or not at all."""

import os
import stat
import threading
from pathlib import Path

import pytest

from gyroscope._files import check_output, write_text

posix = pytest.mark.skipif(os.name != "posix", reason="links, modes and devices of POSIX")


def test_a_new_file_is_made_with_the_directories_above_it_and_nothing_beside_it(tmp_path):
    write_text(tmp_path / "a" / "b" / "page.html", "häßlich ☃")
    assert (tmp_path / "a" / "b" / "page.html").read_text(encoding="utf-8") == "häßlich ☃"
    assert [entry.name for entry in (tmp_path / "a" / "b").iterdir()] == ["page.html"]


@posix
def test_a_new_file_has_the_mode_that_the_umask_allows_and_an_old_one_keeps_its_own(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    write_text(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604
    assert (tmp_path / "new").read_text() == "y"


@posix
@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing yet"])
def test_a_symbolic_link_stays_a_link_and_its_target_is_written(tmp_path, there):
    target = tmp_path / "elsewhere" / "target.html"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    (tmp_path / "link").symlink_to(target)
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["elsewhere", "link"]


@posix
def test_a_device_stays_a_device(tmp_path):
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@posix
def test_a_named_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@posix
def test_an_open_pipe_without_a_name_is_written_to():
    read, write = os.pipe()
    try:
        write_text(f"/dev/fd/{write}", "through")
        assert os.read(read, 100) == b"through"
    finally:
        os.close(read)
        os.close(write)


def test_a_file_of_the_users_that_ends_in_part_is_left_alone(tmp_path):
    (tmp_path / "page.html.part").write_text("mine")
    write_text(tmp_path / "page.html", "new")
    assert (tmp_path / "page.html.part").read_text() == "mine"


def test_the_longest_name_that_the_file_system_allows_is_written(tmp_path):
    write_text(tmp_path / ("x" * 255), "new")
    assert (tmp_path / ("x" * 255)).read_text() == "new"


def test_a_failure_in_the_middle_leaves_the_old_text_and_nothing_beside_it(tmp_path):
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "page.html", "\udc80")
    assert (tmp_path / "page.html").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [("x" * 300, "File name too long"), (".", "Is a directory"), ("file/page.html", "Not a directory|File exists")],
)
def test_what_cannot_be_written_is_a_sentence_with_the_path(tmp_path, path, reason):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"cannot write '.*{path[:9]}.*': ({reason})"):
        write_text(tmp_path / path, "new")


def linked(kind: str, link: Path, target: Path) -> Path:
    """Another name of a file."""
    if kind == "symbolic link":
        link.symlink_to(target)
    elif kind == "hard link":
        os.link(target, link)
    else:
        link = target.parent / "there" / ".." / target.name
    return link


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "detour"])
def test_a_page_never_replaces_an_input_by_whatever_name(kind, tmp_path):
    (tmp_path / "run" / "there").mkdir(parents=True)
    database = tmp_path / "run" / "run.sqlite"
    database.write_bytes(b"SQLite format 3")
    page = linked(kind, tmp_path / "page.html", database)
    for inputs in ([database], [tmp_path / "other", tmp_path / "run"]):
        with pytest.raises(ValueError, match="is an input, and the output would replace it"):
            check_output(page, inputs)


def test_a_page_in_the_folder_of_its_run_is_written_and_replaced_but_nothing_else_there_is(tmp_path):
    (tmp_path / "old.html").write_text("a page")
    for name in ("old.html", "new.HTM", "deep/new.html"):
        check_output(tmp_path / name, [tmp_path])
    for name in ("run.sqlite-wal", "deep/new"):
        with pytest.raises(ValueError, match=r"end the name of a page in \.html"):
            check_output(tmp_path / name, [tmp_path])
