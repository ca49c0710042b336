"""An optimizer of a user's own, which no table knows, through every entry that takes a rule."""

import doctest
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.theory import FixedNorm, Lion, Rule


class SignMomentum(torch.optim.Optimizer):
    """w ← (1 - lr·λ)·w - lr·sign(m), m an average of gradients: Lion with one β."""

    def __init__(self, params, lr=1e-2, decay=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "decay": decay, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("average", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["beta"])
                p.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * m.sign())


def lion(group):
    return Lion(group["lr"], group["decay"], (group["beta"], group["beta"]))


EXPECTED = Lion(1e-2, 0.1, (0.9, 0.9))
RULES = {SignMomentum: lion}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 10, bias=False))


def by_class(model):
    return SignMomentum(model.parameters()), {"rules": RULES}


def by_group(model):
    return SignMomentum([{"params": list(model.parameters()), "rule": lion}]), {}


either_way = pytest.mark.parametrize("given", [by_class, by_group])


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()


@either_way
def test_rule_of_takes_it(given):
    optimizer, rules = given(network())
    assert gyro.rule_of(optimizer.param_groups[0], optimizer, **rules) == EXPECTED
    optimizer.param_groups[0]["lr"] = 0.5
    assert gyro.rule_of(optimizer.param_groups[0], [optimizer], **rules) == EXPECTED.replace(lr=0.5)


def test_a_subclass_has_its_ancestors_rule():
    optimizer = type("Mine", (SignMomentum,), {})(network().parameters())
    assert gyro.rule_of(optimizer.param_groups[0], optimizer, RULES) == EXPECTED


def test_without_a_rule_the_message_names_both_ways_to_give_one():
    optimizer = SignMomentum(network().parameters())
    with pytest.raises(ValueError, match=r"SignMomentum is not among.*rules=\{.*group\['rule'\].*Rule\(decay="):
        gyro.rule_of(optimizer.param_groups[0], optimizer)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (EXPECTED, r"must be a function of the parameter group"),
        (lambda group: 0.1, r"the rule of the group is 0\.1: return a rule of gyroscope\.theory"),
        (lambda group: Lion(group["lr"], group["wd"]), r"needs 'wd', and the group has no such option"),
    ],
    ids=["not a function", "not a rule", "not an option"],
)
def test_what_is_no_rule_is_refused_in_a_sentence(rule, message):
    optimizer = SignMomentum(network().parameters())
    with pytest.raises(ValueError, match=message):
        gyro.rule_of({**optimizer.param_groups[0], "rule": rule}, optimizer)


def test_a_rule_precedes_the_table():
    adamw = torch.optim.AdamW(network().parameters(), lr=1e-2)
    group = {**adamw.param_groups[0], "decay": 0.1, "beta": 0.9}
    assert gyro.rule_of(group, adamw, {torch.optim.AdamW: lion}) == EXPECTED
    assert gyro.rule_of({**group, "rule": lambda _: Rule(1e-3, 9.0)}, adamw, {torch.optim.AdamW: lion}) == Rule(
        1e-3, 9.0
    )


@either_way
def test_plan_forecasts_it(given):
    model = network()
    optimizer, rules = given(model)
    planned = gyro.plan(model, optimizer, lambda t: 1 - t / 100, steps=100, **rules)
    norm = float(model[0].weight.detach().norm(dim=1).square().mean().sqrt())
    expected = gyro.theory.forecast(EXPECTED, lambda t: 1 - t / 100, steps=100, norm=norm, fan_in=64)
    assert planned.layers["0.weight"].angular_update == pytest.approx(expected.angular_update, rel=1e-6)


@either_way
def test_the_tracker_predicts_it(given, tmp_path):
    model = network()
    optimizer, rules = given(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, **rules) as tracker:
        train(model, optimizer)
        run = tracker.run
    assert np.isfinite(run.series("0.weight", "predicted_angular_update")).all()
    assert run.config["groups"][0]["rule"]["name"] == "Lion"


@either_way
def test_to_equilibrium_brings_weights_to_its_norm(given):
    model = network()
    optimizer, rules = given(model)
    gyro.optim.to_equilibrium_(model, optimizer, **rules)
    assert model[0].weight.detach().norm(dim=1) == pytest.approx(EXPECTED.equilibrium(fan_in=64).norm, rel=1e-5)


@either_way
def test_rotational_turns_by_its_angle(given):
    model = network()
    inner, rules = given(model)
    optimizer = gyro.optim.Rotational(inner, **rules, beta=0.0, centre=False)
    before = model[0].weight.detach().clone()
    train(model, optimizer, steps=1)
    cosine = torch.cosine_similarity(before, model[0].weight.detach(), dim=1)
    angle = EXPECTED.equilibrium(fan_in=64, leading_order=True).angular_update
    assert cosine.clamp(max=1).acos() == pytest.approx(angle, rel=2e-2)
    assert gyro.rule_of(optimizer.param_groups[0], optimizer) == EXPECTED
    assert "rule" not in optimizer.state_dict()["param_groups"][0]
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["rule"] is lion


@either_way
def test_an_autopsy_predicts_it(given):
    model = network()
    optimizer, rules = given(model)
    train(model, optimizer)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    layer = gyro.autopsy(saved, **rules).layers["0.weight"]
    assert layer.rule == EXPECTED
    assert not np.isfinite(layer.rotations).any()  # its state says nothing of the last step


def test_an_autopsy_of_several_own_optimizers_asks_which_one():
    model = network()
    optimizer = SignMomentum(model.parameters())
    train(model, optimizer)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    rules: dict[type, Any] = {**RULES, torch.optim.Rprop: lambda group: Rule(1e-3, 1.0, 1e-2)}
    with pytest.raises(ValueError, match=r"several optimizers.*optimizer='SignMomentum' or 'Rprop'"):
        gyro.autopsy(saved, rules=rules)
    assert gyro.autopsy(saved, rules=rules, optimizer="SignMomentum").layers["0.weight"].rule == EXPECTED


def test_a_rule_that_keeps_norms_is_planned_as_such():
    model = network()
    optimizer = SignMomentum(model.parameters())
    planned = gyro.plan(model, optimizer, steps=10, rules={SignMomentum: lambda group: FixedNorm(lion(group))})
    norms = planned.layers["0.weight"].norm
    assert norms == pytest.approx(norms[0], rel=1e-6)


@dataclass
class Counted:
    """A function of the group that counts its calls."""

    calls: int = 0

    def __call__(self, group):
        self.calls += 1
        return lion(group)


def test_the_guide_runs():
    guide = Path(__file__).parent.parent.parent / "docs" / "own-optimizer.md"
    result = doctest.testfile(str(guide), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


def test_a_tensor_that_changes_in_place_is_noticed():
    model = network()
    betas = [0.9, 0.999]
    inner = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), betas=(0.9, 0.999), weight_decay=0.1)
    inner.param_groups[0]["betas"] = betas
    optimizer = gyro.optim.Rotational(inner, beta=0.0, centre=False)
    angles = []
    for _ in range(2):
        before = model[0].weight.detach().clone()
        train(model, optimizer, steps=1)
        cosine = torch.cosine_similarity(before.double(), model[0].weight.detach().double(), dim=1)
        angles.append(float(cosine.clamp(max=1).acos().mean()))
        betas[0] = 0.5
    assert angles[1] / angles[0] == pytest.approx((19 / 3) ** 0.5, rel=0.02)  # sqrt((1-β)/(1+β))


def test_rotational_makes_a_rule_once_per_change_of_its_group():
    model = network()
    counted = Counted()
    optimizer = gyro.optim.Rotational(SignMomentum(model.parameters()), rules={SignMomentum: counted})
    train(model, optimizer, steps=1)
    made = counted.calls
    train(model, optimizer, steps=5)
    assert counted.calls == made
    optimizer.param_groups[0]["lr"] = 5e-3
    train(model, optimizer, steps=5)
    assert counted.calls == made + 1
