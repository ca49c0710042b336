"""Runs with other seeds, and records that are judged again."""

import json

import pytest

from gyroscope.cli import main


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gyroscope_lab.framework.figures._svg", lambda figure: "<svg/>")
    return tmp_path


def test_a_run_with_other_seeds_says_so_and_is_written_elsewhere(there, capsys):
    assert main(["lab", "run", "sp/eq44", "--seeds", "2", "--first-seed", "1000"]) == 0
    record = json.loads((there / "runs" / "lab" / "sp" / "eq44.json").read_text())
    assert record["seeds"] == [1000, 1001]
    assert not (there / "results").exists()
    assert "--seeds 2 --first-seed 1000" in (there / "runs" / "lab" / "sp" / "eq44.md").read_text()


def test_it_takes_the_place_of_the_record_if_asked(there):
    assert main(["lab", "run", "sp/eq44", "--seeds", "1", "--first-seed", "5", "--out", "results"]) == 0
    assert (there / "results" / "sp" / "eq44.json").exists()


def test_a_first_seed_that_chooses_is_refused_before_anything_is_run(there, capsys):
    assert main(["lab", "run", "sp/eq44", "--first-seed", "70000"]) == 2
    assert "first_seed=70000" in capsys.readouterr().err
    assert not list(there.iterdir())


@pytest.mark.parametrize("named", ["sp/eq44", "sp"])  # of a paper, those that have a record
def test_a_record_is_judged_again_without_measuring(named, there, capsys):
    assert main(["lab", "run", "sp/eq44", "--seeds", "2"]) == 0
    path = there / "results" / "sp" / "eq44.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "claims": []}))
    assert main(["lab", "judge", named]) == 0
    after = json.loads(path.read_text())
    assert {key: after[key] for key in before} == before
    assert "commit" in after["judged_by"]
