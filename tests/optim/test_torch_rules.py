from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam, Adamax, NAdam, RAdam, Rprop

from gyroscope import theory
from gyroscope.optim import Lion, Rotational
from gyroscope.optim.torch_rules import rule_of
from tests.needs import needs_muon
from tests.optim.torch_walk import walk
from tests.optimizers.named import named

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
    "NAdam": (lambda: NAdam([W], 0.1, BETAS, weight_decay=0.3), theory.NAdamL2(0.1, 0.3, BETAS, momentum_decay=4e-3)),
    "NAdam without decay": (lambda: NAdam([W], 0.1, BETAS), theory.NAdam(0.1, 0.0, BETAS, momentum_decay=4e-3)),
    "NAdam, decoupled": (
        lambda: NAdam([W], 0.1, BETAS, weight_decay=0.3, decoupled_weight_decay=True),
        theory.NAdam(0.1, 0.3, BETAS, momentum_decay=4e-3),
    ),
    "RAdam": (lambda: RAdam([W], 0.1, BETAS, weight_decay=0.3), theory.AdamL2(0.1, 0.3, BETAS)),
    "RAdam, decoupled": (
        lambda: RAdam([W], 0.1, BETAS, weight_decay=0.3, decoupled_weight_decay=True),
        theory.AdamW(0.1, 0.3, BETAS),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_each_optimizer_of_torch_has_its_rule(name):
    make, expected = TORCH[name]
    assert rule(make()) == expected


@needs_muon
def test_muon_has_its_rule_with_torchs_defaults():
    assert rule(torch.optim.Muon([W])) == theory.Muon(1e-3, 0.1, 0.95, nesterov=True, adjust_lr_fn="original")
    adjusted = torch.optim.Muon([W], 0.01, 0.2, 0.9, nesterov=False, adjust_lr_fn="match_rms_adamw")
    assert rule(adjusted) == theory.Muon(0.01, 0.2, 0.9, nesterov=False, adjust_lr_fn="match_rms_adamw")


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
    with pytest.raises(
        ValueError, match=r"KAdam with coupled=True, k=2 .* is not covered by the theory.*Set coupled=False"
    ):
        rule_of({**group, "k": 2}, named("KAdam"))
    stages = {**group, "k": 2, "coupled": False, "strategy": "exp"}
    assert rule_of(stages, named("KAdam")) == theory.KAdam(0.1, 0.3, 2, BETAS, "exp")
    pairs = {**stages, "betas": [(0.9, 0.99), (0.8, 0.99)]}
    assert rule_of(pairs, named("KAdam")) == theory.KAdam(0.1, 0.3, 2, ((0.9, 0.99), (0.8, 0.99)), "exp")


def test_rotational_has_the_inner_rule_the_one_it_was_given_or_hyperballs():
    inner = SGD([W], 0.1, 0.9, weight_decay=1e-3)
    wrapper, group = named("Rotational", inner=inner), inner.param_groups[0]
    assert rule_of(group, wrapper) == theory.SGDM(0.1, 1e-3, 0.9)
    asked = theory.AdamW(0.1, 0.2)
    assert rule_of({**group, "angular_update": asked}, wrapper) is asked
    assert rule_of({**group, "mode": "hyperball", "tangent": True}, wrapper) == theory.Hyperball(0.1, tangent=True)
    assert rule_of({**group, "mode": "hyperball", "tangent": False}, wrapper) == theory.Hyperball(0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"angular_update=0\.01 sets the angle by hand"):
        rule_of({**group, "angular_update": 0.01}, wrapper)


@needs_muon
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.optim.AdamW([W], 0.1, BETAS), {"betas": BETAS}),
        (lambda: Adam([W], 0.1, BETAS, weight_decay=0.1), {"betas": BETAS}),
        (lambda: RAdam([W], 0.1, BETAS), {"betas": BETAS}),
        (lambda: SGD([W], 0.1), {"momentum": 0.0}),
        (lambda: SGD([W], 0.1, 0.9, nesterov=True), {"momentum": 0.9, "correlation_time": 14.2}),
        (lambda: torch.optim.Muon([torch.ones(256, 256)], 0.1), {"momentum": 0.95, "correlation_time": 23.3}),
        (lambda: torch.optim.Muon([torch.ones(64, 256)], 0.1), {"momentum": 0.95, "correlation_time": 30.7}),
        (lambda: NAdam([W], 0.1, BETAS), {"momentum": 0.8, "correlation_time": 5.7}),
        (lambda: Lion([W], 0.1, weight_decay=0.0), {"momentum": 0.99, "correlation_time": 45.9}),
    ],
)
def test_hyperball_has_the_momentum_of_the_optimizer_inside(make, expected):
    optimizer = Rotational(make(), mode="hyperball")
    settings = rule(optimizer).settings
    time = settings.pop("correlation_time")
    assert time == pytest.approx(expected.pop("correlation_time", None), abs=0.2)
    assert settings == {"lr": 0.1, "tangent": False, "momentum": None, "betas": None, **expected}


def test_hyperball_around_an_optimizer_without_a_rule_names_the_remedy_unless_it_is_tangent():
    optimizer = Rotational(torch.optim.Adagrad([W], 0.1), mode="hyperball")
    with pytest.raises(ValueError, match=r"Adagrad is not among the known optimizers .* pass rules="):
        rule(optimizer)
    rules = {torch.optim.Adagrad: lambda group: theory.Rule(0.01, 5.0)}
    assert rule_of(optimizer.param_groups[0], optimizer, rules) == theory.Hyperball(0.1, correlation_time=5.0)
    optimizer.param_groups[0]["tangent"] = True
    assert rule(optimizer) == theory.Hyperball(0.1, tangent=True)


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
    with pytest.raises(ValueError, match=r"amsgrad=True is not covered.*amsgrad=False.*Rule\(decay="):
        rule(make([W], amsgrad=True))


def adafactor(**options):
    """torch's, with options that differ from its defaults."""
    return torch.optim.Adafactor([W], **options)


def test_adafactor_has_its_rule():
    assert rule(adafactor()) == theory.Adafactor(0.01)
    given = adafactor(lr=0.1, beta2_decay=-0.5, eps=(None, 1e-2), d=2.0, weight_decay=0.3)
    assert rule(given) == theory.Adafactor(0.1, 0.3, beta2_decay=-0.5, d=2.0, eps2=1e-2)


def test_the_adafactor_of_transformers_has_its_rule_where_the_formulas_are_the_same():
    transformers = pytest.importorskip("transformers")
    given = transformers.Adafactor([W], lr=1e-3, scale_parameter=False, relative_step=False, weight_decay=0.1)
    assert rule(given) == theory.Adafactor(1e-3, 0.1, scale_parameter=False, capped=False)
    relative = transformers.Adafactor([W], lr=1e-3, scale_parameter=True, relative_step=False)
    assert rule(relative) == theory.Adafactor(1e-3, capped=False)
    for options, words in (
        ({"relative_step": True}, "relative_step=True"),
        ({"lr": 1e-3, "relative_step": False, "beta1": 0.9}, "beta1"),
        ({"lr": 1e-3, "relative_step": False, "weight_decay": 0.1}, "weight_decay beside scale_parameter=True"),
    ):
        with pytest.raises(ValueError, match=words):
            rule(transformers.Adafactor([W], **options))


@pytest.mark.parametrize("scaled", [False, True])
def test_the_adafactor_of_transformers_is_within_two_percent_of_its_forecast(scaled):
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.randn(96, 64, generator=generator))
    w.data /= w.data.norm(dim=1, keepdim=True)
    options = {"lr": 0.02, "scale_parameter": scaled, "relative_step": False, "weight_decay": 0.0 if scaled else 0.5}
    optimizer = transformers.Adafactor([w], **options)
    course = theory.forecast(rule(optimizer), steps=600, norm=1.0, fan_in=64)
    angles, norms = walk(w, optimizer, 600, generator)
    assert norms == pytest.approx(course.norm, rel=0.02)
    seen, predicted = (np.reshape(values, (-1, 50)).mean(1) for values in (angles, course.angular_update))
    assert seen == pytest.approx(predicted, rel=0.02)


@pytest.mark.parametrize("option", ["cautious_wd", "cautious_weight_decay"])
def test_cautious_decay_is_found_in_the_group(option):
    group = {"lr": 0.1, "weight_decay": 0.3, "betas": BETAS, "momentum": 0.9, option: True}
    assert rule_of(group, named("Lion")) == theory.Lion(0.1, 0.3, BETAS, cautious_decay=True)
    assert rule_of({**group, option: False}, named("Lion")) == theory.Lion(0.1, 0.3, BETAS)
    with pytest.raises(ValueError, match=rf"SGDMRT with {option}=True is not covered"):
        rule_of(group, named("SGDMRT"))


@pytest.mark.parametrize(
    "option", ["caution", "cautious", "corrected_weight_decay", "decouple_lr", "fixed_decay", "extra_scale_factor"]
)
def test_options_that_change_update_or_decay_are_refused_and_not_passed_over(option):
    group = {"lr": 0.1, "weight_decay": 0.3, "betas": BETAS}
    assert rule_of({**group, option: False}, named("AdamW", "torch")) == theory.AdamW(0.1, 0.3, BETAS)
    with pytest.raises(ValueError, match=rf"AdamW with {option}=True is not covered.*set {option}=False, or pass"):
        rule_of({**group, option: True}, named("AdamW", "torch"))


@pytest.mark.parametrize("make", [Rprop, Adamax])
def test_an_unknown_optimizer_says_what_to_pass(make):
    with pytest.raises(
        ValueError,
        match=rf"{make.__name__} is not among .*SGD.*rules=.*\['rule'\].*Rule\(decay=…, correlation_time=…",
    ):
        rule(make([W]))


def test_a_namesake_without_the_usual_options_says_what_is_missing():
    with pytest.raises(ValueError, match=r"no 'betas', only \['lr', 'weight_decay'\]"):
        rule_of({"lr": 0.1, "weight_decay": 0.1, "params": [W]}, named("Lion"))
    with pytest.raises(ValueError, match="no 'lr'"):
        rule_of({"params": [W]}, named("SGD", "torch"))


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


def test_of_several_optimizers_the_one_that_has_the_group_gives_the_rule():
    sgd = SGD([W], 0.1, weight_decay=1e-3)
    adam = Adam([torch.nn.Parameter(torch.ones(2, 2))], 0.2, BETAS, weight_decay=0.3)
    container = named("OptimizersContainer", optimizers=[sgd, adam])
    for passed in ([sgd, adam], container):
        assert rule_of(sgd.param_groups[0], passed) == theory.SGDM(0.1, 1e-3)
        assert rule_of({**adam.param_groups[0], "lr": 0.5}, passed) == theory.AdamL2(0.5, 0.3, BETAS)
