"""The angle between the initial and the final weights, against simulated walks and in its limits."""

import numpy as np
import pytest
import torch
from gyroscope_lab.simulate import random_walk

from gyroscope import optim
from gyroscope.theory import SGDM, AdamL2, AdamW, FixedNorm, Hyperball, Lion, constant, cosine, forecast
from gyroscope.theory.law import angle_to_start

STEPS = 600
SCHEDULE = cosine(STEPS, warmup=30, final=0.1)
SHAPE = (64, 256)


def hyperball(params):
    return optim.Rotational(torch.optim.AdamW(params, lr=0.01, weight_decay=0.0), mode="hyperball")


# Rule, what the simulation takes for it, and the initial norm: far below, near and far above equilibrium.
WALKS = {
    "AdamW from a small norm": (AdamW(1e-3, 0.1), None, 0.3),
    "AdamW over several memories": (AdamW(1e-2, 0.5), None, 1.0),
    "AdamW from a large norm": (AdamW(3e-3, 0.3), None, 4.0),
    "SGDM": (SGDM(0.05, 0.01, 0.9), None, 1.5),
    "SGDM over several memories": (SGDM(0.1, 0.05, 0.9), None, 3.0),
    "Lion": (Lion(1e-3, 1.0), None, 1.0),
    "Lion from a large norm": (Lion(3e-3, 0.3), None, 6.0),
    "AdamL2 from a large norm": (AdamL2(3e-3, 0.03), None, 2.0),
    "Hyperball": (Hyperball(0.01, momentum=0.9), hyperball, 1.0),
}


@pytest.mark.parametrize("name", WALKS)
def test_it_is_within_three_percent_of_a_random_walk(name):
    rule, optimizer, norm = WALKS[name]
    is_matrix = optimizer is not None
    granularity = "tensor" if is_matrix else "neuron"
    walk = random_walk(
        optimizer or rule, SCHEDULE, norm=norm, shape=SHAPE, granularity=granularity, every=50, reference=0
    )
    # The walk remembers its direction after the first step, which is a small part of the way. Updates of Hyperball are
    # less alike until the momentum has filled.
    walk = walk.after(100)
    measured = np.arccos(walk.cosine.mean(axis=-1))
    predicted = forecast(rule, SCHEDULE, norm=norm, fan_in=SHAPE[1], unit_grad_norm=1.0).angle_to_start
    np.testing.assert_allclose(predicted[walk.steps], measured, rtol=0.03)


def test_it_is_the_angle_of_the_first_step_and_a_right_angle_in_the_end():
    course = forecast(AdamW(1e-2, 0.5), constant(4000), norm=[1.0, 3.0], fan_in=[64, 256])
    assert course.angle_to_start.shape == (4000, 2)
    assert course.angle_to_start[0] == pytest.approx(course.angular_update[0], rel=1e-3)
    assert course.angle_to_start[-1] == pytest.approx(np.pi / 2, abs=1e-6)
    assert course.layer(1).angle_to_start == pytest.approx(course.angle_to_start[:, 1])


def test_a_rule_that_keeps_norms_forgets_by_its_memory():
    for rule in (FixedNorm(AdamW(1e-3, 0.1)), Hyperball(0.01, momentum=0.9)):
        course = forecast(rule, constant(500), norm=2.0)
        expected = np.arccos((1 - 1 / rule.timescale) ** np.arange(1, 501))
        assert course.angle_to_start == pytest.approx(expected)


def test_it_is_unknown_without_a_memory():
    assert np.isnan(forecast(Hyperball(0.01), steps=20, norm=1.0).angle_to_start).all()


def test_rounding_does_not_lead_beyond_a_cosine_of_one():
    assert angle_to_start(1.0, 1.0 - 1e-16, 0.0) == 0.0
