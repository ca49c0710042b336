"""Settings that were predicted by another optimizer's rule without a word: each has its own rule now, or a reason."""

import pytest
import torch

import gyroscope as gyro
from gyroscope.theory import SGDM, AdamL2, AdamW, FixedNorm, Hyperball, Lion, Muon, NAdam, Rule
from tests.optim.torch_walk import angle
from tests.optimizers import stand_ins
from tests.optimizers.named import named
from tests.optimizers.stand_ins import of_package

RATES = {"lr": 0.01, "weight_decay": 0.5}
ADAM = {**RATES, "betas": (0.9, 0.99)}
MUON = {**RATES, "momentum": 0.95}
HEAVYBALL = {**ADAM, "caution": False, "mars": False}
TIMM_MUON = {**ADAM, "momentum": 0.95, "nesterov": False, "ns_steps": 5, "ns_coefficients": "quintic", "algo": "muon"}
TIMM_MUON |= {"adjust_lr_fn": "match_rms_adamw", "conv_mode": "flatten", "fallback_lr_scale": 0.5}
PYTORCH_MUON = {**MUON, "weight_decouple": True, "use_muon": True, "nesterov": True, "ns_steps": 5}
PYTORCH_MUON |= {"use_adjusted_lr": False, "ns_coeffs": (stand_ins.TORCHS[0],), "ns_method": "newton_schulz"}
OPTIMI = {**RATES, "beta1": 0.9, "beta2": 0.99, "decouple_wd": True}
OPTIMI_SGD = {**RATES, "momentum": 0.9, "dampening": False, "decouple_wd": False}
QUINTIC = {"ns_coefficients": "quintic"}

PREDICTED = {
    "HeavyBall's SGD decays the weights": ("heavyball", "SGD", {**RATES, "beta": 0.9}, {}, Rule(0.005, 19.0)),
    "bitsandbytes' SGD has its momentum among betas": (
        "bitsandbytes",
        "SGD",
        {**RATES, "betas": (0.9, 0.0)},
        {},
        SGDM(0.01, 0.5, 0.9),
    ),
    "bitsandbytes' Adam decays the weights": ("bitsandbytes", "Adam", ADAM, {}, AdamW(0.01, 0.5, (0.9, 0.99))),
    "lion-pytorch divides the decay by its first rate": (
        "lion_pytorch",
        "Lion",
        ADAM,
        {"decoupled_wd": True, "_init_lr": 0.02},
        Lion(0.01, 25.0, (0.9, 0.99)),
    ),
    "prodigyopt with L2": (
        "prodigyopt",
        "Prodigy",
        {**ADAM, "d": 0.1, "decouple": False},
        {},
        AdamL2(0.001, 0.5, (0.9, 0.99)),
    ),
    "timm's fallback": (
        "timm",
        "Muon",
        {**TIMM_MUON, "use_fallback": True},
        {},
        AdamW(0.005, 0.5, (0.9, 0.99)),
    ),
    "timm's fallback by another name, with Nesterov's momentum": (
        "timm",
        "Muon",
        {**TIMM_MUON, "use_muon": False, "nesterov": True},
        {},
        NAdam(0.005, 0.5, (0.9, 0.99)),
    ),
    "timm's Muon without an adjustment": (
        "timm",
        "Muon",
        {**TIMM_MUON, "adjust_lr_fn": None},
        {},
        Muon(0.01, 0.5, 0.95, False, "none", **QUINTIC),
    ),
    "timm's SGDW with Nesterov's momentum": ("timm", "SGDW", {**MUON, "momentum": 0.9, "nesterov": True}, {}, None),
    "optimi's dampening is a switch": (
        "optimi",
        "SGD",
        {**OPTIMI_SGD, "dampening": True},
        {},
        SGDM(0.01 * (1 - 0.9), 0.5, 0.9),
    ),
    "optimi's SGD that decays the weights": (
        "optimi",
        "SGD",
        {**OPTIMI_SGD, "decouple_wd": True},
        {},
        Rule(0.005, 19.0),
    ),
    "optimi's Adam that decays the weights": ("optimi", "Adam", OPTIMI, {}, AdamW(0.01, 0.5, (0.9, 0.99))),
    "optimi's RAdam that decays the weights": ("optimi", "RAdam", OPTIMI, {}, AdamW(0.01, 0.5, (0.9, 0.99))),
}


@pytest.mark.parametrize("case", PREDICTED)
def test_a_setting_has_the_rule_of_its_own_library(case):
    package, name, group, attributes, expected = PREDICTED[case]
    found = gyro.rule_of(group, named(name, package, **attributes))
    if expected is None:
        assert found.settings["correlation_time"] == pytest.approx(14.158, abs=1e-3)
    else:
        shown = {
            key: pytest.approx(value) if isinstance(value, float) else value for key, value in expected.settings.items()
        }
        assert (found.name, found.settings) == (expected.name, shown)


REFUSED = {
    "pytorch_optimizer's Muon with L2": ("pytorch_optimizer", "Muon", {**PYTORCH_MUON, "weight_decouple": False}),
    "AdaGO": ("pytorch_optimizer", "AdaGO", PYTORCH_MUON),
    "timm's AdaMuon": ("timm", "Muon", {**TIMM_MUON, "algo": "adamuon"}),
    "timm's kernels one by one": ("timm", "Muon", {**TIMM_MUON, "conv_mode": "batched"}),
    "HeavyBall with MARS": ("heavyball", "AdamW", {**HEAVYBALL, "mars": True}),
    "HeavyBall with caution": ("heavyball", "AdamW", {**HEAVYBALL, "caution": True}),
    "dion's rows in blocks": ("dion", "Muon", {**MUON, "algorithm": "muon", "split_sizes": (8, 4)}),
    "C-Optim's AdamW": ("c_adamw", "AdamW", ADAM),
    "C-Optim's Lion": ("c_lion", "Lion", ADAM),
    "C-Optim's Muon": ("c_muon", "Muon", MUON),
    "Muown": ("emerging_optimizers", "Muown", MUON),
    "Megatron's Muon": ("megatron", "TensorParallelMuon", MUON),
    "MARS": ("mars", "MARS", ADAM),
    "torch's Muon with a newer option": ("torch", "Muon", {**MUON, "extra_scale_factor": 0.2}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_without_a_rule_is_refused(case):
    package, name, group = REFUSED[case]
    with pytest.raises(
        ValueError, match=rf"({name}|{package}).*(is not among the known|is not covered)|is not covered"
    ):
        gyro.rule_of(group, named(name, package, _newton_schulz_func=stand_ins.polar_express))


def test_muon_hyperball_keeps_its_norm_and_has_the_correlation_of_its_muon():
    weight = torch.nn.Parameter(torch.ones(64, 64) / 64)
    make = of_package(stand_ins.EmergingMuon, "MuonHyperball", "emerging_optimizers")
    optimizer = make([weight], lr=0.018, weight_decay=0.01, hyperball_radius=1.0)
    rule = gyro.rule_of(optimizer.param_groups[0], optimizer)
    assert isinstance(rule, Hyperball)
    assert rule.lr == pytest.approx(0.018 / (1 - 0.018 * 0.01))
    assert rule.settings["correlation_time"] == pytest.approx(30, rel=0.2)


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_weights_that_are_renormalised_after_each_step_rotate_as_on_a_sphere(weight_decay):
    """nGPT's matrices. Its optimizer is AdamW, whose own rule would let norms grow without a bound."""

    def on_sphere(group):
        return FixedNorm(AdamW(group["lr"], group["weight_decay"], group["betas"]), radius=2.0)

    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 128, generator=generator))
    optimizer = torch.optim.AdamW([weight], lr=5e-3, betas=(0.9, 0.95), weight_decay=weight_decay)
    rule = gyro.rule_of(optimizer.param_groups[0], optimizer, {torch.optim.AdamW: on_sphere})
    seen = []
    with torch.no_grad():
        for _ in range(300):
            weight.mul_(2.0 / weight.norm(dim=1, keepdim=True))
            before = weight.detach().clone()
            weight.grad = torch.randn(weight.shape, generator=generator)
            optimizer.step()
            seen.append(float(angle(before, weight.detach()).mean()))
    settled = rule.equilibrium(fan_in=128)
    assert sum(seen[100:]) / 200 == pytest.approx(settled.angular_update, rel=0.03)
    course = gyro.theory.forecast(rule, steps=20, norm=2.0, fan_in=128)
    assert course.angular_update[-1] == pytest.approx(settled.angular_update, rel=1e-6)
    assert rule.equilibrium().angular_update is None
    with pytest.raises(ValueError, match="radius needs a rule"):
        FixedNorm(SGDM(0.1, 0.1), radius=1.0)
