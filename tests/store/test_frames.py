"""Runs as one table for other programs."""

import csv
import sys
from types import ModuleType

import numpy as np
import pytest

from gyroscope.cli import main
from gyroscope.store import STATISTICS, export, open_run
from tests.store import make

COLUMNS = ["run", "step", "layer", "quantity", *STATISTICS]


def logged_run(path, steps=3):
    with make.writer(path, layers=2) as writer:
        for step in range(steps):
            writer.put(make.sample(step, layers=2))
        writer.put_scalars([(step, {"loss": 1 / (3 + step)}) for step in range(steps)])
    return open_run(path)


def csv_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class FakeFrame(dict):
    """A data frame of a library that is not installed."""


@pytest.fixture
def installed(monkeypatch):
    """Set which libraries of tables are installed."""

    def install(*names):
        for name in ("pandas", "polars", "pyarrow"):
            module = ModuleType(name)
            vars(module)["DataFrame"] = type(name, (FakeFrame,), {})
            monkeypatch.setitem(sys.modules, name, module if name in names else None)

    return install


def test_a_csv_holds_every_number_of_series_exactly_and_nothing_that_was_not_measured(tmp_path):
    run = open_run(make.run_at(tmp_path / "run", steps=3, layers=2))
    run.export(tmp_path / "out.csv")
    rows = csv_rows(tmp_path / "out.csv")
    assert list(rows[0]) == COLUMNS
    assert len(rows) == 2 * 3 * 3  # two layers, three samples, three quantities: the weight decay is never known
    for row in rows:
        at = run.steps.tolist().index(int(row["step"]))
        for stat in STATISTICS:
            assert np.float32(row[stat]) == run.series(row["layer"], row["quantity"], stat)[at]


def test_odd_names_survive_a_csv(tmp_path):
    name = 'a,"b"\n<c>'
    with make.writer(tmp_path / "run", layers=0) as writer:
        writer.put(make.Sample(0, 0.0, {writer.add_layer(make.layer(name)): make.layer_sample(0)}))
    open_run(tmp_path / "run").export(str(tmp_path / "out.csv"))
    assert {row["layer"] for row in csv_rows(tmp_path / "out.csv")} == {name}


def test_several_runs_are_one_table_with_a_column_run_and_their_losses(tmp_path):
    runs = [logged_run(tmp_path / name) for name in ("first", "second")]
    export(runs, tmp_path / "out.csv")
    rows = csv_rows(tmp_path / "out.csv")
    assert list(rows[0]) == COLUMNS
    assert len(rows) == 2 * (18 + 3)
    losses = {(row["run"], int(row["step"])): float(row["mean"]) for row in rows if row["quantity"] == "loss"}
    assert losses == {(name, step): 1 / (3 + step) for name in ("first", "second") for step in range(3)}
    assert {row["layer"] for row in rows if row["quantity"] == "loss"} == {""}


def test_runs_in_folders_of_one_name_are_named_by_their_paths(tmp_path):
    runs = [logged_run(tmp_path / folder / "run", steps=1) for folder in ("a", "b")]
    export(runs, tmp_path / "out.csv")
    assert {row["run"] for row in csv_rows(tmp_path / "out.csv")} == {str(run.path) for run in runs}


def test_an_empty_run_is_a_table_without_rows(tmp_path):
    make.run_at(tmp_path / "run", steps=0)
    for name in ("out.csv", "out.parquet"):
        open_run(tmp_path / "run").export(tmp_path / name)
    assert csv_rows(tmp_path / "out.csv") == []


def test_another_format_is_refused_with_those_there_are(tmp_path):
    run = open_run(make.run_at(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"'.json': end it in .csv or .parquet"):
        run.export(tmp_path / "out.json")


def test_parquet_without_a_library_says_what_to_install(tmp_path, installed):
    installed("pandas", "polars")
    run = open_run(make.run_at(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"needs pyarrow.*pip install pyarrow.*or export to .csv"):
        run.export(tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_parquet_holds_what_the_csv_holds(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run = logged_run(tmp_path / "run")
    run.export(tmp_path / "out.parquet")
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(rows) == 18 + 3
    row = next(row for row in rows if (row["step"], row["layer"], row["quantity"]) == (2, "layer1", "norm"))
    assert [row[stat] for stat in STATISTICS] == [run.series("layer1", "norm", stat)[2] for stat in STATISTICS]
    assert [row["mean"] for row in rows if row["quantity"] == "loss"] == [1 / 3, 1 / 4, 1 / 5]


def test_an_export_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    run = open_run(make.run_at(tmp_path / "run"))
    (tmp_path / "out.csv").write_text("old")
    run.close()
    with pytest.raises(ValueError, match="closed"):
        run.export(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.csv", "run"]


@pytest.mark.parametrize(
    ("names", "library"), [(("pandas", "polars"), "pandas"), (("polars",), "polars"), (("pandas",), "pandas")]
)
def test_a_frame_has_the_rows_of_the_table(tmp_path, installed, names, library):
    installed(*names)
    run = logged_run(tmp_path / "run")
    columns = run.frame()
    assert type(columns).__name__ == library
    assert list(columns) == COLUMNS
    assert {len(values) for values in columns.values()} == {18 + 3}
    loss = columns["quantity"] == "loss"
    assert columns["mean"][loss].tolist() == [1 / 3, 1 / 4, 1 / 5]
    norm = (columns["quantity"] == "norm") & (columns["layer"] == "layer1")
    assert columns["step"][norm].tolist() == [0, 1, 2]
    assert columns["rms"][norm].tolist() == run.series("layer1", "norm", "rms").tolist()


def test_a_frame_of_pandas_has_these_columns(tmp_path):
    pytest.importorskip("pandas")
    assert list(open_run(make.run_at(tmp_path / "run")).frame().columns) == COLUMNS


def test_a_frame_without_its_library_says_what_to_install(tmp_path, installed):
    installed()
    run = open_run(make.run_at(tmp_path / "run"))
    with pytest.raises(ValueError, match="frame needs pandas or polars, which is not installed: pip install pandas"):
        run.frame()


def test_the_command_export_writes_several_runs_to_one_file(tmp_path, capsys):
    for name in ("first", "second"):
        logged_run(tmp_path / name).close()
    out = tmp_path / "out.csv"
    assert main(["export", str(tmp_path / "first"), str(tmp_path / "second"), str(out)]) == 0
    assert {row["run"] for row in csv_rows(out)} == {"first", "second"}
    assert main(["export", str(out)]) == 2
    assert "Missing argument 'RUN'. Example: gyroscope export" in capsys.readouterr().err


def test_an_export_never_replaces_a_file_of_its_run_and_writes_nothing_beside_it(tmp_path, capsys):
    path = tmp_path / "run"
    logged_run(path).close()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    link = tmp_path / "table.csv"
    link.symlink_to(path / "run.sqlite")
    for out, words in (
        (link, "is an input, and the output would replace it"),
        (path / "table.csv", "is in the folder"),
    ):
        assert main(["export", str(path), str(out)]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
