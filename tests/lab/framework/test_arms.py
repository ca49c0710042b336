"""Arms of an experiment: what is measured of their trainings."""

import pytest
from gyroscope_lab.framework.arms import LOST, Arms, capped_loss, train_course
from gyroscope_lab.framework.experiment import Trial

BASE = {"task": "digits", "model": "mlp:width=8", "steps": 12, "evaluations": 3, "track": False}


def course(**settings):
    config = Arms({**BASE, **settings}, {"sgd": {"optimizer": "sgd"}})
    return train_course(Trial(config, seed=0, part="sgd"))["losses"]


def test_a_course_has_the_loss_of_every_evaluation():
    losses = course(lr=0.1)
    assert len(losses) == 3
    assert losses[2] < losses[0] < LOST


def test_a_run_that_diverges_is_lost_from_then_on():
    assert course(lr=1e30, norm="none") == [LOST] * 3


@pytest.mark.parametrize(("loss", "capped"), [(1.5, 1.5), (1e9, LOST), (float("inf"), LOST), (float("nan"), LOST)])
def test_a_loss_that_is_no_number_is_lost_too(loss, capped):
    assert capped_loss(loss) == capped
