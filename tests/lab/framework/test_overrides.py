"""Settings that a run changes: what they change, what they refuse, and where such a run is written."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gyroscope_lab.framework.catalogue import select
from gyroscope_lab.framework.overrides import override, parse_overrides
from gyroscope_lab.framework.runner import config_of
from gyroscope_lab.training import TrainConfig

from gyroscope.cli import main


@dataclass(frozen=True)
class Config:
    base: dict[str, Any] = field(default_factory=lambda: {"steps": 100, "batch_size": 8})
    arms: dict[str, Any] = field(default_factory=lambda: {"low": {"lr": 0.1}, "high": {"lr": 1.0}})
    points: int = 5
    seeds: int = 3


def test_a_setting_of_training_is_changed_wherever_it_is():
    changed = override(Config(arms={"a": {"steps": 100}, "b": {}}), {"steps": 600})
    assert changed.base["steps"] == 600
    assert changed.arms == {"a": {"steps": 600}, "b": {}}


def test_a_setting_that_no_training_names_is_added_for_all():
    assert override(Config(), {"warmup": 7}).base == {"steps": 100, "batch_size": 8, "warmup": 7}


def test_a_field_of_the_config_is_changed():
    assert override(Config(), {"points": 9}).points == 9


def test_lengths_keep_their_proportions():
    changed = override(Config(base={}, arms={"a": {"steps": 960}, "b": {"steps": 60}}), {"steps": 480})
    assert changed.arms == {"a": {"steps": 480}, "b": {"steps": 30}}


def test_steps_take_the_place_of_epochs():
    assert override(Config(base={"epochs": 90}), {"steps": 600}).base == {"epochs": None, "steps": 600}


@pytest.mark.parametrize(
    ("values", "quoted"),
    [({"lr": 0.3}, "lr=0.3"), ({"stepz": 3}, "did you mean 'steps'"), ({"points": "many"}, "points='many'")],
)
def test_what_arms_compare_or_nobody_has_is_refused(values, quoted):
    with pytest.raises(ValueError, match=quoted):
        override(Config(), values)


@pytest.mark.parametrize("text", ["steps", "=3", "steps="])
def test_a_setting_without_name_or_value_is_refused(text):
    with pytest.raises(ValueError, match="name=value"):
        parse_overrides([text])


def test_every_experiment_that_trains_takes_a_number_of_steps():
    for entry in select(["re", "sp", "smd", "ct"]):
        config = config_of(entry.id, "quick")
        if not hasattr(config, "arms") or isinstance(config.arms, list):
            continue
        changed = config_of(entry.id, "quick", overrides={"steps": 60})
        settings = [TrainConfig.from_dict({**changed.base, **own}) for own in changed.arms.values()]
        assert max(each.steps for each in settings) == 60, entry.id


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gyroscope_lab.framework.figures._svg", lambda figure: "<svg/>")
    return tmp_path


def test_a_run_with_other_seeds_and_settings_says_so_and_is_written_elsewhere(there, capsys):
    argv = ["lab", "run", "sp/eq44", "--seeds", "2", "--first-seed", "1000", "--set", "steps=30"]
    assert main(argv) == 0
    record = json.loads((there / "runs" / "lab" / "sp" / "eq44.json").read_text())
    assert record["seeds"] == [1000, 1001]
    assert record["overrides"] == {"steps": 30}
    assert record["config"]["steps"] == 30
    assert not (there / "results").exists()
    readme = (there / "runs" / "lab" / "README.md").read_text()
    assert "--seeds 2 --first-seed 1000 --set steps=30" in readme


def test_it_takes_the_place_of_the_record_if_asked(there):
    assert main(["lab", "run", "sp/eq44", "--seeds", "1", "--set", "steps=30", "--out", "results"]) == 0
    assert Path("results/sp/eq44.json").exists()


@pytest.mark.parametrize(
    ("argv", "quoted"),
    [("--first-seed 70000", "first_seed=70000"), ("--set stepz=3", "sp/eq44: this experiment has no setting 'stepz'")],
)
def test_bad_input_is_refused_before_anything_is_run(argv, quoted, there, capsys):
    assert main(["lab", "run", "sp/eq44", *argv.split()]) == 2
    assert quoted in capsys.readouterr().err
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
