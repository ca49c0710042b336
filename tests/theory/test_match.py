from itertools import permutations
from math import prod

import numpy as np
import pytest

from gyroscope.theory import (
    SGDM,
    SGDMRT,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    Hyperball,
    Lion,
    Muon,
    NAdam,
    Rule,
    cosine,
    forecast,
    match,
)

KNOWN = {"fan_in": 512, "unit_grad_norm": 0.3, "shape": (64, 512)}
RULES = [
    SGDM(0.1, 5e-4, 0.9),
    AdamW(1e-3, 0.1),
    NAdam(1e-3, 0.1),
    AdamL2(1e-3, 1e-2),
    Lion(1e-4, 1.0),
    SGDMRT(0.1, 5e-4),
]
RULES += [AdamS(1e-3, 1e-2), AdamSRT(1e-3, 1e-2)]
SHAPES = [(64, 64), (16, 256), (256, 16), (4, 16)]
PAIRS = list(permutations([*RULES, Muon(0.02, 0.01)], 2))


def frobenius_norm(rule, shape):
    norm = rule.equilibrium(unit_grad_norm=0.3, shape=shape).norm
    # Muon takes the matrix for one vector, the others each of its rows.
    return norm if isinstance(rule, Muon) else norm * shape[0] ** 0.5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("rule", "other"), PAIRS, ids=[f"{a.name}-{b.name}" for a, b in PAIRS])
def test_the_whole_matrix_settles_at_the_same_norm_under_both_rules(rule, other, shape):
    matched = match(rule, type(other), unit_grad_norm=0.3, shape=shape)
    assert frobenius_norm(matched.rule, shape) == pytest.approx(frobenius_norm(rule, shape), rel=1e-7)
    assert matched.kept[:2] == ("memory", "norm")
    assert matched.ratios["norm"] == pytest.approx(1)


def test_muon_in_place_of_adamw_has_a_whole_matrix_to_hold():
    matched = match(AdamW(1e-2, 0.3), Muon, shape=(64, 64))
    assert (matched.rule.lr, matched.rule.weight_decay) == pytest.approx((0.0190, 0.157), rel=0.01)
    assert matched.rule.equilibrium(shape=(64, 64)).norm == pytest.approx(8.15, rel=1e-3)


def test_a_vector_that_is_the_whole_convolution_is_compared_as_it_is():
    shape = (64, 3, 3, 3)
    known = {"fan_in": prod(shape), "shape": shape}
    matched = match(AdamW(1e-2, 0.3), Muon, **known)
    assert matched.rule.equilibrium(**known).norm == pytest.approx(AdamW(1e-2, 0.3).equilibrium(**known).norm)


@pytest.mark.parametrize(
    ("rule", "other", "power"),
    [
        (AdamW(1e-3, 0.1), Hyperball, 0.5),
        (SGDM(0.1, 5e-4, 0.9), Hyperball, 0.5),
        (AdamW(1e-3, 0.1, corrected_decay=True), Hyperball, 1.0),
        (AdamW(1e-3, 0.1), Lion, 1.0),
        (AdamW(1e-3, 0.1), AdamL2, 0.75),
    ],
)
def test_the_converted_schedule_turns_both_rules_alike_all_along_the_run(rule, other, power):
    matched = match(rule, other, **KNOWN)
    assert matched.schedule_power == pytest.approx(power)
    source = cosine(200, warmup=20)
    run = {"norm": 1.0, "fan_in": 512, "unit_grad_norm": 0.3}
    here = forecast(rule, source, **run).equilibrium_angular_update
    there = forecast(matched.rule, matched.schedule(source), **run).equilibrium_angular_update
    ratio = there / here
    assert ratio == pytest.approx(np.full(200, ratio[19]), rel=0.01)  # the peak's; exact forms differ a little


def test_a_schedule_is_the_same_object_if_nothing_has_to_be_converted():
    source = cosine(200)
    assert match(AdamW(1e-3, 0.1), Lion).schedule(source) is source


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("other", [type(rule) for rule in RULES], ids=lambda rule: rule.__name__)
def test_norm_and_memory_are_kept_between_any_two_rules(rule, other):
    found = match(rule, other, **KNOWN)
    here, there = rule.equilibrium(**KNOWN), found.rule.equilibrium(**KNOWN)
    assert there.norm == pytest.approx(here.norm, rel=1e-7)
    assert there.timescale == pytest.approx(here.timescale, rel=1e-7)
    assert found.kept[:2] == ("memory", "norm")
    assert found.ratios["rotation"] == pytest.approx(there.angular_update / here.angular_update)
    assert ("rotation" in found.kept) == (abs(found.ratios["rotation"] - 1) < 1e-6)


def test_adamw_to_lion_is_the_sheets_example():
    found = match(AdamW(1e-4, 0.01), Lion)
    assert 1e-4 / found.rule.lr == pytest.approx(6.78, rel=1e-3)
    assert found.rule.weight_decay / 0.01 == pytest.approx(6.78, rel=1e-3)
    assert found.differs == {"rotation": pytest.approx(0.643, rel=1e-3)}


def test_what_is_fixed_stays_and_the_memory_is_kept_first():
    found = match(AdamW(1e-3, 0.1), Lion, lr=1e-4, betas=(0.95, 0.98), fan_in=64)
    assert isinstance(found.rule, Lion)
    assert (found.rule.lr, found.rule.betas) == (1e-4, (0.95, 0.98))
    assert found.rule.weight_decay == pytest.approx(1.0)
    assert found.kept == ("memory",)
    both = match(AdamW(1e-3, 0.1), Lion, lr=1e-4, weight_decay=0.5)
    assert both.kept == ()
    assert both.ratios["memory"] == pytest.approx(2.0)


def test_hyperball_shares_only_the_rotation():
    found = match(AdamW(1e-3, 0.1), Hyperball)
    assert found.kept == ("rotation",)
    assert found.rule.equilibrium().angular_update == pytest.approx(AdamW(1e-3, 0.1).equilibrium().angular_update)
    back = match(found.rule, AdamW, weight_decay=0.1)
    assert back.rule.lr == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "quoted"),
    [
        (lambda: match(AdamW(1e-3, 0.1), SGDM, momentum=0.9), "Pass fan_in"),
        (lambda: match(AdamW(1e-3, 0.1), SGDM, momentum=0.9, fan_in=64), "Pass unit_grad_norm"),
        (lambda: match(AdamW(1e-3, 0.1), Muon), "Pass fan_in|Pass shape"),
        (lambda: match(Hyperball(0.01), AdamW), "Fix one of them"),
        (lambda: match(Hyperball(0.01, momentum=0.9), SGDM), "Fix one of them"),
        (lambda: match(Hyperball(0.01, momentum=0.9), SGDM, unit_grad_norm=1.0), "Fix one of them"),
        (lambda: match(AdamW(1e-3, 0.1), Rule), "class of a rule"),
        (lambda: match(AdamW(1e-3, 0.1), "lion"), "'lion'"),
        (lambda: match(AdamW(1e-3, 0.1), Lion, momentum=0.9), "Lion has no 'momentum'"),
        (lambda: match(AdamW(1e-3, 0.0), Lion), "no lr and weight_decay of Lion"),
    ],
)
def test_bad_input_is_quoted(call, quoted):
    with pytest.raises(ValueError, match=quoted):
        call()
