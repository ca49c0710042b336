import pytest

from gyroscope.theory import SGDM, SGDMRT, AdamL2, AdamS, AdamSRT, AdamW, Hyperball, Lion, Muon, NAdam, Rule, match

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
        (lambda: match(AdamW(1e-3, 0.1), SGDM, momentum=0.9), "pass fan_in"),
        (lambda: match(AdamW(1e-3, 0.1), SGDM, momentum=0.9, fan_in=64), "pass unit_grad_norm"),
        (lambda: match(AdamW(1e-3, 0.1), Muon), "pass fan_in|pass shape"),
        (lambda: match(Hyperball(0.01), AdamW), "fix one of them"),
        (lambda: match(AdamW(1e-3, 0.1), Rule), "class of a rule"),
        (lambda: match(AdamW(1e-3, 0.1), "lion"), "'lion'"),
        (lambda: match(AdamW(1e-3, 0.1), Lion, momentum=0.9), "Lion has no 'momentum'"),
        (lambda: match(AdamW(1e-3, 0.0), Lion), "no lr and weight_decay of Lion"),
    ],
)
def test_bad_input_is_quoted(call, quoted):
    with pytest.raises(ValueError, match=quoted):
        call()
