"""A run as a table for other programs."""

import csv
import sys

import numpy as np
import pytest

from gyroscope.store import STATISTICS, open_run
from tests.store import make


def test_a_csv_holds_every_number_exactly_and_nothing_that_was_not_measured(tmp_path):
    run = open_run(make.run_at(tmp_path / "run", steps=3, layers=2))
    run.export(tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "layer", "quantity", *STATISTICS]
    assert len(rows) == 2 * 3 * 3  # two layers, three samples, three quantities: the weight decay is never known
    for row in rows:
        stats = STATISTICS if run.quantities[row["quantity"]].per_vector else STATISTICS[:1]
        at = run.steps.tolist().index(int(row["step"]))
        for stat in STATISTICS:
            if stat in stats:
                assert np.float32(row[stat]) == run.series(row["layer"], row["quantity"], stat)[at]
            else:
                assert row[stat] == ""


def test_odd_names_survive_a_csv(tmp_path):
    name = 'a,"b"\n<c>'
    with make.writer(tmp_path / "run", layers=0) as writer:
        writer.put(make.Sample(0, 0.0, {writer.add_layer(make.layer(name)): make.layer_sample(0)}))
    open_run(tmp_path / "run").export(str(tmp_path / "out.csv"))
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        assert {row["layer"] for row in csv.DictReader(file)} == {name}


def test_another_format_is_refused_with_those_there_are(tmp_path):
    run = open_run(make.run_at(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"'.xlsx'. End it in .csv or .parquet"):
        run.export(tmp_path / "out.xlsx")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run = open_run(make.run_at(tmp_path / "run"))
    with pytest.raises(RuntimeError, match=r"needs pyarrow.*pip install pyarrow.*or export to .csv"):
        run.export(tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_parquet_holds_what_the_csv_holds(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run = open_run(make.run_at(tmp_path / "run", steps=3, layers=2))
    run.export(tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(table) == 18
    row = next(row for row in table if (row["step"], row["layer"], row["quantity"]) == (2, "layer1", "norm"))
    assert [row[stat] for stat in STATISTICS] == [run.series("layer1", "norm", stat)[2] for stat in STATISTICS]
