"""k-Adam through every entry that needs its rule: rule_of, plan, Tracker and autopsy."""

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.theory import KAdam

PAIRS = ((0.9, 0.99), (0.8, 0.99))
EXPECTED = {
    "strategy": ({"k": 2, "strategy": "naive"}, KAdam(1e-2, 0.1, 2, strategy="naive")),
    "pairs": ({"k": 2, "betas": list(PAIRS)}, KAdam(1e-2, 0.1, 2, PAIRS)),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 4))


def optimizer_of(model, options):
    return gyro.optim.KAdam(gyro.param_groups(model, weight_decay=0.1), lr=1e-2, **options)


def train(model, optimizer, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("case", EXPECTED)
def test_rule_plan_and_prediction_agree(case, tmp_path):
    options, rule = EXPECTED[case]
    model = network()
    optimizer = optimizer_of(model, options)
    assert gyro.rule_of(optimizer.param_groups[0], optimizer) == rule
    planned = gyro.plan(model, optimizer, steps=20).layers["0.weight"]
    assert planned.equilibrium_norm[0] == pytest.approx(rule.equilibrium(fan_in=32).norm)
    with gyro.Tracker(model, optimizer, tmp_path / "run", every=1):
        train(model, optimizer)
    run = gyro.store.open_run(tmp_path / "run")
    equilibrium = rule.equilibrium(fan_in=32).angular_update
    assert run.series("0.weight", "predicted_angular_update") == pytest.approx(np.full(4, equilibrium))
    assert run.series("0.weight", "beta1")[0] == pytest.approx(0.9)


@pytest.mark.parametrize("case", EXPECTED)
def test_an_autopsy_predicts_by_the_rule_and_does_not_reconstruct_the_step(case):
    options, rule = EXPECTED[case]
    model = network()
    optimizer = optimizer_of(model, options)
    train(model, optimizer)
    layer = gyro.autopsy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}).layers["0.weight"]
    assert layer.rule == rule
    assert np.isnan(layer.rotation)


def test_coupled_decay_is_measured_without_a_prediction(tmp_path):
    model = network()
    optimizer = optimizer_of(model, {"k": 2, "coupled": True})
    with pytest.raises(ValueError, match=r"KAdam with coupled=True, k=2 .* is not covered by the theory"):
        gyro.rule_of(optimizer.param_groups[0], optimizer)
    with gyro.Tracker(model, optimizer, tmp_path / "run", every=1):
        train(model, optimizer)
    run = gyro.store.open_run(tmp_path / "run")
    assert (run.series("0.weight", "angular_update") > 0).all()
    assert np.isnan(run.series("0.weight", "predicted_angular_update")).all()
