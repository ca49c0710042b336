"""Whatever cannot be opened, made or resumed is refused with one sentence and a remedy."""

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gyroscope.cli import main
from gyroscope.store import BINS, LayerSample, Quantity, RunError, Writer, open_run
from gyroscope.store.session import STALE, Session
from tests.store import make


def change(path, *statements):
    connection = sqlite3.connect(path / "run.sqlite", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def refused(path):
    with pytest.raises(RunError) as caught:
        open_run(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_a_path_that_is_not_there(tmp_path):
    assert "no such directory. Check the path" in refused(tmp_path / "nowhere")


def test_a_directory_without_a_run(tmp_path):
    assert "contains no run: it has no run.sqlite" in refused(tmp_path)


def test_a_directory_of_runs_names_them(tmp_path):
    for name in "ab":
        make.run_at(tmp_path / name)
    assert "contains 2 runs, but is not a run. Choose one of them: a, b" in refused(tmp_path)


def test_a_file_that_is_not_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "is not a run" in refused(tmp_path / "notes.txt")


def test_an_empty_database(tmp_path):
    (tmp_path / "run.sqlite").touch()
    assert "is empty: the run ended before it wrote anything" in refused(tmp_path)
    make.run_at(tmp_path)  # and a run may still begin there
    assert open_run(tmp_path).total == 3


def test_a_file_that_is_not_a_database(tmp_path):
    (tmp_path / "run.sqlite").write_bytes(b"not a database at all " * 500)
    assert "is not a SQLite database" in refused(tmp_path)
    with pytest.raises(RunError, match="is not a SQLite database"):
        make.writer(tmp_path)
    assert (tmp_path / "run.sqlite").read_bytes().startswith(b"not a database")


def test_a_database_of_something_else(tmp_path):
    change(tmp_path, "CREATE TABLE cookies (name TEXT)")
    assert "is a database, but not of a run" in refused(tmp_path)
    with pytest.raises(RunError, match="not of a run"):
        make.writer(tmp_path, resume=True)


@pytest.mark.parametrize("schema", [4, 99])
def test_a_run_of_another_schema_is_neither_read_nor_resumed_and_is_left_alone(tmp_path, schema):
    change(make.run_at(tmp_path), f"PRAGMA user_version = {schema}")
    before = (tmp_path / "run.sqlite").read_bytes()
    sentence = f"another version of Gyroscope. It has schema {schema}, and this version reads only schema 5. Open it"
    assert sentence in refused(tmp_path)
    with pytest.raises(RunError, match=sentence):
        make.writer(tmp_path, resume=True)
    assert (tmp_path / "run.sqlite").read_bytes() == before


def use(path):
    """Everything a reader does."""
    with open_run(path) as run:
        for layer in run.layers:
            for name, quantity in run.quantities.items():
                run.series(layer, name)
                if quantity.per_vector:
                    run.raw(layer, name)
                    for step in run.steps:
                        run.histogram(layer, name, int(step))


def test_a_truncated_file_is_called_damaged(tmp_path):
    make.run_at(tmp_path, steps=200, layers=4, raw=True)
    file = tmp_path / "run.sqlite"
    whole = file.read_bytes()
    for share in (0.02, 0.1, 0.3, 0.6, 0.95):
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(RunError, match="damaged"):
            use(tmp_path)


def test_random_bytes_give_a_sentence_or_at_worst_wrong_numbers_but_no_other_error(tmp_path):
    make.run_at(tmp_path, steps=20, layers=3, raw=True)
    file = tmp_path / "run.sqlite"
    whole = file.read_bytes()
    rng = random.Random(0)
    said = []
    for _ in range(60):
        broken = bytearray(whole)
        size = rng.choice([8, 300, 4000])
        start = rng.randrange(len(broken) - size)
        broken[start : start + size] = rng.randbytes(size)
        file.write_bytes(broken)
        try:
            use(tmp_path)
        except ValueError as error:
            said.append(str(error))
    assert len(said) > 10
    assert all(sentence.startswith((str(file), "The vectors of")) and sentence.endswith(".") for sentence in said)


def test_blobs_of_a_wrong_length_are_called_damaged(tmp_path):
    make.run_at(tmp_path, raw=True)
    for table, column in [("measurement", "numbers"), ("distribution", "histograms"), ("vectors", "numbers")]:
        shutil.copytree(tmp_path, copy := tmp_path / table)
        change(copy, f"UPDATE {table} SET {column} = x'0102'")
        with pytest.raises(RunError, match="damaged"):
            use(copy)


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(tmp_path):
    make.run_at(tmp_path)
    before = (tmp_path / "run.sqlite").read_bytes()
    with pytest.raises(RunError, match=r"already has a run.*resume=True"):
        make.writer(tmp_path)
    assert (tmp_path / "run.sqlite").read_bytes() == before


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(RunError, match="is a file, but a run is a directory"):
        make.writer(tmp_path / "taken")


def test_resuming_with_other_quantities_names_them(tmp_path):
    make.run_at(tmp_path)
    other = [*make.QUANTITIES[:-1], Quantity("alignment", "", "s", "definition")]
    with pytest.raises(RunError, match=r"alignment, weight_decay.*another path"):
        Writer(tmp_path, quantities=other, config={}, resume=True)
    with pytest.raises(RunError, match="only their order"):
        Writer(tmp_path, quantities=make.QUANTITIES[::-1], config={}, resume=True)


@pytest.mark.parametrize("changed", [{"shape": (3, 4)}, {"granularity": "tensor"}, {"axis": 1}, {"rows": (1, 2)}])
def test_resuming_with_a_layer_that_is_cut_in_another_way_is_refused(tmp_path, changed):
    make.run_at(tmp_path)
    with make.writer(tmp_path, layers=0, resume=True) as writer:
        with pytest.raises(RunError, match="already has a layer 'layer0' of shape \\(6, 8\\)"):
            writer.add_layer(make.layer("layer0", **changed))
        assert writer.add_layer(make.layer("layer0", rule="new", group=1)) == 0


def test_resuming_where_there_is_nothing_begins_a_run(tmp_path):
    make.writer(tmp_path / "new", resume=True).close()
    assert open_run(tmp_path / "new").status == "finished"


@pytest.mark.skipif(os.name != "posix", reason="a living process is found by signal 0")
def test_a_run_that_another_process_writes_cannot_be_resumed(tmp_path):
    make.run_at(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = f"status = 'running', host = '{socket.gethostname()}', pid = {other.pid}"
    try:
        change(tmp_path, f"UPDATE session SET {here}, heartbeat = unixepoch() + 5")
        with pytest.raises(RunError, match=f"is being written by process {other.pid}"):
            make.writer(tmp_path, resume=True)
        change(tmp_path, "UPDATE session SET heartbeat = heartbeat - 60")
        make.writer(tmp_path, resume=True).close()
    finally:
        other.communicate(b"\n")


def test_a_second_writer_of_this_process_takes_over_and_nothing_is_lost(tmp_path):
    first = make.writer(tmp_path)
    first.put(make.sample(0))
    second = make.writer(tmp_path, resume=True)
    assert not first.worker.usable
    second.put(make.sample(1))
    first.put(make.sample(2))
    first.close()
    second.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1]
    assert run.status == "finished"


def test_a_writer_whose_run_was_resumed_elsewhere_stores_nothing_more(tmp_path):
    silent = make.writer(tmp_path)
    silent.put(make.sample(0))
    silent.flush()
    columns = "started, heartbeat, status, host, pid, dropped, config, last_step, samples, scalars, checksum"
    change(tmp_path, f"INSERT INTO session SELECT 2, {columns} FROM session")
    silent.put(make.sample(1))
    with pytest.warns(RuntimeWarning, match="is continued by another writer. This one stores nothing more"):
        assert not silent.flush()
    with pytest.warns(RuntimeWarning, match="1 sample is lost"):
        silent.close()
    with sqlite3.connect(tmp_path / "run.sqlite") as connection:
        assert connection.execute("SELECT step FROM sample").fetchall() == [(0,)]


@pytest.mark.parametrize("age", [5, 60])
def test_a_run_that_another_machine_writes_cannot_be_resumed_while_its_heartbeat_is_fresh(tmp_path, age):
    make.run_at(tmp_path)
    change(tmp_path, f"UPDATE session SET status = 'running', host = 'another', heartbeat = unixepoch() - {age}")
    if age > STALE:
        make.writer(tmp_path, resume=True).close()
        return
    with pytest.raises(
        RunError, match=r"process \d+ on another\. Wait until it ends \(or 30 seconds if it was killed\)"
    ):
        make.writer(tmp_path, resume=True)


def test_a_run_that_has_other_samples_than_were_counted_is_refused(tmp_path):
    make.run_at(tmp_path)
    with sqlite3.connect(tmp_path / "run.sqlite") as connection:
        Session(2, 1.0, 2.0, "finished", "here", 1, 0, "{}", last_step=None, samples=0, scalars=0).write(connection)
    assert "0 samples were written and 3 are left" in refused(tmp_path)


def test_a_home_directory_of_nobody_is_no_path():
    assert "~nobody-of-that-name/run is not a path for a run" in refused(Path("~nobody-of-that-name/run"))


@pytest.mark.parametrize("command", ["report", "watch"])
def test_commands_say_that_the_home_directory_of_nobody_is_no_path(command, capsys):
    assert main([command, "~nobody-of-that-name/run"]) == 2
    assert "~nobody-of-that-name/run" in capsys.readouterr().err


def unprivileged(code, *arguments):
    """Run code in a process that may write only where everybody may; its output."""
    start = "import os, sys, gyroscope.store as store\nif os.geteuid() == 0: os.setgid(65534), os.setuid(65534)\n"
    done = subprocess.run([sys.executable, "-c", start + code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def public():
    """A directory that everybody may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        for directory, *_ in os.walk(name):
            os.chmod(directory, 0o755)


READ = """
try:
    run = store.open_run(sys.argv[1])
    print(run.status, run.series("layer0", "lr").tolist())
except store.RunError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_run_in_a_directory_that_may_not_be_written_is_read(public):
    finished = make.run_at(public / "finished")
    with make.writer(public / "live") as writer:
        writer.put(make.sample(0))
        writer.flush()
        shutil.copytree(public / "live", public / "killed")
        shutil.copytree(public / "live", public / "lost")
        (public / "lost" / "run.sqlite-shm").unlink()
        reader = open_run(public / "live")
    reader.close()
    for name in ("-wal", "-shm"):  # finished while somebody read: in WAL mode, but the log is not needed any more
        (public / "live" / f"run.sqlite{name}").unlink()
    for directory in public.iterdir():
        directory.chmod(0o555)
    assert unprivileged(READ, finished) == "finished [0.0, 1.0, 2.0]"
    assert unprivileged(READ, public / "live") == "finished [0.0]"
    assert unprivileged(READ, public / "killed") == "running [0.0]"
    assert "Copy the whole directory to a place where you may write." in unprivileged(READ, public / "lost")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_run_cannot_begin_where_one_may_not_write(public):
    public.chmod(0o555)
    code = "try: store.Writer(sys.argv[1], quantities=[], config={})\nexcept store.RunError as error: print(error)"
    assert "Permission denied" in unprivileged(code, public / "new")


def test_a_sample_of_the_wrong_shape_is_left_out_with_one_warning(tmp_path):
    writer = make.writer(tmp_path)
    good = make.layer_sample(1)
    bad = LayerSample(good.statistics[:1], good.scalars, good.histograms, good.extremes)
    worse = LayerSample(good.statistics, good.scalars, good.histograms[:, : BINS - 1], good.extremes)
    writer.put(make.sample(0))
    for step, one in [(1, bad), (2, worse)]:
        writer.put(make.Sample(step, 0.0, {0: one}))
    writer.put(make.sample(3))
    with pytest.warns(RuntimeWarning, match=r"statistics of a layer's sample have the shape \(1, 9\)"):
        writer.flush()
    writer.close()  # a second warning would be an error here
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 3]
    assert "cannot take a sample: statistics" in run.notes[0]
    assert run.notes[1] == "2 samples could not be stored."


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000 + "run", "null\0character"])
def test_a_path_that_no_file_system_takes_is_a_sentence(tmp_path, name):
    assert "is not a path for a run" in refused(tmp_path / name)
    with pytest.raises(RunError, match=r"is not a path for a run: .*\. Choose another path\.") as caught:
        make.writer(tmp_path / name)
    assert len(str(caught.value)) < 600


@pytest.fixture
def read_only():
    """A file system with a run on it that may only be read."""
    with tempfile.TemporaryDirectory() as name:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", name], capture_output=True).returncode:
            pytest.skip("no permission to mount a file system")
        try:
            make.run_at(Path(name) / "run")
            subprocess.run(["mount", "-o", "remount,ro", name], check=True)
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
def test_a_run_on_a_read_only_file_system_is_read_and_writing_there_is_a_sentence(read_only):
    with open_run(read_only / "run") as run:
        assert run.series("layer0", "lr").tolist() == [0, 1, 2]
    for path, resume in ((read_only / "new", False), (read_only / "run", True)):
        with pytest.raises(RunError, match=r"Read-only file system|may not be written") as caught:
            make.writer(path, resume=resume)
        assert str(caught.value).endswith(".")


def test_names_and_configurations_that_no_database_takes_are_stored_in_words(tmp_path):
    with make.writer(tmp_path, layers=0, config={"seed": 10**5000}) as writer:
        index = writer.add_layer(make.layer("odd\udc80name", rule="\udc80"))
        writer.put(make.Sample(0, 0.0, {index: make.layer_sample(0)}))
    run = open_run(tmp_path)
    assert run.config["seed"] == "<integer of 16,610 bits>"
    assert run.layers == ["odd\\udc80name"]
    assert run.series("odd\\udc80name", "lr").tolist() == [0]
    assert run.notes == []
