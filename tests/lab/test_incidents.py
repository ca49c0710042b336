"""Incidents planted in real training are named with their step and cause, and with words that a reader can use."""

import numpy as np
import pytest
from gyroscope_lab.beyond._planted import EVERY, RUN, BranchedRun, train_beginning, train_planted
from gyroscope_lab.beyond.incidents import NETWORKS, judged
from gyroscope_lab.training.config import TrainConfig

from gyroscope.measure.quantities import PER_LAYER, PER_VECTOR
from gyroscope.store import open_run

pytestmark = pytest.mark.slow

WORDS = {
    "garbage batch": "the batch of that step is unlike the others",
    "learning rate": "the learning rate was 10 times as high as before, 0.5 instead of 0.05, and came back to 0.05",
    "frozen layer": "features.4.weight has had no gradient since step 1,010",
    "doubled weights": "the weights of features.4.weight were modified outside the optimizer",
    "layer's gradient once": "the updates of features.4.weight reached ",
    "skipped steps": "Between steps 1,001 and 1,010 a GradScaler skipped 20 of 30 steps",
}
# Whether one step stands out from the noise before it depends on the seed and on the machine, so more seeds are tried.
SINGLE_STEPS = ("garbage batch", "layer's gradient once")
# These follow a run from its first step on, and a branch is a run of its own.
FROM_THE_START = ("forecast_angular_update", "forecast_norm", "angle_to_start")


@pytest.mark.parametrize("planted", WORDS)
def test_an_incident_between_two_samples_is_named_with_its_step_and_cause(planted, tmp_path):
    settings, layer = NETWORKS["mlp"]
    for seed in range(4 if planted in SINGLE_STEPS else 1):
        config = TrainConfig(**settings, steps=1040, seed=seed)
        path = train_planted(config, tmp_path / str(seed), planted=planted, at=1003, layer=layer)
        with open_run(path) as run:
            found = judged(run, planted, 1003)
            assert found["others"] == [0, 0]
            findings = [finding for finding in run.diagnose() if finding.kind == "incident"]
        if found["named"][0]:
            break
    assert found["named"][0]
    (finding,) = findings
    assert WORDS[planted] in finding.sentence
    assert finding.severity == "warn"
    assert finding.remedy


def test_training_without_an_incident_has_none(tmp_path):
    settings, _ = NETWORKS["mlp"]
    with open_run(train_planted(TrainConfig(**settings, steps=1040), tmp_path)) as run:
        assert judged(run, "clean", 0)["others"] == [0, 0]


@pytest.mark.parametrize(("network", "planted"), [("cnn", "layer's gradient once"), ("mlp", "skipped steps")])
def test_a_training_that_branches_off_has_the_numbers_of_a_whole_one(network, planted, tmp_path):
    settings, layer = NETWORKS[network]
    config = TrainConfig(**settings, steps=150)
    whole = train_planted(config, tmp_path / "whole", planted=planted, at=103, layer=layer)
    train_beginning(config, tmp_path / "begun", 9 * EVERY)
    branch = train_planted(
        config, tmp_path / "branch", planted=planted, at=103, layer=layer, beginning=tmp_path / "begun"
    )
    with open_run(whole) as run, open_run(tmp_path / "begun" / RUN) as first, open_run(branch) as second:
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
