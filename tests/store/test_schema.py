"""The schema: bins that merge, and a database that explains itself."""

import sqlite3

import numpy as np
import pytest

from gyroscope.store import BINS, SCHEMA_VERSION, bin_edges
from gyroscope.store.schema import APPLICATION_ID, TABLES
from tests.store import make


def test_every_value_falls_into_the_bin_whose_edges_enclose_it():
    edges = bin_edges()
    x = np.random.default_rng(0).lognormal(-5, 8, 2000)
    for value in x:
        k = int(np.flatnonzero(make.count_bins(value))[0])
        assert edges[k] <= value or k == 0
        assert value < edges[k + 1] or k == BINS - 1


def test_an_edge_belongs_to_the_bin_above_it_and_the_outer_bins_are_open():
    assert np.flatnonzero(make.count_bins(bin_edges()[:-1])).tolist() == list(range(BINS))
    assert make.count_bins([0.0, 1e-40, -1e-20])[0] == 3
    assert make.count_bins([1e9, -np.inf])[-1] == 2


def test_a_histogram_leaves_out_nan_and_forgets_the_sign():
    assert make.count_bins([np.nan, 1.0, -1.0]).sum() == 2
    assert np.array_equal(make.count_bins([0.3, -7.0]), make.count_bins([-0.3, 7.0]))


def test_histograms_of_parts_add_up_to_the_histogram_of_the_whole():
    x = np.random.default_rng(1).normal(size=999)
    assert np.array_equal(make.count_bins(x[:100]) + make.count_bins(x[100:]), make.count_bins(x))


def test_every_column_of_the_database_is_documented_in_it(tmp_path):
    make.run_at(tmp_path)
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {
        (table, row[1])
        for table in tables
        if not table.startswith("sqlite_")
        for row in connection.execute(f"PRAGMA table_info({table})")
    }
    told = connection.execute("SELECT table_name, column_name, meaning FROM documentation").fetchall()
    connection.close()
    assert {(table, column) for table, column, _ in told} == columns
    assert len(columns) == sum(map(len, TABLES.values()))
    assert all(len(meaning) > 3 for *_, meaning in told)


@pytest.mark.parametrize(("pragma", "value"), [("user_version", SCHEMA_VERSION), ("application_id", APPLICATION_ID)])
def test_the_file_carries_its_schema_version_and_its_kind(tmp_path, pragma, value):
    make.run_at(tmp_path)
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    assert connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)
    connection.close()
