"""The last step taken back from weights and state, against the tracker that measured it."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam, AdamW

import gyroscope as gyro
from gyroscope.checkpoint.last_step import StepSums, angles, forces, radial_decay
from tests.checkpoint.training import assert_same_rotation, train


def state_dicts(trained, **model):
    return {"model": {**trained.model.state_dict(), **model}, "optimizer": trained.optimizer.state_dict()}


EXACT = {
    "AdamW": partial(AdamW, lr=1e-2, weight_decay=0.1),
    "AdamW with other settings": partial(AdamW, lr=3e-3, betas=(0.8, 0.95), eps=1e-3, weight_decay=1.0),
    "Adam with L2": partial(Adam, lr=1e-2, weight_decay=0.1),
    "SGD with momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "SGD with dampening": partial(SGD, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=1e-2),
    "a maximised objective": partial(AdamW, lr=1e-2, weight_decay=0.1, maximize=True),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_rotation_of_the_last_step_is_the_trackers_for_every_neuron(name, tmp_path):
    trained = train(tmp_path, EXACT[name])
    autopsy = gyro.autopsy(state_dicts(trained))
    assert all(layer.exact for layer in autopsy.layers.values())
    assert_same_rotation(autopsy, trained, tolerance=1e-4)


@pytest.mark.parametrize("name", ["AdamW", "SGD with momentum"])
def test_weights_saved_in_bfloat16_give_the_rotation_within_2_percent(name, tmp_path):
    trained = train(tmp_path, EXACT[name])
    weights = {key: value.bfloat16() for key, value in trained.model.state_dict().items()}
    assert_same_rotation(gyro.autopsy(state_dicts(trained, **weights)), trained, tolerance=0.02)


ESTIMATES = {
    "Nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Lion": partial(gyro.optim.Lion, lr=1e-3, weight_decay=0.1),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates_are_called_so_and_are_within_15_percent_on_average(name, tmp_path):
    trained = train(tmp_path, ESTIMATES[name])
    autopsy = gyro.autopsy(state_dicts(trained))
    for layer, measured in trained.rotations.items():
        assert not autopsy.layers[layer].exact
        assert autopsy.layers[layer].rotation == pytest.approx(measured.mean(), rel=0.15)
    assert "~" in str(autopsy)


def test_muon_turns_each_matrix_as_a_whole_by_the_length_of_its_rule(tmp_path):
    trained = train(
        tmp_path,
        partial(torch.optim.Muon, lr=1e-2, weight_decay=0.1),
        groups=lambda model: [p for p in model.parameters() if p.dim() == 2],
    )
    autopsy = gyro.autopsy(state_dicts(trained))
    for name, measured in trained.rotations.items():
        assert autopsy.layers[name].vectors == 1
        assert autopsy.layers[name].rotation == pytest.approx(measured.mean(), rel=0.15)


def test_a_rotational_optimizers_step_is_not_undone_and_that_is_said(tmp_path):
    trained = train(tmp_path, partial(gyro.optim.RotationalAdamW, lr=1e-2, weight_decay=0.1))
    autopsy = gyro.autopsy(state_dicts(trained))
    assert all(np.isnan(layer.rotation) and layer.predicted_rotation > 0 for layer in autopsy.layers.values())
    assert "cannot be taken back" in str(autopsy)


def walk(radial: float, *, tangent: bool = True, seed: int = 0):
    """AdamW on 64 vectors of 128 entries under noise, and `radial` times the weight as a gradient beside it."""
    rng = np.random.default_rng(seed)
    lr, wd, beta1 = 0.005, 1.0, 0.9
    w = rng.standard_normal((64, 128)) * 0.5
    m = np.zeros_like(w)
    totals = []
    for step in range(3000):
        g = rng.standard_normal(w.shape)
        g -= w * ((g * w).sum(1) / (w * w).sum(1))[:, None] * tangent
        m = beta1 * m + (1 - beta1) * (g + radial * w)
        w = (1 - lr * wd) * w - lr * m
        if step >= 1000:
            sums = StepSums((w * w).sum(1), (w * m).sum(1), (m * m).sum(1))
            totals.append(sums.before(lr, lr * wd).total())
    return totals, (lr, lr * wd, wd, beta1)


@pytest.mark.parametrize("radial", [0.0, 0.5, -0.3])
def test_a_planted_radial_gradient_comes_back_as_lambda_u(radial):
    totals, settings = walk(radial)
    found = [radial_decay(total, 64 * 128, *settings) for total in totals]
    assert np.mean([each.value for each in found]) == pytest.approx(radial, abs=0.01)
    assert np.std([each.value for each in found]) < np.mean([each.error for each in found])


def test_lambda_u_of_one_step_scatters_by_its_error_where_noise_is_not_tangent():
    """As Adam's is, which divides each entry by its own √v."""
    totals, settings = walk(0.0, tangent=False)
    found = [radial_decay(total, 64 * 128, *settings) for total in totals]
    assert np.mean([each.value for each in found]) == pytest.approx(0.0, abs=0.02)
    assert np.std([each.value for each in found]) == pytest.approx(np.mean([each.error for each in found]), rel=0.3)


def test_tangent_gradients_explain_the_whole_push_along_the_weight():
    totals, settings = walk(0.0)
    pushes = [forces(total, *settings) for total in totals]
    turned_back = np.mean([push.turned_back for push in pushes])
    assert np.mean([push.explained for push in pushes]) == pytest.approx(turned_back, rel=0.02)
    # Decay, growth and push keep the norm where it is.
    assert np.mean([push.decay + push.growth + push.turned_back for push in pushes]) == pytest.approx(0.0, abs=2e-4)


def test_lambda_u_of_sgd_is_that_of_the_gradient_without_the_l2_term():
    rng = np.random.default_rng(0)
    lr, wd, alpha, radial = 0.02, 0.05, 0.9, 0.02
    w = rng.standard_normal((64, 128)) * 0.3
    m = np.zeros_like(w)
    values = []
    for step in range(3000):
        g = rng.standard_normal(w.shape) * 0.05
        g -= w * ((g * w).sum(1) / (w * w).sum(1))[:, None]
        m = alpha * m + g + (wd + radial) * w
        w = w - lr * m
        if step >= 1500:
            before = StepSums((w * w).sum(1), (w * m).sum(1), (m * m).sum(1)).before(lr, 0.0)
            values.append(radial_decay(before.total(), w.size, lr, 0.0, wd, alpha).value)
    assert np.mean(values) == pytest.approx(radial, abs=0.002)


def test_a_vector_of_zeros_has_no_angle_and_a_radial_step_has_angle_0():
    sums = StepSums(np.array([0.0, 4.0]), np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    turned = angles(sums, lr=0.1, decay=0.0)
    assert np.isnan(turned[0])
    assert turned[1] == 0.0
