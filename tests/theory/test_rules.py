"""Closed forms: identities, limits, and the random walk."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gyroscope.theory import (
    SGDM,
    SGDMRT,
    Adafactor,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    Hyperball,
    Lion,
    Muon,
    NAdam,
    NAdamL2,
    Rule,
)
from gyroscope.theory.law import Weights
from gyroscope.theory.rules.lion import correlation
from tests import walk
from tests.needs import needs_muon

C = 128
ALL = [
    SGDM(0.1, 5e-4, 0.9),
    SGDM(0.1, 5e-4, 0.9, nesterov=True),
    AdamW(1e-3, 0.1),
    AdamW(1e-3, 0.1, corrected_decay=True),
    NAdam(1e-3, 0.1),
    AdamL2(1e-3, 1e-2),
    NAdamL2(1e-3, 1e-2),
    Lion(1e-4, 1.0),
    Lion(1e-4, 1.0, linearised=True),
    SGDMRT(0.1, 5e-4, 0.9),
    AdamS(1e-3, 1e-2),
    AdamSRT(1e-3, 1e-2),
    Muon(1e-3, 0.1),
    Adafactor(1e-3, 0.1),
    Adafactor(1e-3, 0.1, scale_parameter=False),
    AdamW(1e-3, 0.1, cautious_decay=True),
    Lion(1e-5, 1.0, cautious_decay=True),
    Muon(1e-3, 0.1, cautious_decay=True),
    Rule(decay=1e-4, correlation_time=19.0, update_rms=0.01),
]
ids = [f"{type(rule).__name__}{i}" for i, rule in enumerate(ALL)]
KNOWN = {"fan_in": C, "unit_grad_norm": 0.7, "shape": (64, 64)}


def sgdm_map(lr, wd, alpha, L, steps):
    """SMD (60)-(66), literally: X = (‖w_t‖², ⟨w_t,w_{t-1}⟩, ‖w_{t-1}‖²) with E⟨v,g⟩ = 0."""
    b = 1 + alpha - wd * lr
    A = np.array([[b * b, -2 * alpha * b, alpha**2], [b, -alpha, 0], [1, 0, 0]])
    X = np.ones(3)
    for _ in range(steps):
        X = A @ X + np.array([L * lr**2 / X[0], 0, 0])
    return X


@pytest.mark.parametrize(("lr", "wd", "alpha"), [(0.1, 0.01, 0.0), (0.1, 5e-2, 0.9), (0.5, 0.1, 0.5), (0.2, 0.2, 0.3)])
def test_sgdm_is_the_fixed_point_of_the_norm_map_of_smd(lr, wd, alpha):
    X = sgdm_map(lr, wd, alpha, 0.49, 60_000)
    eq = SGDM(lr, wd, alpha).equilibrium(unit_grad_norm=0.7)
    assert eq.norm**2 == pytest.approx(X[0], rel=1e-9)
    assert math.cos(eq.angular_update) == pytest.approx(X[1] / X[0], rel=1e-9)
    theorem2 = (0.49 * lr / (wd * (1 - alpha) * (2 - wd * lr / (1 + alpha)))) ** 0.25
    assert eq.norm == pytest.approx(theorem2, rel=1e-12)


def test_plain_sgd_is_the_fixed_point_of_its_map_with_the_square_kept():
    x = 1.0
    for _ in range(20_000):
        x = (1 - 0.1 * 0.01) ** 2 * x + 0.49 * 0.1**2 / x
    assert SGDM(0.1, 0.01).equilibrium(unit_grad_norm=0.7).norm ** 2 == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "norm", "angle"),
    [
        (SGDM(0.1, 5e-4, 0.9), (0.1 * 0.49 / (2 * 5e-4 * 0.1)) ** 0.25, math.sqrt(2 * 0.1 * 5e-4 / 1.9)),
        (AdamW(1e-3, 0.1), math.sqrt(1e-3 * C / 0.2), math.sqrt(2e-4 * 0.1 / 1.9)),
        (
            Lion(1e-4, 1.0, linearised=True),
            math.sqrt(1e-4 * C / math.pi / (0.01 + 0.81 * 0.01 / 1.99)),
            math.sqrt(math.pi * 1e-4 * (0.01 + 0.81 * 0.01 / 1.99)),
        ),
        (SGDMRT(0.1, 5e-4, 0.9), (0.1 * 0.49 / (1e-3 * (1 - 0.81))) ** 0.25, math.sqrt(2 * 0.1 * 5e-4)),
        (AdamS(1e-3, 1e-2), (1e-3 * math.sqrt(C) * 0.7 / 2e-2) ** (1 / 3), None),
        (AdamSRT(1e-3, 1e-2), (1e-3 * math.sqrt(C) * 0.7 / (2e-2 * 1.9)) ** (1 / 3), None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "lr") else "",
)
def test_leading_order_is_the_papers_table(rule, norm, angle):
    eq = rule.equilibrium(**KNOWN, leading_order=True)
    assert eq.norm == pytest.approx(norm, rel=1e-12)
    if angle is not None:
        assert eq.angular_update == pytest.approx(angle, rel=1e-12)


def test_adam_l2_solves_the_papers_cubic():
    lr, wd, g = 2e-2, 0.3, 0.7
    eq = AdamL2(lr, wd).equilibrium(fan_in=C, unit_grad_norm=g, leading_order=True)
    x = eq.norm**2
    terms = [4 * wd**2 * x**3, -C * lr**2 * wd**2 * x**2, -C * lr**2 * g**2]
    assert abs(sum(terms)) < 1e-12 * max(map(abs, terms))
    expected = lr**2 * C * (0.1 / 1.9) * (1 - wd**2 * x**2 / (g**2 + wd**2 * x**2)) / x
    assert eq.angular_update**2 == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rule", ALL, ids=ids)
def test_the_exact_form_meets_leading_order_as_the_decay_vanishes(rule):
    decay = "decay" if isinstance(rule, Rule) else "weight_decay"
    tiny = replace(rule, **{decay: 1e-8 * getattr(rule, decay)})
    exact, leading = tiny.equilibrium(**KNOWN), tiny.equilibrium(**KNOWN, leading_order=True)
    for name in ("angular_update", "norm", "update_rms", "timescale"):
        assert getattr(exact, name) == pytest.approx(getattr(leading, name), rel=2e-4), name


@pytest.mark.parametrize("rule", ALL, ids=ids)
def test_update_norm_and_angle_of_an_equilibrium_are_in_balance(rule):
    """D of theory.md §3 is 1 to leading order: 2a‖ω‖² = update_rms²·τ and η_r² = 2a/τ."""
    eq = rule.equilibrium(**KNOWN, leading_order=True)
    assert eq.angular_update == pytest.approx(eq.update_rms / eq.norm, rel=1e-2)
    assert eq.half_life == pytest.approx(math.log(2) * eq.timescale)


@pytest.mark.parametrize("rule", ALL, ids=ids)
def test_what_the_inputs_do_not_determine_is_none(rule):
    bare = rule.equilibrium()
    assert bare.norm is None or rule.needs == ()
    needs_shape = rule.whole_matrix and rule.cautious_decay  # how much of it decays follows from τ
    assert (rule.timescale is None) == (isinstance(rule, AdamL2 | NAdamL2 | AdamS | AdamSRT) or needs_shape)
    if rule.timescale is not None:
        assert bare.timescale == pytest.approx(rule.equilibrium(**KNOWN).timescale)
        assert rule.half_life == pytest.approx(math.log(2) * rule.timescale)


@pytest.mark.parametrize("rule", [r for r in ALL if not isinstance(r, Rule)], ids=ids[:-1])
def test_the_norm_follows_the_learning_rate_with_the_rescaling_exponent(rule):
    ratio = rule.at(rule.lr / 2, _weights()).norm / rule.equilibrium(**KNOWN).norm
    assert ratio == pytest.approx(0.5**rule.norm_exponent, rel=0.01)


def test_corrected_decay_keeps_the_norm_and_turns_in_proportion_to_the_learning_rate():
    rule = AdamW(1e-3, 0.1, corrected_decay=True)
    peak, tenth = rule.at(1e-3, _weights(), leading=True), rule.at(1e-4, _weights(), leading=True)
    assert tenth.norm == pytest.approx(peak.norm)
    assert tenth.angular_update == pytest.approx(peak.angular_update / 10)
    assert peak == AdamW(1e-3, 0.1).at(1e-3, _weights(), leading=True)


def test_hyperball_turns_by_the_arctangent_of_its_learning_rate():
    eq = Hyperball(0.3).equilibrium()
    assert math.tan(eq.angular_update) == pytest.approx(0.3)
    assert (eq.norm, eq.timescale, eq.half_life) == (None, None, None)


def test_a_rule_of_ones_own_gives_what_the_named_rule_gives():
    named = AdamW(1e-2, 0.5).equilibrium(fan_in=C)
    mine = Rule(decay=5e-3, correlation_time=19.0, update_rms=named.update_rms).equilibrium()
    assert mine.norm == pytest.approx(named.norm, rel=1e-12)
    assert mine.angular_update == pytest.approx(named.angular_update, rel=1e-12)


def test_the_arcsine_series_equals_the_plain_sum():
    a, k, signs = 0.002, np.arange(1, 20_000), correlation(0.9, 0.99)
    plain = 1 + (4 / np.pi) * np.sum((1 - a) ** k * np.arcsin(signs.linear.first * 0.99 ** (k - 1)))
    assert signs.time(a) == pytest.approx(plain, rel=1e-12)
    assert np.isfinite(Lion(1e-4, 1.0, betas=(1 - 1e-9, 1 - 1e-9)).equilibrium(fan_in=C).norm)


def test_without_decay_nothing_settles():
    for rule in (
        SGDM(0.1, 0.0, 0.9),
        AdamW(1e-3, 0.0),
        Lion(1e-4, 0.0),
        AdamL2(1e-3, 0.0),
        AdamS(1e-3, 0),
        SGDMRT(0.1, 0),
    ):
        eq = rule.equilibrium(**KNOWN)
        assert eq.angular_update == 0
        assert eq.norm == eq.timescale == math.inf


def _weights():
    return Weights.checked(*KNOWN.values())


WALKS = {
    "AdamW, lr·wd = .01": (AdamW(0.02, 0.5), walk.adamw(0.5), 3000),
    "Lion, lr·wd = .002": (Lion(0.002, 1.0), walk.lion(1.0), 1200),
    "NAdam": (NAdam(0.02, 0.25), walk.nadam(0.25), 800),
    "SGDM": (SGDM(0.1, 0.02, 0.9), walk.sgdm(0.02, 0.9), 600),
    "Nesterov": (SGDM(0.1, 0.02, 0.9, nesterov=True), walk.sgdm(0.02, 0.9, nesterov=True), 600),
    "Adam+L2": (AdamL2(0.02, 0.05), walk.adam_l2(0.05), 600),
    "Adam+L2, strong decay": (AdamL2(0.02, 0.5), walk.adam_l2(0.5), 600),
    "NAdam+L2": (NAdamL2(0.02, 0.05), walk.nadam(0.05, coupled=True), 800),
    "Adam-S": (AdamS(0.02, 0.05), walk.adam_s(0.05), 600),
    "Adam-SRT": (AdamSRT(0.02, 0.2), walk.adam_s(0.2, transport=True), 800),
    "SGD-MRT": (SGDMRT(0.1, 0.05, 0.9), walk.sgd_mrt(0.05, 0.9), 600),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_the_exact_form_is_within_one_percent_of_a_random_walk(name):
    rule, step, steps = WALKS[name]
    eq = rule.equilibrium(fan_in=C, unit_grad_norm=1.0)
    seen = walk.walk(step, np.full(steps, rule.lr), eq.norm, dim=C)
    late = slice(steps // 2, None)
    assert np.sqrt((seen.norm[late] ** 2).mean()) == pytest.approx(eq.norm, rel=0.01)
    assert seen.angle[late].mean() == pytest.approx(eq.angular_update, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("AdamW, lr·wd = .01", 0.03), ("Lion, lr·wd = .002", 0.06)])
def test_leading_order_is_several_percent_off_where_the_exact_form_is_not(name, least):
    rule, step, steps = WALKS[name]
    exact, leading = (rule.equilibrium(fan_in=C, leading_order=order) for order in (False, True))
    seen = walk.walk(step, np.full(steps, rule.lr), exact.norm, dim=C)
    norm = np.sqrt((seen.norm[steps // 2 :] ** 2).mean())
    assert abs(norm / exact.norm - 1) < 0.01
    assert abs(norm / leading.norm - 1) > least


@needs_muon
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (48, 48), (96, 24)])
def test_muon_is_within_two_percent_of_torchs_muon_under_white_noise(shape):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    rule = Muon(0.02, 0.5)
    eq = rule.equilibrium(shape=shape)
    w = torch.nn.Parameter(torch.randn(shape, generator=generator))
    with torch.no_grad():
        w *= eq.norm / w.norm()
    optimizer = torch.optim.Muon([w], lr=rule.lr, weight_decay=rule.weight_decay)
    norms, angles = [], []
    for _ in range(1500):
        noise = torch.randn(shape, generator=generator)
        w.grad = noise - w.detach() * (noise * w.detach()).sum() / w.detach().square().sum()
        old = w.detach().clone().double().numpy().reshape(1, -1)
        optimizer.step()
        new = w.detach().double().numpy().reshape(1, -1)
        norms.append((new * new).sum())
        angles.append(walk.angle_between(old, new)[0])
    assert np.sqrt(np.mean(norms[500:])) == pytest.approx(eq.norm, rel=0.02)
    assert np.mean(angles[500:]) == pytest.approx(eq.angular_update, rel=0.02)


@pytest.mark.slow
def test_each_matrix_of_a_stack_settles_by_itself_under_a_batched_muon():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    rule = Muon(0.02, 0.5)
    shape = (6, 48, 24)
    eq = rule.equilibrium(shape=shape)
    assert eq == rule.equilibrium(shape=shape[1:]), "a stack says no more than one of its matrices"
    assert rule.equilibrium(shape=(3, 48, 24)) != rule.equilibrium(shape=(144, 24)), "as one it turns by another angle"
    w = torch.randn(shape, generator=generator)
    w *= eq.norm / w.norm(dim=(1, 2), keepdim=True)
    momentum = torch.zeros(shape)
    norms, angles = [], []
    for _ in range(1500):
        noise = torch.randn(shape, generator=generator)
        noise -= w * (noise * w).sum((1, 2), keepdim=True) / w.square().sum((1, 2), keepdim=True)
        momentum.lerp_(noise, 1 - rule.momentum)
        x = noise.lerp(momentum, rule.momentum)
        x = x.mT / x.norm(dim=(1, 2), keepdim=True)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        old = w.flatten(1).double().numpy()
        w = w * (1 - rule.lr * rule.weight_decay) - rule.lr * 2**0.5 * x.mT
        new = w.flatten(1).double().numpy()
        norms.append((new * new).sum(1))
        angles.append(walk.angle_between(old, new))
    assert np.sqrt(np.mean(norms[500:])) == pytest.approx(eq.norm, rel=0.02)
    assert np.mean(angles[500:]) == pytest.approx(eq.angular_update, rel=0.02)


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw", "spectral_norm", "none"])
def test_muons_adjustments_scale_norms_and_leave_angles(adjustment):
    factors = {"original": 2.0, "match_rms_adamw": 0.2 * 128**0.5, "spectral_norm": 2.0, "none": 1.0}
    plain = Muon(0.02, 0.5, adjust_lr_fn="none").equilibrium(shape=(128, 32))
    adjusted = Muon(0.02, 0.5, adjust_lr_fn=adjustment).equilibrium(shape=(128, 32))
    assert adjusted.norm / plain.norm == pytest.approx(factors[adjustment])
    assert adjusted.angular_update == pytest.approx(plain.angular_update)
    wide = Muon(0.02, 0.5, adjust_lr_fn="spectral_norm").equilibrium(shape=(32, 128))
    assert wide.norm / plain.norm == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: AdamW(-1e-3, 0.1), "lr=-0.001"),
        (lambda: AdamW(math.nan, 0.1), "lr=nan"),
        (lambda: AdamW("fast", 0.1), "lr='fast'"),
        (lambda: AdamW(1e-3, -0.1), "weight_decay=-0.1"),
        (lambda: AdamW(1e-3, 0.1, betas=(0.9, 1.0)), "beta2=1.0"),
        (lambda: AdamW(1e-3, 0.1, betas=(1.5, 0.9)), "beta1=1.5"),
        (lambda: AdamW(1e-3, 0.1, betas=0.9), "betas=0.9"),
        (lambda: AdamW(2.0, 0.5), "one step would remove the whole weight"),
        (lambda: SGDM(0.1, 1e-4, momentum=1.0), "momentum=1.0"),
        (lambda: SGDM(0.1, 1e-4, nesterov=True), "nesterov=True needs a momentum"),
        (lambda: Rule(decay=1.0, correlation_time=1.0), "decay=1.0"),
        (lambda: Rule(decay=0.1, correlation_time=0.0), "correlation_time=0.0"),
        (lambda: Hyperball(math.inf), "lr=inf"),
        (lambda: Muon(1e-3, 0.1, adjust_lr_fn="mine"), "adjust_lr_fn='mine'"),
        (lambda: AdamW(1e-3, 0.1).equilibrium(fan_in=0), "fan_in=0"),
        (lambda: AdamW(1e-3, 0.1).equilibrium(shape=(3, -1)), "shape=(3, -1)"),
        (lambda: Muon(1e-3, 0.1).equilibrium(shape=(3,)), "shape=(3,)"),
        (lambda: SGDM(1e-3, 0.1).equilibrium(unit_grad_norm="big"), "unit_grad_norm='big'"),
    ],
)
def test_bad_input_is_quoted(make, quoted):
    with pytest.raises(ValueError, match=quoted.replace("(", r"\(").replace(")", r"\)")):
        make()
