"""Logged scalars: what training put in under a name comes back, step by step."""

import csv
import math
import sqlite3

import numpy as np
import pytest

from gyroscope.store import RunError, open_run
from tests.store import make


def logged(path, *rows, **options):
    """A finished run with one sample of step 0 and these rows."""
    with make.writer(path, **options) as writer:
        writer.put(make.sample(0))
        writer.put_scalars(rows)
    return path


def columns(run, name):
    steps, values = run.scalar(name)
    return steps.tolist(), values.tolist()


def test_values_come_back_exactly_with_their_steps_also_of_steps_that_were_not_sampled(tmp_path):
    run = open_run(logged(tmp_path, (0, {"loss": 1 / 3, "accuracy": 0.0}), (7, {"loss": 1e-300}), (9, {"loss": 2.0})))
    assert run.scalars == ("loss", "accuracy")
    assert run.scalar_count == 4
    assert columns(run, "loss") == ([0, 7, 9], [1 / 3, 1e-300, 2.0])
    assert columns(run, "accuracy") == ([0], [0.0])
    assert run.scalar("loss")[0].dtype == np.int64
    assert run.steps.tolist() == [0]


def test_values_that_are_not_finite_are_stored_as_they_are(tmp_path):
    run = open_run(logged(tmp_path, (0, {"loss": math.nan}), (1, {"loss": math.inf}), (2, {"loss": -math.inf})))
    _, values = run.scalar("loss")
    assert math.isnan(values[0])
    assert values[1:].tolist() == [math.inf, -math.inf]


def test_a_run_without_scalars_has_none_and_an_unknown_name_is_a_sentence(tmp_path):
    run = open_run(make.run_at(tmp_path / "none"))
    assert run.scalars == ()
    with pytest.raises(ValueError, match=r"no scalar 'loss' in .*none: log some with tracker\.log"):
        run.scalar("loss")
    run = open_run(logged(tmp_path / "some", (0, {"loss": 1.0, "accuracy": 0.5})))
    with pytest.raises(ValueError, match=r"no scalar 'los' .*: did you mean 'loss'\?"):
        run.scalar("los")


def test_a_value_that_is_logged_again_replaces_the_earlier_one_in_a_resumed_run_too(tmp_path):
    rows = [(step, {"loss": float(step)}) for step in range(4)]
    run = open_run(logged(tmp_path, *rows, (1, {"loss": 10.0})))
    assert columns(run, "loss") == ([0, 1, 2, 3], [0.0, 10.0, 2.0, 3.0])
    logged(tmp_path, (2, {"loss": 20.0}), (3, {"loss": 30.0}), (4, {"loss": 40.0}), resume=True)
    for each in (run, open_run(tmp_path)):
        each.refresh()
        assert columns(each, "loss") == ([0, 1, 2, 3, 4], [0.0, 10.0, 20.0, 30.0, 40.0])


def test_a_reader_follows_values_while_they_are_written(tmp_path):
    with make.writer(tmp_path) as writer:
        writer.put_scalars([(0, {"loss": 1.0})])
        assert writer.flush()
        with open_run(tmp_path) as run:
            assert columns(run, "loss") == ([0], [1.0])
            # Within one step, as the parts of an accumulated batch are.
            writer.put_scalars([(1, {"loss": 2.0}), (1, {"loss": 3.0}), (1, {"accuracy": 0.5})])
            assert writer.flush()
            assert columns(run, "loss") == ([0], [1.0])
            run.refresh()
            assert columns(run, "loss") == ([0, 1], [1.0, 3.0])
            writer.put_scalars([(1, {"loss": 4.0})])
            assert writer.flush()
            run.refresh()
            assert columns(run, "loss") == ([0, 1], [1.0, 4.0])
            assert run.scalars == ("loss", "accuracy")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE scalar SET numbers = zeroblob(length(numbers))", "table scalar does not match its checksum"),
        ("UPDATE scalar SET steps = zeroblob(length(steps))", "table scalar does not match its checksum"),
        ("DELETE FROM scalar", "3 scalars were written and 0 are left"),
    ],
)
def test_a_changed_or_lost_value_is_noticed(tmp_path, change, words):
    logged(tmp_path, *((step, {"loss": float(step)}) for step in range(3)))
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    with connection:
        connection.execute(change)
    connection.close()
    with open_run(tmp_path) as run, pytest.raises(RunError, match=words):
        run.scalar("loss")


def test_a_csv_has_them_without_a_layer(tmp_path):
    run = open_run(logged(tmp_path / "run", (0, {"loss": 1 / 3}), (1, {"loss": math.nan})))
    run.export(tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "loss"]
    assert [(row["step"], row["layer"], row["rms"]) for row in rows] == [("0", "", ""), ("1", "", "")]
    assert float(rows[0]["mean"]) == 1 / 3
    assert rows[1]["mean"] == ""


def test_values_are_stored_some_hundred_in_a_row_and_a_reader_follows_the_last_one(tmp_path):
    with make.writer(tmp_path) as writer:
        run = None
        for step in range(1000):
            numbers = {"loss": 1 / (1 + step)} | ({"rare": step} if step % 400 == 0 else {})
            writer.put_scalars([(step, numbers)])
            if step % 50 == 0:
                assert writer.flush()
                run = run or open_run(tmp_path)
                run.refresh()
                assert columns(run, "loss")[0] == list(range(step + 1))
                assert columns(run, "rare")[0] == list(range(0, step + 1, 400))
    for each in (run, open_run(tmp_path)):
        each.refresh()
        assert columns(each, "loss") == (list(range(1000)), [1 / (1 + step) for step in range(1000)])
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    assert connection.execute("SELECT name, count(*) FROM scalar GROUP BY name").fetchall() == [
        ("loss", 4),
        ("rare", 1),
    ]
    connection.close()
