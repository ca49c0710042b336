"""Damaged, hostile and old files: what is read is what was written, or the answer is a sentence."""

import random
import sqlite3

import pytest

from gyroscope.store import STATISTICS, RunError, open_run
from gyroscope.store.rows import row_checksum
from tests.store import make


def everything(path):
    """All that a reader can get out of a run, as something that can be compared."""
    with open_run(path) as run:
        read = [run.steps.tolist(), run.times.tolist(), run.layers, run.notes, run.started, run.status]
        read += [run.heartbeat, run.config, list(run.quantities.values())]
        for layer in run.layers:
            read.append(run.layer(layer))
            for name, quantity in run.quantities.items():
                read += [run.series(layer, name, stat).tobytes() for stat in STATISTICS]
                if quantity.per_vector:
                    read.append(run.raw(layer, name).tobytes())
                    for step in run.steps.tolist():
                        read.append(run.histogram(layer, name, step).tobytes())
                        read.append(run.extremes(layer, name, step))
        for name in run.scalars:
            read += [name, *(column.tobytes() for column in run.scalar(name))]
        for step in run.steps.tolist():
            read.append(run.values_at(step, [("norm", "mean"), ("lr", "mean")]).tobytes())
        return read


@pytest.mark.slow
def test_a_single_flipped_bit_never_changes_what_is_read(tmp_path):
    with make.writer(tmp_path, layers=3, config={"lr": 0.1}) as writer:
        writer.note("a note")
        for step in range(10):
            writer.put(make.sample(step, layers=3, raw=True))
            writer.put_scalars([(step, {"loss": 1 / (1 + step), "accuracy": 0.5})])
    file = tmp_path / "run.sqlite"
    whole = file.read_bytes()
    before = everything(tmp_path)
    rng = random.Random(0)
    sentences = []
    for _ in range(300):
        place = rng.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        try:
            assert everything(tmp_path) == before, f"a bit of byte {place} changed what is read"
        except RunError as error:
            sentences.append(str(error))
    assert len(sentences) > 30
    assert all(sentence.startswith(str(file)) and sentence.endswith(".") for sentence in sentences)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE measurement SET numbers = zeroblob(length(numbers)) WHERE key = (SELECT max(key) FROM measurement)",
        "UPDATE distribution SET extremes = zeroblob(length(extremes))",
        "UPDATE vectors SET numbers = zeroblob(length(numbers))",
        "UPDATE sample SET step = 7 WHERE step = 1",
        "DELETE FROM measurement WHERE key = (SELECT max(key) FROM measurement)",
        "DELETE FROM distribution",
        "DELETE FROM sample WHERE step = 1",
        "UPDATE layer SET fan_in = 9",
        "UPDATE quantity SET unit = 'm' WHERE id = 0",
        "UPDATE session SET dropped = 3",
        "UPDATE measurement SET checksum = 0",
        "UPDATE note SET text = 'other'",
    ],
)
def test_a_row_that_was_changed_or_is_gone_is_a_sentence(tmp_path, statement):
    with make.writer(tmp_path, layers=2) as writer:
        writer.note("a note")
        for step in range(3):
            writer.put(make.sample(step, layers=2, raw=True))
    everything(tmp_path)
    execute(tmp_path, statement)
    with pytest.raises(RunError, match=r"is damaged\. Restore a copy"):
        everything(tmp_path)


def execute(path, *statements):
    connection = sqlite3.connect(path / "run.sqlite", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def with_right_checksums(path):
    """The run after its checksums were computed anew: what somebody who means harm would do."""
    connection = sqlite3.connect(path / "run.sqlite", isolation_level=None)
    for table in ("session", "quantity", "layer", "sample", "note"):
        for *columns, _ in connection.execute(f"SELECT * FROM {table}").fetchall():
            connection.execute(f"UPDATE {table} SET checksum = ? WHERE id = ?", (row_checksum(columns), columns[0]))
    connection.close()


DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE session SET config = '{DEEP}'",
        "UPDATE session SET config = 'null'",
        "UPDATE session SET config = '[1, 2]'",
        'UPDATE session SET config = \'{"a": 1' + "0" * 5000 + "}'",
        "UPDATE session SET config = x'00ff'",
        "UPDATE session SET heartbeat = 'yesterday'",
        "UPDATE session SET heartbeat = 9e999",
        "UPDATE session SET started = 'yesterday'",
        "UPDATE session SET status = x'05'",
        "UPDATE session SET dropped = 'many'",
        "DELETE FROM session",
        f"UPDATE layer SET shape = '{DEEP}'",
        "UPDATE layer SET shape = 'null'",
        "UPDATE layer SET shape = '[\"a\"]'",
        "UPDATE layer SET rows = '7'",
        "UPDATE layer SET name = x'00' WHERE id = 1",
        "UPDATE layer SET vectors = 'many'",
        "UPDATE layer SET param_group = 9000000000",
        "UPDATE layer SET param_group = -1",
        "UPDATE quantity SET name = x'00ff' WHERE id = 1",
        "UPDATE note SET text = x'05'",
        "UPDATE sample SET step = 'three' WHERE step = 2",
        "UPDATE sample SET time = 'noon'",
    ],
    ids=lambda change: change[:50],
)
def test_a_column_that_makes_no_sense_is_a_sentence_also_where_its_checksum_is_right(tmp_path, change):
    with make.writer(tmp_path, layers=2) as writer:
        writer.note("a note")
        for step in range(3):
            writer.put(make.sample(step, layers=2))
    with_right_checksums(tmp_path)
    open_run(tmp_path).close()
    execute(tmp_path, change)
    with_right_checksums(tmp_path)
    with pytest.raises(RunError, match="is damaged") as caught:
        open_run(tmp_path)
    assert "\n" not in str(caught.value)
