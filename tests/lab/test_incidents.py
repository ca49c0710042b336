"""Incidents planted in real training are named with their step and cause, and with words that a reader can use."""

from contextlib import contextmanager

import numpy as np
import pytest
from gyroscope_lab.beyond._planted import BranchedRun, last_sample, train_beginning, train_planted
from gyroscope_lab.beyond.incidents import NETWORKS, judged
from gyroscope_lab.training.config import TrainConfig

from gyroscope.advice.incidents import incident_finding, incidents
from gyroscope.measure.quantities import PER_LAYER, PER_VECTOR
from gyroscope.store import open_run

pytestmark = pytest.mark.slow

WORDS = {
    "garbage batch": "the batch of that step is unlike the others",
    "learning rate": "the learning rate was 10 times as high as before, 0.5 instead of 0.05, and came back to 0.05",
    "frozen layer": "features.4.weight has had no gradient since step 1,010",
    "doubled weights": "the weights of features.4.weight were modified outside the optimizer",
}
AT = 1003
# The folder of the run with samples at every tenth step.
RUN = "tenth"
# The run of the tracker that measures every tenth step.
RUN = "tenth"
# By step 1,000 the network has memorised its examples. From batch to batch its losses vary over three orders of
# magnitude, and rounding on another processor changes them, so a single step is planted in several trainings.
SEEDS = 6
# These follow a run from its first step on, and a branch is a run of its own.
FROM_THE_START = ("forecast_angular_update", "forecast_norm", "angle_to_start")


@pytest.mark.parametrize("planted", WORDS)
def test_an_incident_between_two_samples_is_named_with_its_step_and_cause(planted, tmp_path):
    settings, layer = NETWORKS["mlp"]
    config = TrainConfig(**settings, steps=1040)
    with open_run(train_planted(config, tmp_path, planted=planted, at=AT, layer=layer) / RUN) as run:
        found = judged([run], planted, AT)
        findings = [finding for finding in run.diagnose() if finding.kind == "incident"]
    assert found["named"][0]
    assert found["others"] == [0, 0]
    (finding,) = findings
    assert WORDS[planted] in finding.sentence
    assert finding.severity == "warn"
    assert finding.remedy


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the config and the folder of each training up to the last sample before the incident."""
    settings, _ = NETWORKS["mlp"]
    trainings = []
    for seed in range(SEEDS):
        config = TrainConfig(**settings, steps=1040, seed=seed)
        folder = tmp_path_factory.mktemp("begun")
        train_beginning(config, folder, last_sample(AT))
        trainings.append((config, folder))
    return trainings


@contextmanager
def branched(config, beginning, folder, planted, layer):
    path = train_planted(config, folder, planted=planted, at=AT, layer=layer, beginning=beginning)
    with open_run(beginning / RUN) as first, open_run(path / RUN) as second:
        yield BranchedRun(first, second)


# A batch is named by its loss, which is logged at every step, unless earlier losses varied as much. A gradient that was
# large once is named by what momentum keeps of it seven steps later. It is too little if the gradient was small before
# it was multiplied: 8 of 12 trainings had it named. At this rate 49 of 50 sets of six have two.
@pytest.mark.parametrize(("planted", "least"), [("garbage batch", SEEDS - 1), ("layer's gradient once", 2)])
def test_a_single_step_is_named_after_all_examples_were_memorised(planted, least, begun, tmp_path):
    _, layer = NETWORKS["mlp"]
    found = []
    for seed, (config, beginning) in enumerate(begun):
        with branched(config, beginning, tmp_path / str(seed), planted, layer) as run:
            found.append(judged([run], planted, AT))
    assert np.array([each["named"] for each in found])[:, 0].sum() >= least
    # One false alarm is expected in 30,000 steps, and these are 6,000.
    assert np.array([each["others"] for each in found])[:, 0].sum() <= 1


def test_a_gradient_that_was_large_once_is_named_by_what_adam_keeps_of_it(tmp_path):
    settings, layer = NETWORKS["mlp"]
    config = TrainConfig(**{**settings, "optimizer": "adamw", "lr": 1e-3}, steps=1040)
    path = train_planted(config, tmp_path, planted="layer's gradient once", at=AT, layer=layer)
    with open_run(path / RUN) as run:
        found = judged([run], "layer's gradient once", AT)
        (incident,) = incidents(run)
    assert found["named"] == [True, True]
    assert found["others"] == [0, 0]
    assert incident.layers[0] == layer
    assert "Adam's denominator became" in incident_finding(incident).sentence


def test_training_without_an_incident_has_none(tmp_path):
    settings, _ = NETWORKS["mlp"]
    with open_run(train_planted(TrainConfig(**settings, steps=1040), tmp_path) / RUN) as run:
        assert judged([run], "clean", 0)["others"] == [0, 0]


@pytest.mark.parametrize(("network", "planted"), [("cnn", "layer's gradient once"), ("mlp", "frozen layer")])
def test_a_training_that_branches_off_has_the_numbers_of_a_whole_one(network, planted, tmp_path):
    settings, layer = NETWORKS[network]
    config = TrainConfig(**settings, steps=150)
    whole = train_planted(config, tmp_path / "whole", planted=planted, at=103, layer=layer)
    train_beginning(config, tmp_path / "begun", last_sample(103))
    branch = train_planted(
        config, tmp_path / "branch", planted=planted, at=103, layer=layer, beginning=tmp_path / "begun"
    )
    begun = tmp_path / "begun" / RUN
    with open_run(whole / RUN) as run, open_run(begun) as first, open_run(branch / RUN) as second:
        joined = BranchedRun(first, second)
        np.testing.assert_array_equal(joined.steps, run.steps)
        np.testing.assert_array_equal(joined.scalar("loss"), run.scalar("loss"))
        for row in (*PER_VECTOR, *PER_LAYER):
            if row.name in FROM_THE_START:
                continue
            for name in run.layers:
                quantity = row.name
                expected = run.series(name, quantity)
                np.testing.assert_array_equal(joined.series(name, quantity), expected, err_msg=quantity)
