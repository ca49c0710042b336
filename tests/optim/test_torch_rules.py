from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam, Adamax, NAdam, RAdam, Rprop

from gyroscope import theory
from gyroscope.optim.torch_rules import rule_of
from tests.optim.torch_walk import walk

W = torch.nn.Parameter(torch.ones(8, 4))
BETAS = (0.8, 0.95)


def rule(optimizer):
    return rule_of(optimizer.param_groups[0], optimizer)


TORCH = {
    "SGD": (lambda: SGD([W], 0.1, weight_decay=1e-3), theory.SGDM(0.1, 1e-3)),
    "SGD with momentum": (lambda: SGD([W], 0.1, 0.9, weight_decay=1e-3), theory.SGDM(0.1, 1e-3, 0.9)),
    "SGD, Nesterov": (
        lambda: SGD([W], 0.1, 0.9, weight_decay=1e-3, nesterov=True),
        theory.SGDM(0.1, 1e-3, 0.9, nesterov=True),
    ),
    "SGD, dampened": (lambda: SGD([W], 0.1, 0.9, 0.75, weight_decay=1e-3), theory.SGDM(0.025, 1e-3, 0.9)),
    "SGD, dampening without momentum": (lambda: SGD([W], 0.1, 0, 0.75, weight_decay=1e-3), theory.SGDM(0.1, 1e-3)),
    "SGD, maximising, lr a tensor": (
        lambda: SGD([W], torch.tensor(0.125), weight_decay=1e-3, maximize=True),
        theory.SGDM(0.125, 1e-3),
    ),
    "Adam": (lambda: Adam([W], 0.1, BETAS, weight_decay=0.3), theory.AdamL2(0.1, 0.3, BETAS)),
    "Adam, decoupled": (
        lambda: Adam([W], 0.1, BETAS, weight_decay=0.3, decoupled_weight_decay=True),
        theory.AdamW(0.1, 0.3, BETAS),
    ),
    "AdamW": (lambda: torch.optim.AdamW([W], 0.1, BETAS, weight_decay=0.3), theory.AdamW(0.1, 0.3, BETAS)),
    "NAdam": (lambda: NAdam([W], 0.1, BETAS, weight_decay=0.3), theory.NAdamL2(0.1, 0.3, BETAS)),
    "NAdam without decay": (lambda: NAdam([W], 0.1, BETAS), theory.NAdam(0.1, 0.0, BETAS)),
    "NAdam, decoupled": (
        lambda: NAdam([W], 0.1, BETAS, weight_decay=0.3, decoupled_weight_decay=True),
        theory.NAdam(0.1, 0.3, BETAS),
    ),
    "RAdam": (lambda: RAdam([W], 0.1, BETAS, weight_decay=0.3), theory.AdamL2(0.1, 0.3, BETAS, rectified=True)),
    "RAdam, decoupled": (
        lambda: RAdam([W], 0.1, BETAS, weight_decay=0.3, decoupled_weight_decay=True),
        theory.AdamW(0.1, 0.3, BETAS, rectified=True),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_each_optimizer_of_torch_has_its_rule(name):
    make, expected = TORCH[name]
    assert rule(make()) == expected


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_has_its_rule_with_torchs_defaults():
    assert rule(torch.optim.Muon([W])) == theory.Muon(1e-3, 0.1, 0.95, nesterov=True, adjust_lr_fn="original")
    adjusted = torch.optim.Muon([W], 0.01, 0.2, 0.9, nesterov=False, adjust_lr_fn="match_rms_adamw")
    assert rule(adjusted) == theory.Muon(0.01, 0.2, 0.9, nesterov=False, adjust_lr_fn="match_rms_adamw")


def named(name, **attributes):
    """An optimizer of that class name: the table goes by name, so that it need not import ours or other libraries'."""
    return type(name, (), attributes)()


OURS = {
    "Lion": ({"betas": BETAS}, theory.Lion(0.1, 0.3, BETAS)),
    "RotationalAdamW": ({"betas": BETAS, "beta": 0.99}, theory.AdamW(0.1, 0.3, BETAS)),
    "RotationalSGD": ({"momentum": 0.9, "nesterov": True}, theory.SGDM(0.1, 0.3, 0.9, nesterov=True)),
    "RotationalLion": ({"betas": BETAS}, theory.Lion(0.1, 0.3, BETAS)),
    "AdamS": ({"betas": BETAS}, theory.AdamS(0.1, 0.3, BETAS)),
    "AdamSRT": ({"betas": BETAS}, theory.AdamSRT(0.1, 0.3, BETAS)),
    "SGDMRT": ({"momentum": 0.9}, theory.SGDMRT(0.1, 0.3, 0.9)),
    "KAdam": ({"betas": BETAS, "k": 1, "coupled": False}, theory.AdamW(0.1, 0.3, BETAS)),
}


@pytest.mark.parametrize("name", OURS)
def test_each_optimizer_of_ours_has_its_rule(name):
    options, expected = OURS[name]
    assert rule_of({"lr": 0.1, "weight_decay": 0.3, **options}, named(name)) == expected


def test_k_adam_is_known_only_where_it_is_adam():
    group = {"lr": 0.1, "weight_decay": 0.3, "betas": BETAS, "k": 1, "coupled": True}
    assert rule_of(group, named("KAdam")) == theory.AdamL2(0.1, 0.3, BETAS)
    with pytest.raises(ValueError, match=r"KAdam with k=2 has no equilibrium.*k=1"):
        rule_of({**group, "k": 2}, named("KAdam"))


def test_rotational_has_the_inner_rule_the_one_it_was_given_or_hyperballs():
    inner = SGD([W], 0.1, 0.9, weight_decay=1e-3)
    wrapper, group = named("Rotational", inner=inner), inner.param_groups[0]
    assert rule_of(group, wrapper) == theory.SGDM(0.1, 1e-3, 0.9)
    asked = theory.AdamW(0.1, 0.2)
    assert rule_of({**group, "angular_update": asked}, wrapper) is asked
    assert rule_of({**group, "mode": "hyperball"}, wrapper) == theory.Hyperball(0.1)
    with pytest.raises(ValueError, match=r"angular_update=0\.01 sets the angle by hand"):
        rule_of({**group, "angular_update": 0.01}, wrapper)


def test_wrappers_and_subclasses_are_looked_through():
    adamw = torch.optim.AdamW([W], 0.1, BETAS, weight_decay=0.3)
    accelerate = named("AcceleratedOptimizer", optimizer=adamw)
    lightning = type("LightningAdamW", (torch.optim.AdamW,), {})([W], 0.1, BETAS, weight_decay=0.3)
    for optimizer in (accelerate, named("Outer", optimizer=accelerate), lightning):
        assert rule_of(adamw.param_groups[0], optimizer) == theory.AdamW(0.1, 0.3, BETAS)


def test_the_rule_has_the_hyper_parameters_of_the_moment_and_of_the_group():
    other = torch.nn.Parameter(torch.ones(2, 2))
    adamw = torch.optim.AdamW([{"params": [W]}, {"params": [other], "weight_decay": 0.5}], lr=0.1)
    adamw.param_groups[1]["lr"] = 0.05
    assert rule_of(adamw.param_groups[1], adamw) == theory.AdamW(0.05, 0.5)
    assert rule_of(adamw.param_groups[0], adamw) == theory.AdamW(0.1, 0.01)


@pytest.mark.parametrize("make", [Adam, torch.optim.AdamW])
def test_amsgrad_says_what_to_do_instead(make):
    with pytest.raises(ValueError, match=r"amsgrad=True has no equilibrium.*amsgrad=False.*Rule\(decay="):
        rule(make([W], amsgrad=True))


@pytest.mark.parametrize("make", [Rprop, Adamax])
def test_an_unknown_optimizer_says_what_to_pass(make):
    with pytest.raises(ValueError, match=rf"{make.__name__} is not among .*SGD.*Rule\(decay=…, correlation_time=…"):
        rule(make([W]))


def test_a_namesake_without_the_usual_options_says_what_is_missing():
    with pytest.raises(ValueError, match=r"no 'betas', only \['lr', 'weight_decay'\]"):
        rule_of({"lr": 0.1, "weight_decay": 0.1, "params": [W]}, named("Lion"))
    with pytest.raises(ValueError, match="no 'lr'"):
        rule_of({"params": [W]}, named("SGD"))


def test_nadam_with_l2_is_within_one_percent_of_a_walk_of_torchs_own():
    generator = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.randn(128, 64, generator=generator))
    # torch's momentum ramps up over some ten thousand steps; this momentum_decay makes it ten
    nadam = NAdam([w], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.05, momentum_decay=10, foreach=False)
    expected = rule(nadam).equilibrium(fan_in=64, unit_grad_norm=1.0)
    w.data *= expected.norm / w.data.norm(dim=1, keepdim=True)
    angles, norms = walk(w, nadam, 700, generator)
    assert np.mean(angles[200:]) == pytest.approx(expected.angular_update, rel=0.01)
    assert np.mean(norms[200:]) == pytest.approx(expected.norm, rel=0.01)


def test_nadam_with_l2_agrees_with_adam_with_l2_where_they_are_the_same():
    mine, known = theory.NAdamL2(1e-3, 1e-2, (0.0, 0.99)), theory.AdamL2(1e-3, 1e-2, (0.0, 0.99))
    inputs = {"fan_in": 64, "unit_grad_norm": [0.01, 0.5]}
    for name in ("norm", "angular_update", "update_rms", "timescale"):
        expected = getattr(known.equilibrium(**inputs), name)
        assert getattr(mine.equilibrium(**inputs), name) == pytest.approx(expected, rel=1e-6)
        small = getattr(mine.equilibrium(**inputs, leading_order=True), name)
        assert small == pytest.approx(expected, rel=0.01)


def test_nadam_with_l2_is_forecast_towards_its_equilibrium():
    rule = theory.NAdamL2(1e-2, 0.05, (0.9, 0.99))
    found = rule.equilibrium(fan_in=64, unit_grad_norm=1.0)
    f = theory.forecast(rule, steps=4000, norm=2 * found.norm, fan_in=64, unit_grad_norm=1.0)
    assert f.norm[-1] == pytest.approx(found.norm, rel=0.01)
    assert f.angular_update[-1] == pytest.approx(found.angular_update, rel=0.01)
    assert rule.equilibrium().norm is None
    assert replace(rule, weight_decay=0.0).equilibrium(fan_in=64, unit_grad_norm=1.0).norm == np.inf


FLAGGED = {
    "MuonWithAuxAdam, Muon": (
        {"use_muon": True, "momentum": 0.9, "lr": 0.02, "weight_decay": 0.1},
        theory.Muon(0.02, 0.1, 0.9),
    ),
    "MuonWithAuxAdam, Adam": (
        {"use_muon": False, "betas": BETAS, "lr": 0.02, "weight_decay": 0.1, "eps": 1e-10},
        theory.AdamW(0.02, 0.1, BETAS),
    ),
    "dion, Muon": (
        {"algorithm": "muon", "mu": 0.9, "nesterov": False, "adjust_lr": "rms_norm", "lr": 0.02, "weight_decay": 0.1},
        theory.Muon(0.02, 0.1, 0.9, nesterov=False, adjust_lr_fn="match_rms_adamw"),
    ),
    "dion, Muon without adjustment": (
        {"algorithm": "muon", "mu": 0.9, "nesterov": True, "adjust_lr": None, "lr": 0.02, "weight_decay": 0.1},
        theory.Muon(0.02, 0.1, 0.9, adjust_lr_fn="none"),
    ),
    "dion, Lion": (
        {"algorithm": "lion", "mu": 0.9, "beta1": 0.8, "beta2": 0.95, "lr": 0.02, "weight_decay": 0.1},
        theory.Lion(0.02, 0.1, BETAS),
    ),
    "nanochat, AdamW": (
        {"kind": "adamw", "betas": BETAS, "lr": 0.02, "weight_decay": 0.1},
        theory.AdamW(0.02, 0.1, BETAS),
    ),
}


@pytest.mark.parametrize("name", FLAGGED)
def test_a_group_that_names_its_algorithm_has_its_rule_whatever_the_class(name):
    group, expected = FLAGGED[name]
    assert rule_of(group, named("MuonWithAuxAdam")) == expected
    assert rule_of(group, SGD([W])) == expected


def test_algorithms_that_the_theory_does_not_cover_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"'dion' is not among the known algorithms \(muon, adamw, adam, lion\)"):
        rule_of({"algorithm": "dion", "lr": 0.1}, named("Dion"))
    with pytest.raises(ValueError, match=r"beta2=0.95 is nanochat's NorMuon with cautious decay"):
        rule_of({"kind": "muon", "momentum": 0.95, "beta2": 0.95, "lr": 0.1, "weight_decay": 0.1}, named("MuonAdamW"))


def test_of_several_optimizers_the_one_that_has_the_group_gives_the_rule():
    sgd = SGD([W], 0.1, weight_decay=1e-3)
    adam = Adam([torch.nn.Parameter(torch.ones(2, 2))], 0.2, BETAS, weight_decay=0.3)
    container = named("OptimizersContainer", optimizers=[sgd, adam])
    for passed in ([sgd, adam], container):
        assert rule_of(sgd.param_groups[0], passed) == theory.SGDM(0.1, 1e-3)
        assert rule_of({**adam.param_groups[0], "lr": 0.5}, passed) == theory.AdamL2(0.5, 0.3, BETAS)
