"""Arms of an experiment: what is measured of their trainings."""

import pytest

from gyroscope.lab.arms import LOST, Arms, capped_loss, train_arm
from gyroscope.lab.experiment import Trial


def test_a_run_that_diverges_has_a_loss_and_no_accuracy():
    base = {"task": "digits", "model": "mlp:width=8", "norm": "none", "steps": 12, "track": False}
    config = Arms(base, {"sgd": {"optimizer": "sgd", "lr": 1e30}})
    assert train_arm(Trial(config, seed=0, part="sgd")) == {"loss": LOST, "accuracy": 0.0}


@pytest.mark.parametrize(("loss", "capped"), [(1.5, 1.5), (1e9, LOST), (float("inf"), LOST), (float("nan"), LOST)])
def test_a_loss_that_is_no_number_is_lost_too(loss, capped):
    assert capped_loss(loss) == capped
