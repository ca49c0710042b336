"""What other rooms ask of a rule: properties that answer for every rule, so that nobody tests for its type."""

import ast
import math
from pathlib import Path

import pytest

from gyroscope import theory
from gyroscope.theory import (
    SGDM,
    SGDMRT,
    Adafactor,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    FixedNorm,
    Hyperball,
    Lion,
    Muon,
    NAdam,
    NAdamL2,
    Rule,
    UpdateRule,
)

PACKAGE = Path(theory.__file__).parents[1]
RULES = [
    SGDM(0.1, 5e-4, 0.9),
    SGDM(0.1, 5e-4, 0.9, nesterov=True),
    SGDM(0.1, 5e-4),
    AdamW(1e-3, 0.1),
    NAdam(1e-3, 0.1),
    Lion(1e-4, 1.0),
    Muon(1e-3, 0.1),
    AdamW(1e-3, 0.1, cautious_decay=True),
    Lion(1e-4, 1.0, cautious_decay=True),
    Adafactor(1e-2),
    Adafactor(1e-3, 0.1),
    Adafactor(1e-3, 0.1, scale_parameter=False, capped=False),
    AdamL2(1e-3, 1e-2),
    NAdamL2(1e-3, 1e-2),
    AdamS(1e-3, 1e-2),
    AdamSRT(1e-3, 1e-2),
    SGDMRT(0.1, 5e-4, 0.9),
    Hyperball(0.01),
    FixedNorm(AdamW(1e-3, 0.1)),
    FixedNorm(AdamW(1e-3, 0.1), follows_base=True),
    Rule(decay=1e-4, correlation_time=19.0, update_rms=0.01),
]
ids = [f"{rule.name}{i}" for i, rule in enumerate(RULES)]


def which(property_name: str, answer: object = True) -> set[str]:
    return {rule.name for rule in RULES if getattr(rule, property_name) == answer}


def test_each_property_holds_for_the_rules_it_is_meant_for():
    assert which("is_decoupled") == {"AdamW", "NAdam", "Lion", "Muon", "Adafactor"}
    assert which("has_weight_decay", False) == {"Hyperball", "FixedNorm", "Rule"}
    assert which("keeps_norm") == {"Hyperball", "FixedNorm"}
    assert which("counts_steps") == {"Adafactor"}
    assert which("transports_momentum") == {"AdamSRT", "SGDMRT"}
    assert which("whole_matrix") == {"Muon"}
    assert which("gradient_scales_update") == {"SGDM", "SGDMRT"}
    assert which("adam_betas", (0.9, 0.999)) == {"AdamW", "NAdam", "AdamL2", "NAdamL2"}
    assert which("sign_beta", 0.9) == {"Lion"}


def test_rules_with_decoupled_decay_are_those_with_the_option_of_corrected_decay():
    assert which("is_decoupled") == {rule.name for rule in RULES if "corrected_decay" in rule.settings}


def test_rules_with_momentum_and_decoupled_decay_are_those_with_the_option_of_cautious_decay():
    options = {rule.name for rule in RULES if "cautious_decay" in rule.settings}
    assert options == {rule.name for rule in RULES if rule.is_decoupled and rule.momentum_factor}


def test_a_rule_without_second_moment_has_no_betas_to_be_unstable():
    assert AdamW(1e-3, 0.1, (0.9, 0.0)).adam_betas is None


@pytest.mark.parametrize(
    ("rule", "keep", "share"),
    [
        (SGDM(0.1, 5e-4, 0.9), 0.9, 1.0),
        (AdamW(1e-3, 0.1), 0.9, 0.1),
        (AdamS(1e-3, 0.1), 0.9, 0.1),
        (Lion(1e-4, 1.0), 0.99, 0.01),
        (Muon(1e-3, 0.1), 0.95, 0.05),
    ],
    ids=str,
)
def test_the_momentum_takes_in_gradients_as_the_optimizer_does(rule, keep, share):
    assert rule.momentum_step == pytest.approx((keep, share))


@pytest.mark.parametrize("rule", [SGDM(0.1, 5e-4), AdamSRT(1e-3, 0.1), SGDMRT(0.1, 5e-4), Hyperball(0.1)], ids=str)
def test_a_momentum_that_is_absent_transported_or_unknown_has_no_step(rule):
    assert rule.momentum_step is None


def test_smds_map_holds_for_the_plain_heavy_ball_alone():
    assert SGDM(0.1, 5e-4, 0.9).heavy_ball == 0.9
    assert SGDM(0.1, 5e-4, 0.9, nesterov=True).heavy_ball is None
    assert SGDMRT(0.1, 5e-4, 0.9).heavy_ball is None


@pytest.mark.parametrize("rule", RULES, ids=ids)
def test_settings_make_the_same_rule_again(rule):
    assert type(rule)(**rule.settings) == rule
    assert rule.replace() == rule


@pytest.mark.parametrize("rule", RULES, ids=ids)
@pytest.mark.parametrize("corrected", [False, True])
def test_norm_and_angle_follow_the_learning_rate_with_their_exponents(rule, corrected):
    """At a small rate, where the leading order rules."""
    if corrected and not rule.is_decoupled:
        pytest.skip("an option of decoupled decay")
    rule = rule.replace(corrected_decay=True) if corrected else rule
    weights = theory.law.Weights.checked(64, 0.5, (32, 64))
    low = rule.at(1e-4 * rule.lr, weights, leading=True)
    high = rule.at(2e-4 * rule.lr, weights, leading=True)
    assert math.log2(high.angular_update / low.angular_update) == pytest.approx(rule.angle_exponent, abs=1e-3)
    if low.norm is not None and math.isfinite(low.norm):
        assert math.log2(high.norm / low.norm) == pytest.approx(rule.norm_exponent, abs=1e-3)


CLASSES = {rule.name for rule in RULES}
OUTSIDE = [path for path in sorted(PACKAGE.rglob("*.py")) if PACKAGE / "theory" / "rules" not in path.parents]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_outside_tests_for_the_type_of_a_rule(path):
    """A class of `gyroscope.optim` may bear a rule's name (AdamS): what counts is what the file imports from theory."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    rules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gyroscope.theory")
        for alias in node.names
        if alias.name in CLASSES
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        if node.func.id == "isinstance":
            named = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            assert not named & rules, f"{path}:{node.lineno} tests for the type of a rule"
        if node.func.id == "hasattr":
            assert "rule" not in ast.unparse(node.args[0]), f"{path}:{node.lineno} asks a rule for an attribute"


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError):
        UpdateRule()  # type: ignore[abstract]
