"""The last step taken back from weights and state, against the tracker that measured it."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop
from torch.optim import lr_scheduler as schedulers

import gyroscope as gyro
from gyroscope.checkpoint.last_step.inverse_step import StepSums, angles, radial_decay
from gyroscope.checkpoint.last_step.last_update import last_update
from gyroscope.geometry import Split
from gyroscope.optim import RotationalAdamW, RotationalSGD, follow
from tests.checkpoint.training import STEPS, assert_same_rotation, network, train
from tests.needs import needs_muon


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


@needs_muon
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


def test_the_error_that_is_stated_for_muon_holds_for_a_wide_head(tmp_path):
    """Rows of a head's gradient add up to zero, and an orthogonalised matrix of lower rank is shorter."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 256, bias=False), torch.nn.LayerNorm(256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    muon = partial(torch.optim.Muon, lr=1e-2, weight_decay=0.1)
    trained = train(tmp_path, muon, model=model, groups=lambda model: [p for p in model.parameters() if p.dim() == 2])
    head = gyro.autopsy(state_dicts(trained)).layers["3.weight"]
    off = head.rotation / trained.rotations["3.weight"].mean() - 1
    assert 0.15 < off < head.error


@needs_muon
def test_the_error_of_muon_depends_on_the_smaller_dimension_and_the_autopsy_prints_it(tmp_path):
    """It was 35 % for all shapes: too much for large matrices, and too little for heads of a few rows."""
    torch.manual_seed(0)
    shapes = {"0.weight": (64, 32), "3.weight": (64, 64), "6.weight": (10, 64)}
    layers = []
    for rows, columns in shapes.values():
        layers += [torch.nn.Linear(columns, rows, bias=False), torch.nn.LayerNorm(rows), torch.nn.ReLU()]
    muon = partial(torch.optim.Muon, lr=1e-2, weight_decay=0.1)
    model = torch.nn.Sequential(*layers[:-2])
    trained = train(tmp_path, muon, model=model, groups=lambda model: [p for p in model.parameters() if p.dim() == 2])
    autopsy = gyro.autopsy(state_dicts(trained))
    for name, expected in (("0.weight", 0.05), ("3.weight", 0.05), ("6.weight", 0.35)):
        layer = autopsy.layers[name]
        assert layer.error == expected
        assert abs(layer.rotation / trained.rotations[name].mean() - 1) < expected
    text = " ".join(str(autopsy).split())
    assert "the mean of a layer of this size was within 5 %" in text
    assert "the mean of a layer of this size was within 35 %" in text
    assert last_update("Muon", {}).error((2, 16)) == 1.2


def rotational(inner, **options):
    """The wrapper around an inner optimizer."""
    return lambda parameters: gyro.optim.Rotational(inner(parameters), **options)


OTHER_EXACT = {
    "AdamW with amsgrad": partial(AdamW, lr=1e-2, weight_decay=0.1, amsgrad=True),
    "RAdam": partial(RAdam, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam with L2": partial(RAdam, lr=1e-2, weight_decay=0.01, betas=(0.9, 0.95)),
    "RAdam in its first steps": partial(RAdam, lr=1e-2, betas=(0.9, 0.9999), eps=1e-3),
    "Adamax": partial(Adamax, lr=1e-2, weight_decay=0.01),
    "RMSprop with momentum": partial(RMSprop, lr=1e-3, momentum=0.9, weight_decay=0.01),
    "RotationalAdamW": partial(RotationalAdamW, lr=1e-2, weight_decay=0.1),
    "RotationalAdamW at large angles": partial(RotationalAdamW, lr=0.2, weight_decay=1.0, beta=0.9),
    "RotationalAdamW with centred weights": partial(RotationalAdamW, lr=1e-2, weight_decay=0.1, centre="weights"),
    "RotationalAdamW without centring": partial(RotationalAdamW, lr=1e-2, weight_decay=0.1, centre=False),
    "RotationalAdamW of whole tensors": partial(RotationalAdamW, lr=1e-2, weight_decay=0.1, granularity="tensor"),
    "RotationalAdamW with the average under noise": partial(
        RotationalAdamW, lr=1e-2, weight_decay=0.1, update_average="noise"
    ),
    "RotationalSGD": partial(RotationalSGD, lr=0.1, weight_decay=0.01),
    "RotationalSGD with the average under noise": partial(
        RotationalSGD, lr=0.1, weight_decay=0.01, update_average="noise"
    ),
    "Rotational AdamW": rotational(partial(AdamW, lr=1e-2, weight_decay=0.1)),
    "Rotational AdamW by a given angle": rotational(partial(AdamW, lr=1e-2), angular_update=0.02),
    "Rotational Adam with L2": rotational(partial(Adam, lr=1e-2, weight_decay=0.1), angular_update=0.02),
    "Rotational SGD with dampening": rotational(partial(SGD, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01)),
    "Rotational RAdam": rotational(partial(RAdam, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True)),
    "AdamH": rotational(partial(AdamW, lr=1e-2), mode="hyperball"),
    "hyperball with momentum": rotational(partial(SGD, lr=0.1, momentum=0.95), mode="hyperball", granularity="neuron"),
    "tangent hyperball": rotational(partial(AdamW, lr=1e-2), mode="hyperball", tangent=True),
    "AdamS": partial(gyro.optim.AdamS, lr=1e-2, weight_decay=0.01),
    "AdamSRT": partial(gyro.optim.AdamSRT, lr=1e-2, weight_decay=0.01),
    "SphericalAdam": partial(gyro.optim.SphericalAdam, lr=1e-2),
    "AdamG*": partial(gyro.optim.SphericalAdam, lr=1e-2, betas=(0.0, 0.99), v0=0.1),
    "KAdam": partial(gyro.optim.KAdam, lr=1e-2, weight_decay=0.1),
    "KAdam of three stages": partial(gyro.optim.KAdam, lr=1e-2, k=3, weight_decay=0.1, coupled=True),
}
# What the file leaves open.
ASKED = {"AdamS": "adam-s", "AdamSRT": "adam-srt"}
# An entry of 0.1 in float32 has steps of 7e-9: of angles below 1e-4 rad the tracker sees fewer digits.
ROUNDING = 3e-8


@pytest.mark.parametrize("name", OTHER_EXACT)
def test_the_last_step_of_other_optimizers_is_the_trackers_for_every_neuron(name, tmp_path):
    steps = 3 if "first steps" in name else STEPS
    trained = train(tmp_path, OTHER_EXACT[name], steps=steps)
    autopsy = gyro.autopsy(state_dicts(trained), optimizer=ASKED.get(name))
    assert all(layer.exact for layer in autopsy.layers.values())
    assert_same_rotation(autopsy, trained, tolerance=1e-4, resolution=ROUNDING)


def test_weights_in_bfloat16_that_a_rotational_optimizer_turned(tmp_path):
    trained = train(tmp_path, OTHER_EXACT["RotationalAdamW"])
    weights = {key: value.bfloat16() for key, value in trained.model.state_dict().items()}
    assert_same_rotation(gyro.autopsy(state_dicts(trained, **weights)), trained, tolerance=0.02)


@pytest.mark.parametrize("fan_in", [2, 3, 4, 64])
def test_short_vectors_which_are_not_centred_are_taken_back_too(fan_in):
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(16, fan_in, generator=generator))
    optimizer = RotationalAdamW([weight], lr=1e-2, weight_decay=0.1)
    before = weight.detach().clone()
    for _ in range(20):
        before = weight.detach().clone()
        weight.grad = torch.randn(16, fan_in, generator=generator)
        optimizer.step()
    state = {"model": {"w": weight.detach()}, "optimizer": optimizer.state_dict()}
    rotations = gyro.autopsy(state).layers["w"].rotations
    np.testing.assert_allclose(rotations, Split().angle(before, weight.detach()).numpy(), rtol=1e-4, atol=1e-6)


def test_norms_that_an_optimizer_holds_are_not_judged_and_its_angles_earn_no_green(tmp_path):
    trained = train(tmp_path, OTHER_EXACT["RotationalAdamW"])
    autopsy = gyro.autopsy(state_dicts(trained))
    assert all(np.isnan(layer.norm_ratio) and layer.keeps_norm for layer in autopsy.layers.values())
    assert "off_prediction" not in autopsy.findings.kinds
    assert "short_memory" not in autopsy.findings.kinds
    assert "good" not in [finding.severity for finding in autopsy.findings]
    assert "AdamW(lr=0.01, weight_decay=0.1, betas=(0.9, 0.999)), its angle at fixed norms" in str(autopsy)


def test_the_first_step_of_a_rotational_optimizer_which_centres_is_not_told(tmp_path):
    """It also takes the mean off the weights, which nothing remembers."""
    trained = train(tmp_path, OTHER_EXACT["RotationalAdamW"], steps=1)
    autopsy = gyro.autopsy(state_dicts(trained))
    assert all(np.isnan(layer.rotation) for layer in autopsy.layers.values())
    assert "cannot be reconstructed" in str(autopsy)


def test_an_angle_that_was_set_by_code_is_not_guessed(tmp_path):
    by_rule = rotational(partial(Adam, lr=1e-2, weight_decay=0.1), angular_update=gyro.theory.AdamW(1e-2, 0.1))
    trained = train(tmp_path, by_rule, steps=5)
    autopsy = gyro.autopsy(state_dicts(trained))
    assert all(np.isnan(layer.rotation) for layer in autopsy.layers.values())
    assert "its angle is a function or a rule" in " ".join(str(autopsy).split())


def test_angles_that_follow_the_base_are_told_from_the_followers_state(tmp_path):
    followers = []

    def following(model):
        optimizer = RotationalAdamW(model, lr=1e-2, weight_decay=0.1)
        followers.append(follow(optimizer, model))
        return optimizer

    model = network()
    trained = train(tmp_path, lambda _: following(model), model=model, steps=20)
    state = {**state_dicts(trained), "follower": followers[0].state_dict()}
    assert_same_rotation(gyro.autopsy(state), trained, tolerance=1e-4, resolution=ROUNDING)
    without_follower = gyro.autopsy(state_dicts(trained))
    assert_same_rotation(without_follower, trained, tolerance=1e-4, resolution=ROUNDING)
    assert all(layer.exact for layer in without_follower.layers.values())
    for course in state["follower"]["courses"]:
        del course["factors"]  # as files of older versions are
    assert all(np.isnan(layer.rotation) for layer in gyro.autopsy(state).layers.values())


ROUGH = {
    # So large a momentum_decay takes NAdam's momentum to β1 at once, where 15,000 steps of the default do.
    "NAdam": partial(NAdam, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True, momentum_decay=10.0),
    "NAdam with L2": partial(NAdam, lr=1e-2, weight_decay=0.01, momentum_decay=10.0),
    "Rotational Nesterov": partial(RotationalSGD, lr=0.1, weight_decay=0.01, nesterov=True),
    "Rotational Lion": partial(gyro.optim.RotationalLion, lr=1e-3, weight_decay=1.0),
    "SGD-MRT": partial(gyro.optim.SGDMRT, lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("name", ROUGH)
def test_estimates_of_other_optimizers_are_called_so_and_as_near_as_is_said(name, tmp_path):
    trained = train(tmp_path, ROUGH[name])
    autopsy = gyro.autopsy(state_dicts(trained))
    for name, measured in trained.rotations.items():
        layer = autopsy.layers[name]
        assert not layer.exact
        assert layer.rotation == pytest.approx(measured.mean(), rel=layer.error)
    text = " ".join(str(autopsy).split())
    assert "~" in text
    assert f"In tests the mean of a layer was within {100 * layer.error:g} %" in text


def test_nadams_early_steps_are_mostly_their_last_gradient_and_are_not_told(tmp_path):
    trained = train(tmp_path, partial(NAdam, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True), steps=20)
    autopsy = gyro.autopsy(state_dicts(trained))
    assert all(np.isnan(layer.rotation) and not layer.non_finite for layer in autopsy.layers.values())
    assert all(np.isfinite(layer.alignment) for layer in autopsy.layers.values())
    assert "mostly the last gradient" in " ".join(str(autopsy).split())


def test_a_finite_state_is_not_called_infinite_if_the_direction_of_the_step_is_unknown(tmp_path):
    """NAdam's early direction is NaN by choice, and with L2 the wrapper's moments are not used beside it."""
    trained = train(tmp_path, rotational(partial(NAdam, lr=1e-2, weight_decay=0.01), angular_update=0.02), steps=5)
    autopsy = gyro.autopsy(state_dicts(trained))
    assert [layer.non_finite for layer in autopsy.layers.values()] == [0] * len(autopsy.layers)
    assert "diverged" not in autopsy.findings.kinds
    assert all(np.isnan(layer.rotation) for layer in autopsy.layers.values())


@pytest.mark.parametrize("make", [Adagrad, Adadelta, partial(RMSprop, lr=1e-3)])
def test_optimizers_that_keep_nothing_of_the_last_gradient_are_not_told(make, tmp_path):
    autopsy = gyro.autopsy(state_dicts(train(tmp_path, make, steps=3)))
    assert all(np.isnan(layer.rotation) for layer in autopsy.layers.values())
    assert "cannot be reconstructed" in str(autopsy)


def test_a_cautious_update_of_another_library_is_not_told(tmp_path):
    state = state_dicts(train(tmp_path, EXACT["AdamW"], steps=3))
    state["optimizer"]["param_groups"][0]["caution"] = True
    assert all(np.isnan(layer.rotation) for layer in gyro.autopsy(state).layers.values())


def test_adam_s_and_adam_srt_are_asked_for_by_name(tmp_path):
    trained = train(tmp_path, OTHER_EXACT["AdamS"], steps=3)
    with pytest.raises(ValueError, match="--optimizer adam-s"):
        gyro.autopsy(state_dicts(trained))


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


@pytest.mark.slow
@pytest.mark.parametrize("radial", [0.0, 0.5, -0.3])
def test_a_planted_radial_gradient_comes_back_as_lambda_u(radial):
    totals, settings = walk(radial)
    found = [radial_decay(total, 64 * 128, *settings) for total in totals]
    assert np.mean([value for value, _ in found]) == pytest.approx(radial, abs=0.01)
    assert np.std([value for value, _ in found]) < np.mean([error for _, error in found])


@pytest.mark.slow
def test_lambda_u_of_one_step_scatters_by_its_error_where_noise_is_not_tangent():
    """As Adam's is, which divides each entry by its own √v."""
    totals, settings = walk(0.0, tangent=False)
    found = [radial_decay(total, 64 * 128, *settings) for total in totals]
    assert np.mean([value for value, _ in found]) == pytest.approx(0.0, abs=0.02)
    assert np.std([value for value, _ in found]) == pytest.approx(np.mean([error for _, error in found]), rel=0.3)


@pytest.mark.slow
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
            values.append(radial_decay(before.total(), w.size, lr, 0.0, wd, alpha)[0])
    assert np.mean(values) == pytest.approx(radial, abs=0.002)


def test_a_vector_of_zeros_has_no_angle_and_a_radial_step_has_angle_0():
    sums = StepSums(np.array([0.0, 4.0]), np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    turned = angles(sums, lr=0.1, decay=0.0)
    assert np.isnan(turned[0])
    assert turned[1] == 0.0


@pytest.mark.parametrize("schedule", ["OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts", "ChainedScheduler"])
def test_the_last_step_of_a_cyclic_schedule_is_the_trackers(schedule, tmp_path):
    make = {
        "OneCycleLR": partial(schedulers.OneCycleLR, max_lr=1e-2, total_steps=61),
        "CyclicLR": partial(schedulers.CyclicLR, base_lr=1e-5, max_lr=1e-2, step_size_up=15),
        "CosineAnnealingWarmRestarts": partial(schedulers.CosineAnnealingWarmRestarts, T_0=30),
        "ChainedScheduler": lambda optimizer: schedulers.ChainedScheduler(
            [schedulers.LinearLR(optimizer, 0.1, total_iters=200), schedulers.CosineAnnealingLR(optimizer, 80)]
        ),
    }
    trained = train(tmp_path, EXACT["AdamW"], make[schedule])
    assert trained.scheduler is not None
    autopsy = gyro.autopsy({**state_dicts(trained), "scheduler": trained.scheduler.state_dict()})
    assert not autopsy.notes
    assert autopsy.layers["0.weight"].rule.lr == pytest.approx(trained.lr, rel=1e-5)
    assert_same_rotation(autopsy, trained, tolerance=1e-3, resolution=ROUNDING)
