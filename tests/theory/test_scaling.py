"""Transfer of settings: every rule against the powers of the published table, and the map against equilibria."""

import re
from itertools import permutations

import numpy as np
import pytest

from gyroscope.theory import (
    SGDM,
    AdamL2,
    AdamW,
    FixedNorm,
    Hyperball,
    Lion,
    Muon,
    Scale,
    TransferRule,
    cosine,
    forecast,
    transfer,
)
from gyroscope.theory.transfer_rules import AXES, FAVOURED, KEEP_ROTATION, RULES, check_family, compose

TUNED = AdamW(6e-4, 0.1)
BASE = Scale(0.5e6, 10e9, width=768, depth=12)
BY_NAME = {rule.name: rule for rule in RULES}

# Powers of (B, D, m, L) as the sources state them, each written out by hand: rotation, memory in tokens, run length,
# RMS entry. Silent axes do not change in the test.
PUBLISHED = {
    "copy": ((0, 0, 0, 0), (1, 0, 0, 0), (-1, 1, 0, 0), (0, 0, 0, 0)),
    "sqrt-batch": ((1 / 4, 0, 0, 0), (1 / 2, 0, 0, 0), (-1 / 2, 0, 0, 0), (1 / 4, 0, 0, 0)),
    "tau": ((1 / 2, -1 / 2, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0), (0, 1 / 2, 0, 0)),
    "tau-wd": ((1 / 2, -1 / 2, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0), (-1 / 2, 1 / 2, 0, 0)),
    "completed": ((1 / 2, -1 / 2, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)),
    "horizon": ((0, -0.16, 0, 0), (0, 0.32, 0, 0), (0, 0.68, 0, 0), (0, -0.16, 0, 0)),
    "mup": ((0, 0, -1 / 2, 0), (0, 0, 1, 0), (0, 0, -1, 0), (0, 0, -1 / 2, 0)),
    "independent": ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, -1, 0)),
    "fan": ((0, 0, -1 / 4, 0), (0, 0, 1 / 2, 0), (0, 0, -1 / 2, 0), (0, 0, -3 / 4, 0)),
}


def row(result, name):
    return next(each for each in result.rows if each.name == name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_rule_does_what_its_powers_say(name):
    ratios = {axis: ratio for axis, ratio in zip(AXES, (2, 3, 1.5, 2), strict=True) if axis in BY_NAME[name].speaks_of}
    to = Scale(*(getattr(BASE, axis) * ratios.get(axis, 1) for axis in AXES))
    moved = transfer(TUNED, base=BASE, to=to)
    values = [row(moved, name), moved.tuned]
    for quantity, powers in zip(("rotation", "memory", "run_length", "rms_entry"), PUBLISHED[name], strict=True):
        factor = np.prod([ratios.get(axis, 1) ** power for axis, power in zip(AXES, powers, strict=True)])
        # The map is of leading order in lr·weight_decay, 6e-5 here, and the rows are exact.
        assert getattr(values[0], quantity) / getattr(values[1], quantity) == pytest.approx(factor, rel=2e-3)


def test_every_published_rule_has_a_source_with_a_year():
    assert [rule.name for rule in RULES if not re.search(r"\b20[12]\d\b", rule.source)] == ["copy"]


def test_the_worked_example_of_several_axes():
    to = Scale(2e6, 200e9, width=2048, depth=24)
    moved = transfer(TUNED, base=BASE, to=to, schedule=cosine(10_000), initial_norm=3**-0.5)
    rotation = {each.name: round(1e3 * each.rotation, 2) for each in moved.rows}
    assert rotation["copy"] == 2.51
    # The width of 2.67 times, which none of these covers, halves the decay and the rotation of mup.
    wider = (2048 / 768) ** -0.5
    for name, alone in (("tau", 1.12), ("completed", 1.12), ("power-lines", 1.23)):
        assert rotation[name] == pytest.approx(alone * wider, abs=0.01)
    assert (rotation["hyperp"], rotation["marin-muonh"]) == (1.36, 1.27)
    assert [round(each.run_length, 2) for each in (moved.tuned, row(moved, "copy"))] == [0.6, 3]
    assert row(moved, "tau").run_length == pytest.approx(0.6 * wider**2, rel=2e-3)
    start = {each.name: each.start_over_rotation for each in moved.rows}
    assert [round(start[name], 1) for name in ("copy", "hyperp")] == [4.3, 1.0]


def test_nothing_changes_where_nothing_changes():
    moved = transfer(TUNED, base=BASE, to=BASE)
    assert moved.decided
    assert [each.name for each in moved.recommended] == ["copy"]
    for each in moved.rows:
        assert each.silent_on == ()
        if each.lr is not None:
            assert (each.lr, each.weight_decay) == (TUNED.lr, TUNED.weight_decay)


def test_there_and_back_is_where_it_began():
    to = Scale(2e6, 200e9, width=2048, depth=24)
    there = transfer(TUNED, base=BASE, to=to)
    for each in (each for each in there.rows if each.lr is not None and each.betas is None):
        tuned = AdamW(each.lr, each.weight_decay)
        back = row(transfer(tuned, base=to, to=BASE), each.name)
        assert (back.lr, back.weight_decay) == pytest.approx((TUNED.lr, TUNED.weight_decay))


def test_the_unit_of_batch_and_tokens_does_not_matter():
    in_tokens = transfer(TUNED, base=Scale(1024, 1e6), to=Scale(4096, 8e6))
    in_samples = transfer(TUNED, base=Scale(1, 1e6 / 1024), to=Scale(4, 8e6 / 1024))
    for one, other in zip(in_tokens.rows, in_samples.rows, strict=True):
        assert (one.lr, one.run_length) == pytest.approx((other.lr, other.run_length))


def test_a_silent_axis_is_named_and_filled_with_the_favoured_rule():
    moved = transfer(TUNED, base=Scale(1, 1e4, width=64), to=Scale(1, 1e4, width=256))
    tau = row(moved, "tau")
    mup = row(moved, "mup")
    assert (tau.silent_on, tau.rule_by_axis) == (("width",), {"width": "mup"})
    assert mup.silent_on == ()
    assert (tau.lr, tau.weight_decay) == (mup.lr, mup.weight_decay) == (TUNED.lr / 4, TUNED.weight_decay)


JOINT = {"batch": 2e6, "tokens": 200e9, "width": 2048}


@pytest.mark.parametrize("order", list(permutations(JOINT)))
def test_the_answer_to_a_joint_change_is_the_chain_of_single_answers(order):
    (joint,) = transfer(TUNED, base=BASE, to=Scale(**{**vars(BASE), **JOINT})).recommended
    tuned, scale, names = TUNED, BASE, {}
    for axis in order:
        # At a batch of 2M and then 10B tokens, or the reverse, each step changes one axis alone.
        to = Scale(**{**vars(scale), axis: JOINT[axis]})
        moved = transfer(tuned, base=scale, to=to)
        (single,) = moved.recommended
        assert moved.decided
        names[axis] = single.name
        tuned = AdamW(single.lr, single.weight_decay)
        scale = to
    assert (joint.lr, joint.weight_decay) == pytest.approx((tuned.lr, tuned.weight_decay), rel=1e-12)
    assert (joint.lr, joint.weight_decay) == pytest.approx((1.725e-4, 0.2), rel=1e-3)
    assert joint.rule_by_axis == names
    assert joint.name == "batch=tau,tokens=horizon,width=mup"


@pytest.mark.parametrize("rule", [TUNED, Hyperball(0.01), SGDM(0.1, 5e-4, momentum=0.9)])
@pytest.mark.parametrize("axes", [("batch",), ("depth",), ("batch", "tokens"), AXES])
def test_there_is_exactly_one_answer_and_no_trial_decides_a_joint_change(rule, axes):
    moved = transfer(rule, base=BASE, to=Scale(**{**vars(BASE), **{axis: 4 * getattr(BASE, axis) for axis in axes}}))
    (answer,) = moved.recommended
    assert answer.lr is not None
    assert moved.decided == (rule is TUNED and axes == ("batch",))


def test_rules_are_composed_axis_by_axis():
    to = Scale(2e6, 40e9, width=1536, depth=12)
    product = compose({"batch": "sde", "tokens": "power-lines", "width": "fan"})
    (composed,) = transfer(TUNED, base=BASE, to=to, transfer_rules=[product]).rows
    assert composed.lr == pytest.approx(6e-4 * 4**0.5 / 2)
    # Weight decay: power-lines' D^-1·(D/N)^.527 with N ∝ m², and fan's m^.5.
    assert composed.weight_decay == pytest.approx(0.1 / 4 * (4 / 4) ** 0.527 * 2**0.5)
    assert composed.betas == pytest.approx((0.9, 0.996))
    assert composed.eps_factor == 0.5
    assert composed.silent_on == ()


WIDER = {"base": Scale(16, 16e3, width=64), "to": Scale(16, 64e3, width=128)}


def test_keep_rotation_has_the_mean_rotation_of_the_tuned_run():
    tuned = AdamW(1e-2, 0.3, (0.9, 0.95))
    options = {"schedule": cosine(10_000, warmup=500), "initial_norm": 0.16}
    (moved,) = transfer(tuned, **WIDER, **options, transfer_rules=[KEEP_ROTATION]).rows
    assert moved.weight_decay == tuned.weight_decay
    settings = {"fan_in": 64, "norm": 0.16}
    before = forecast(tuned, cosine(1000, warmup=50), **settings).angular_update.mean()
    settings["fan_in"] = 128
    after = forecast(tuned.replace(lr=moved.lr), cosine(4000, warmup=200), **settings).angular_update.mean()
    # The schedule is interpolated, which smooths its corners.
    assert after == pytest.approx(before, rel=2e-3)
    assert moved.lr != pytest.approx(tuned.lr, rel=0.05)


def test_keep_rotation_copies_settings_that_start_in_equilibrium():
    rule = AdamW(1e-2, 0.3)
    sizes = {"base": Scale(16, 160e3, width=64), "to": Scale(64, 160e3, width=64)}
    start = rule.equilibrium(fan_in=64).norm
    (moved,) = transfer(rule, **sizes, initial_norm=start, transfer_rules=[KEEP_ROTATION]).rows
    assert moved.lr == pytest.approx(rule.lr, rel=1e-2)


def test_keep_rotation_is_asked_for_and_never_the_answer_unasked():
    moved = transfer(TUNED, base=BASE, to=Scale(2e6, 200e9, width=2048, depth=12), initial_norm=0.5)
    assert KEEP_ROTATION.name not in {each.name for each in (*moved.rows, *moved.recommended)}
    assert KEEP_ROTATION not in RULES


@pytest.mark.parametrize(
    ("rule", "to", "note"),
    [
        (TUNED, Scale(16, 64e3), "it needs --width and an initial norm"),
        (TUNED, Scale(16, 64e9, width=64), "it forecasts at most 200,000 steps"),
        (Muon(0.02, 0.1), Scale(16, 64e3, width=64), "the mean rotation of Muon over a run depends on more than the"),
    ],
)
def test_keep_rotation_says_what_it_lacks(rule, to, note):
    base = Scale(16, 16e3, width=to.width)
    (moved,) = transfer(rule, base=base, to=to, initial_norm=1.0, transfer_rules=[KEEP_ROTATION]).rows
    assert moved.lr is None
    assert moved.note.startswith(note)


def test_the_favoured_rule_of_an_axis_is_for_that_axis():
    for family, names in FAVOURED.items():
        for axis, name in names.items():
            assert axis in BY_NAME[name].speaks_of
            assert BY_NAME[name].family in ("any", family)


def test_width_moves_matrices_and_leaves_embeddings_and_gains():
    groups = row(transfer(TUNED, base=Scale(1, 1e4, width=64), to=Scale(1, 1e4, width=256)), "independent").groups
    assert (groups["hidden"].lr, groups["head"].lr) == (TUNED.lr / 4, TUNED.lr / 4)
    assert (groups["embedding"].lr, groups["embedding"].weight_decay) == (TUNED.lr, pytest.approx(0.1))
    assert (groups["gains"].lr, groups["gains"].weight_decay) == (TUNED.lr, 0.0)


def test_the_batch_changes_betas_where_a_rule_says_so():
    moved = transfer(AdamW(1e-3, 0.1, (0.9, 0.99)), base=Scale(64, 1e6), to=Scale(256, 1e6))
    assert row(moved, "sde").betas == (0.9, pytest.approx(0.96))
    assert row(moved, "sde").eps_factor == 0.5
    assert row(moved, "tau").betas is None
    sphere = transfer(Hyperball(1e-3, betas=(0.9, 0.99)), base=Scale(64, 1e6), to=Scale(256, 1e6))
    assert row(sphere, "marin-adamh").betas == (0.9, pytest.approx(0.99**4))


def test_a_rule_that_holds_norms_moves_the_settings_that_set_its_angle():
    sizes = {"base": BASE, "to": Scale(2e6, 40e9, width=2048, depth=12), "initial_norm": 0.5}
    held = transfer(FixedNorm(TUNED), **sizes)
    plain = transfer(TUNED, **sizes)
    assert [each.name for each in held.recommended] == [each.name for each in plain.recommended]
    for ours, free in zip(held.rows, plain.rows, strict=True):
        assert (ours.lr, ours.weight_decay, ours.groups) == (free.lr, free.weight_decay, free.groups)
        assert (ours.rotation, ours.memory, ours.run_length) == pytest.approx(
            (free.rotation, free.memory, free.run_length), rel=1e-3
        )
        assert ours.rms_entry is None
        assert ours.start_over_rotation == (None if free.lr is None and free.start_over_rotation is None else 1.0)


def test_a_rule_that_leaves_its_range_gives_no_settings_and_says_why():
    sde = row(transfer(TUNED, base=Scale(1, 1e9), to=Scale(1e4, 1e9)), "sde")
    assert (sde.lr, sde.note) == (None, "beta2 would be -9")


def test_a_rule_of_another_family_gives_rotation_but_no_settings():
    moved = transfer(TUNED, base=Scale(1, 1e4), to=Scale(4, 1e4))
    assert row(moved, "hyperp").lr is None
    assert row(moved, "hyperp").rotation == pytest.approx(2 * moved.tuned.rotation)
    sphere = transfer(Hyperball(0.01), base=Scale(1, 1e4), to=Scale(4, 1e4))
    assert row(sphere, "hyperp").lr == pytest.approx(0.02)
    assert row(sphere, "tau").lr is None
    sgd = transfer(SGDM(0.1, 5e-4, momentum=0.9), base=Scale(1, 1e4), to=Scale(4, 1e4))
    assert row(sgd, "linear").lr == pytest.approx(0.4)
    assert row(sgd, "linear").memory == pytest.approx(sgd.tuned.memory)


@pytest.mark.parametrize("rule", [Lion(1e-4, 1.0), Muon(0.02, 0.1), TUNED.replace(corrected_decay=True)])
def test_every_rule_with_decoupled_decay_is_transferred(rule):
    # Muon needs the width, for the shape.
    moved = transfer(rule, base=Scale(1, 1e4, width=64), to=Scale(2, 2e4, width=64), schedule=cosine(100))
    tau = row(moved, "tau")
    assert tau.run_length == pytest.approx(moved.tuned.run_length, rel=1e-3)
    assert tau.memory == pytest.approx(2 * moved.tuned.memory, rel=1e-3)


def test_a_rule_of_ones_own_is_one_line():
    mine = TransferRule("mine", {"batch": 1.0}, {"batch": -1.0}, "a notebook")
    moved = transfer(TUNED, base=Scale(1, 1e4), to=Scale(2, 1e4), transfer_rules=[mine])
    assert [(each.name, each.lr, each.weight_decay) for each in moved.recommended] == [("mine", 1.2e-3, 0.05)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Scale(0, 1e4), "batch=0 must be a finite number above 0"),
        (lambda: Scale(1, 1e4, width=-3), "width=-3 must be a finite number above 0"),
        (lambda: Scale(1e4, 10), "Use one unit for both"),
        (lambda: TransferRule("mine", {"heads": 1.0}, {}, "x"), "unknown axis 'heads'"),
        (lambda: transfer(TUNED, base=Scale(1, 9), to=Scale(1, 9, width=2)), "width is given for one of the two"),
        (lambda: transfer(AdamL2(1e-3, 0.1), base=Scale(1, 9), to=Scale(2, 9)), "no published rule covers AdamL2"),
        (lambda: transfer(TUNED, base=BASE, to=BASE, transfer_rules=[]), "transfer_rules is empty. Give at least one"),
        (lambda: compose({"batch": "mup"}), "the transfer rule 'mup' is not for batch. It is for width"),
        (lambda: compose({"batch": "keep-rotation"}), "'keep-rotation' is for a change as a whole"),
        (lambda: compose({"heads": "mup"}), "unknown axis 'heads'"),
        (lambda: compose({"batch": "tau", "tokens": "hyperp"}), "rules tau, hyperp are for different optimizers"),
        (lambda: check_family(BY_NAME["linear"], TUNED), "'linear' is for SGD with momentum, not for AdamW"),
    ],
)
def test_bad_input_gets_one_sentence(call, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()


def test_a_change_that_no_source_has_tried_is_named():
    assert transfer(TUNED, base=Scale(1, 1e4), to=Scale(1, 64e4)).beyond == ("tokens",)


def test_the_axes_together_give_the_whole_rotation():
    to = Scale(2e6, 200e9, width=2048, depth=24)
    for tuned in (TUNED, Hyperball(0.01, momentum=0.9), SGDM(0.1, 5e-4, momentum=0.9)):
        moved = transfer(tuned, base=BASE, to=to)
        for each in moved.rows:
            # The learning rate of marin-adamh has a limit, which belongs to no axis.
            if each.name != "marin-adamh":
                together = np.prod(list(each.decay_by_axis.values())) ** 0.5
                assert each.rotation / moved.tuned.rotation == pytest.approx(together, rel=0.02), each.name


def test_a_rule_whose_step_would_remove_the_weight_gives_no_settings_and_says_so():
    moved = transfer(AdamW(0.5, 0.5), base=Scale(1, 100), to=Scale(32, 100))
    assert (row(moved, "tau").lr, row(moved, "tau").note) == (None, "a step would remove the whole weight")
    assert [each.name for each in moved.recommended] == ["copy"]


def test_learning_rate_and_weight_decay_change_at_once():
    """Beside the old weight decay, the new learning rate of 250,000 would remove the whole weight."""
    opposite = TransferRule("opposite", {"batch": 1.0}, {"batch": -1.0}, "a notebook")
    (moved,) = transfer(AdamW(0.5, 1e-4), base=Scale(1, 1e6), to=Scale(5e5, 1e6), transfer_rules=[opposite]).rows
    assert moved.lr == pytest.approx(2.5e5)


def test_rules_of_ones_own_have_no_trial_and_the_first_with_settings_is_the_answer():
    rules = [BY_NAME["linear"], TransferRule("mine", {"batch": 0.4}, {}, "my notebook"), BY_NAME["copy"]]
    moved = transfer(TUNED, base=BASE, to=Scale(1e6, 10e9, width=768, depth=12), transfer_rules=rules)
    assert [each.name for each in moved.recommended] == ["mine"]
    assert not moved.decided
