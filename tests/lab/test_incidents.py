"""Incidents planted in real training are named with their step and cause, and with words that a reader can use."""

import pytest

from gyroscope.lab.beyond._planted import train_planted
from gyroscope.lab.beyond.incidents import NETWORKS, judged
from gyroscope.lab.training.config import TrainConfig
from gyroscope.store import open_run

WORDS = {
    "garbage batch": "the batch of that step is unlike the others",
    "learning rate": "the learning rate was 10 times as high as before, 0.5 after 0.05, and came back to 0.05",
    "frozen layer": "features.4.weight has had no gradient since step 1,010",
    "doubled weights": "the weights of features.4.weight were changed by something else than the optimizer",
}


@pytest.mark.parametrize("planted", WORDS)
def test_an_incident_between_two_samples_is_named_with_its_step_and_cause(planted, tmp_path):
    settings, layer = NETWORKS["mlp"]
    path = train_planted(TrainConfig(**settings, steps=1040), tmp_path, planted=planted, at=1003, layer=layer)
    found = judged(path, planted, 1003)
    assert found["named"][0]
    assert found["others"] == [0, 0]
    with open_run(path) as run:
        (finding,) = [finding for finding in run.diagnose() if finding.kind == "incident"]
    assert WORDS[planted] in finding.sentence
    assert finding.severity == "warn"
    assert finding.remedy


def test_training_without_an_incident_has_none(tmp_path):
    settings, _ = NETWORKS["mlp"]
    path = train_planted(TrainConfig(**settings, steps=1040), tmp_path)
    assert judged(path, "clean", 0)["others"] == [0, 0]
