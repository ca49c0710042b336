"""The optimizers of pytorch_optimizer and schedulefree, as classes of these names with the options of their groups."""

from pathlib import Path

import pytest
import torch

import gyroscope as gyro
from gyroscope.optim.torch_rules import rule_of
from gyroscope.optimizers import SPECS
from gyroscope.optimizers.other_libraries import OTHERS
from gyroscope.optimizers.recognition import WRAPPERS
from gyroscope.theory import AdamW, Lion, Muon, Rule
from gyroscope.theory.rules.muon import NEWTON_SCHULZ
from tests.optimizers.named import named

BETAS = (0.9, 0.99)
COMMON = {"lr": 0.1, "weight_decay": 0.2, "weight_decouple": True, "fixed_decay": False, "ams_bound": False}
ADAM = {**COMMON, "betas": BETAS}
LAW = Rule(0.1 * 0.2, 1.9 / 0.1)
PREDICTED = {
    "Lion": (ADAM, Lion(0.1, 0.2, BETAS)),
    "RAdam": (ADAM, AdamW(0.1, 0.2, BETAS)),
    "StableAdamW": (ADAM, AdamW(0.1, 0.2, BETAS)),
    "Prodigy": ({**ADAM, "d": 0.5}, AdamW(0.05, 0.2, BETAS)),
    "Tiger": ({**COMMON, "beta": 0.9}, Lion(0.1, 0.2, (0.9, 0.9))),
    "SignSGD": ({**COMMON, "momentum": 0.8}, Lion(0.1, 0.2, (0.8, 0.8))),
    "SGDW": ({**COMMON, "momentum": 0.9, "nesterov": False}, LAW),
    "QHAdam": ({**ADAM, "nus": (1.0, 1.0)}, LAW),
    **dict.fromkeys(("AdaBelief", "AdaNorm", "ADOPT", "LaProp", "PAdam", "Yogi"), (ADAM, LAW)),
}
DOCS = Path(__file__).parents[2] / "docs" / "own-optimizer.md"


PYTORCH_OPTIMIZER = {other.name: other for other in OTHERS if other.package == "pytorch_optimizer"}


def approximately(rule):
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in rule.settings.items()}


def test_every_predicted_optimizer_is_tested():
    predicted = {name for name, other in PYTORCH_OPTIMIZER.items() if other.rule is not None}
    # SOAP has no `weight_decouple`, and Muon chooses by group.
    assert predicted == {*PREDICTED, "SOAP", "Muon"}


@pytest.mark.parametrize("name", PREDICTED)
def test_a_predicted_optimizer_has_its_rule(name):
    group, expected = PREDICTED[name]
    found = rule_of(group, named(name, "pytorch_optimizer"))
    assert (found.name, found.settings) == (expected.name, approximately(expected))


@pytest.mark.parametrize("name", PREDICTED)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weight_decouple": False}, "L2 is part of its gradient"),
        ({"ams_bound": True}, "v never decreases"),
        ({"fixed_decay": True}, "decay does not follow lr"),
    ],
)
def test_options_without_theory_are_named(name, options, why):
    with pytest.raises(ValueError, match=rf"{next(iter(options))}=.* because {why}"):
        rule_of({**PREDICTED[name][0], **options}, named(name, "pytorch_optimizer"))


@pytest.mark.parametrize("name", ["AdamS", "Lamb", "NorMuon", "Shampoo", *WRAPPERS])
def test_every_other_one_is_unknown_unless_the_user_has_a_rule(name):
    """A wrapper holds an optimizer that has a rule, which is not the wrapper's."""
    adamw = torch.optim.AdamW([torch.ones(2, 2)])
    inside = dict.fromkeys(("optimizer", "base_optimizer"), adamw) if name in WRAPPERS else {}
    optimizer = named(name, "pytorch_optimizer", **inside)
    with pytest.raises(ValueError, match=rf"^{name} is not among the known .* It can be measured, not predicted"):
        rule_of(ADAM, optimizer)
    assert rule_of(ADAM, optimizer, {type(optimizer): lambda group: LAW}) is LAW


@pytest.mark.parametrize("options", [{"ns_steps": 9}, {"ns_coefficients": (2.0, -1.5, 0.5)}])
def test_newton_schulz_iterations_of_another_kind_are_not_covered(options):
    with pytest.raises(ValueError, match=r"Muon with ns_steps=\d and ns_coefficients=.* is not covered"):
        rule_of({"lr": 0.1, "weight_decay": 0.2, "momentum": 0.95, **options}, named("Muon", "torch"))


def documented():
    rows = [line.split(" | ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {
        name.strip("`| "): (status, about.removesuffix(" |"))
        for names, status, about in rows
        for name in names.split(", ")
    }


def test_the_documentation_lists_all_optimizers_of_torch_and_of_gyroscope():
    listed = {name: status for name, (status, _) in documented().items() if "." in name}
    of_torch = {f"torch.optim.{name}" for name in vars(torch.optim) if is_optimizer(getattr(torch.optim, name))}
    of_gyroscope = {f"gyro.optim.{name}" for name in gyro.optim.__all__ if is_optimizer(getattr(gyro.optim, name))}
    assert set(listed) | {"torch.optim.Muon"} == of_torch | of_gyroscope | {"torch.optim.Muon"}
    specs = {spec.name: spec for spec in SPECS}
    for name, status in listed.items():
        spec = specs.get(name.rpartition(".")[2])
        has_rule = spec is not None and (spec.rule is not None or spec.wraps)
        assert status == ("predicted" if has_rule else "measured only"), name


def is_optimizer(found):
    return isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and found is not torch.optim.Optimizer


@pytest.mark.parametrize("ns_steps", [3, 4, 5, 6])
@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw", None])
def test_torchs_muon_is_predicted_with_each_of_its_other_options(ns_steps, adjust_lr_fn):
    options = {"momentum": 0.9, "nesterov": False, "adjust_lr_fn": adjust_lr_fn, "ns_steps": ns_steps}
    found = rule_of({"lr": 0.1, "weight_decay": 0.2, **options}, named("Muon", "torch"))
    assert isinstance(found, Muon)
    assert found.iterations == (NEWTON_SCHULZ,) * ns_steps
    assert found.replace(ns_coefficients="original") == Muon(0.1, 0.2, 0.9, False, adjust_lr_fn or "original")
