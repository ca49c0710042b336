"""Theory against simulation: where vectors settle, how evenly, and the way there. Predictions never see the weights."""

import numpy as np
import pytest
import torch
from gyroscope_lab.simulate import network, random_gammas, random_walk, unit_grad_norm

from gyroscope.theory import (
    SGDM,
    SGDMRT,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    Lion,
    Muon,
    NAdam,
    NAdamL2,
    constant,
    cosine,
    forecast,
    step,
)
from tests.needs import needs_muon

pytestmark = pytest.mark.slow

SHAPE = (64, 128)
GRADIENT = 0.7
KNOWN = {"fan_in": SHAPE[1], "unit_grad_norm": GRADIENT}

SETTLING = [
    AdamW(1e-2, 1.0),
    SGDM(0.1, 2e-2, 0.9),
    SGDM(0.1, 2e-2, 0.9, nesterov=True),
    Lion(1e-3, 2.5),
    AdamL2(2e-2, 1e-2),
    NAdam(1e-2, 1.0),
    NAdamL2(2e-2, 1e-2),
]
SPHERE = [SGDMRT(0.1, 5e-2, 0.9), AdamS(2e-2, 1e-2), AdamSRT(4e-2, 5e-2)]


def settled(run, rules, **options):
    """Time averages of each vector, from two timescales after a start at the equilibrium norm."""
    norms = [rule.equilibrium(**KNOWN).norm for rule in rules]
    return run(rules, steps=1600, norm=norms, shape=SHAPE, every=10, average=5, **options).averages(after=400)


@pytest.fixture(scope="module")
def simple_system():
    """Unit gammas. The batch of 128 gives gradients that are near Gaussian, as Lion's arcsine law asks for."""
    return settled(network, SETTLING, batch=128, loss_scale=GRADIENT / unit_grad_norm(SHAPE, batch=128))


@pytest.mark.parametrize("i", range(len(SETTLING)), ids=[str(rule) for rule in SETTLING])
def test_rotation_and_norm_in_the_simple_system_are_within_two_percent(simple_system, i):
    eq = SETTLING[i].equilibrium(**KNOWN)
    assert simple_system.layer_angular_update[i] == pytest.approx(eq.angular_update, rel=0.02)
    assert simple_system.layer_norm[i] == pytest.approx(eq.norm, rel=0.02)


def test_vectors_rotate_alike_except_under_adam_with_l2_and_random_gammas(simple_system):
    adamw, sgdm = simple_system.spread[:2]
    gammas = random_gammas(SHAPE, seed=1)
    walk = network([AdamL2(2e-2, 1e-2), AdamW(1e-2, 1.0)], steps=1500, shape=SHAPE, gammas=gammas, every=10, average=5)
    adam_l2, adamw_random = walk.averages(after=500).spread
    assert max(adamw, sgdm, adamw_random) < 0.02
    assert adam_l2 > 5 * max(adamw, sgdm, adamw_random)


def test_lion_feels_how_much_the_gradient_norm_varies():
    """In small batches gradient norms differ from step to step, and the signs stay correlated for longer."""
    rule = Lion(1e-3, 2.5)
    off = [settled(network, [rule], batch=batch).layer_norm[0] / rule.equilibrium(**KNOWN).norm for batch in (8, 32)]
    assert off[0] > off[1] + 0.03
    assert 1.01 < off[1] < 1.04


def test_transported_and_spherical_rules_rotate_by_the_law_within_one_percent():
    averages = settled(random_walk, SPHERE, unit_grad_norm=GRADIENT)
    for i, rule in enumerate(SPHERE):
        eq = rule.equilibrium(**KNOWN)
        assert averages.layer_angular_update[i] == pytest.approx(eq.angular_update, rel=0.01), rule
        assert averages.layer_norm[i] == pytest.approx(eq.norm, rel=0.01), rule
    assert averages.layer_angular_update[0] == pytest.approx((2 * 0.1 * 5e-2) ** 0.5, rel=0.01)


def test_the_rotation_does_not_know_the_scale_of_the_gradient():
    rule = AdamW(1e-2, 1.0)
    averages = settled(network, [rule] * 3, loss_scale=[1e-3, 1.0, 1e3])
    assert averages.layer_angular_update == pytest.approx(rule.equilibrium().angular_update, rel=0.02)
    adam = settled(network, [AdamL2(2e-2, 1e-2)] * 2, loss_scale=[10.0, 100.0]).layer_angular_update
    assert adam[0] > 1.5 * adam[1]


@pytest.mark.parametrize(
    "schedule",
    [constant(1000), cosine(1000, warmup=100), step(1000, [350, 700], 0.3)],
    ids=["constant", "cosine", "step"],
)
def test_the_forecast_follows_the_time_course(schedule):
    """After the first 50 steps: norms within 1 %, rotation over 50 steps within 2 %."""
    rules = [AdamW(1e-2, 1.0), SGDM(0.1, 2e-2, 0.9), Lion(5e-4, 2.0), AdamL2(2e-2, 5e-3)]
    known = {"fan_in": 256, "unit_grad_norm": GRADIENT}
    norms = [0.6 * rule.equilibrium(**known).norm for rule in rules]
    walk = random_walk(rules, schedule, norm=norms, unit_grad_norm=GRADIENT, shape=(96, 256))
    norm, angle = np.sqrt((walk.norm**2).mean(2)), walk.angular_update.mean(2)
    for i, rule in enumerate(rules):
        predicted = forecast(rule, schedule, norm=norms[i], **known)
        np.testing.assert_allclose(norm[50:, i], predicted.norm[50:], rtol=0.01, err_msg=str(rule))
        measured, expected = (x[50:].reshape(-1, 50).mean(1) for x in (angle[:, i], predicted.angular_update))
        np.testing.assert_allclose(measured, expected, rtol=0.02, err_msg=str(rule))


def test_directions_are_forgotten_exponentially():
    """cos = e^(-ak) for a ≪ 1-β1; here exactly, from the two roots 1-a and β1 by which a weight forgets."""
    rule, keep, beta = AdamW(1e-2, 1.0), 0.99, 0.9
    options = {"norm": rule.equilibrium(**KNOWN).norm, "shape": (256, 128), "every": 50}
    walk = random_walk(rule, steps=700, reference=299, **options)
    lag = walk.steps - 299
    momentum, weight = beta ** (lag + 1) * (1 - keep**2), keep ** (lag + 1) * (1 - beta**2)
    memory = (weight - momentum) / ((keep - beta) * (1 + keep * beta))
    np.testing.assert_allclose(walk.cosine.mean(1)[lag > 0], memory[lag > 0], atol=0.02)


@needs_muon
def test_torchs_muon_rotates_whole_matrices_by_the_law():
    rule, shape = Muon(1e-2, 1.0), (32, 32)
    eq = rule.equilibrium(shape=shape)

    def muon(params):
        return torch.optim.Muon(params, rule.lr, rule.weight_decay)

    options = {"granularity": "tensor", "independent": True, "every": 10, "average": 5}
    averages = random_walk([muon] * 3, steps=900, norm=eq.norm, shape=shape, **options).averages(after=200)
    assert averages.layer_angular_update.mean() == pytest.approx(eq.angular_update, rel=0.03)
    assert averages.layer_norm.mean() == pytest.approx(eq.norm, rel=0.03)
