"""The first sentences of plans, runs and checkpoints: what to change, why, and the state."""

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.advice import Finding, Findings, diagnose
from gyroscope.advice import thresholds as limit
from gyroscope.advice.checkpoint_findings import checkpoint_findings
from gyroscope.advice.summary import NO_CHANGE
from gyroscope.checkpoint.checkpoint_layer import CheckpointLayer
from gyroscope.planner import plan_settings, read_settings
from gyroscope.theory import SGDM, AdamW, Lion
from tests.advice.memory import Memory, record

BLOCKS = [f"transformer.h.{block}.{kind}.weight" for block in range(12) for kind in ("attn", "mlp")]


def test_the_summary_is_printed_first_and_then_a_blank_line():
    diagnosis = Findings([Finding("well", "good", "All is well.")], ("Look again.",))
    assert str(diagnosis) == "Look again.\n\n✓ All is well."
    assert str(Findings(diagnosis)) == "✓ All is well."
    assert Findings(diagnosis).summary == ()


def test_a_run_in_equilibrium_says_so_with_its_length():
    assert diagnose(record(BLOCKS)).summary == (
        "No finding asks for a change. The learning rate was not judged.",
        "All 24 layers rotate as predicted by the equilibrium, within 0.25 %: 0.023 rad per step.",
        "The run reaches equilibrium in its first step (run length: 5 memories of 200 steps).",
    )


def test_a_run_that_settles_late_says_after_which_share_of_its_steps():
    run = record(norm=np.where(np.arange(100) < 12, 2.0, 1.0))
    assert diagnose(run).summary[-1].startswith("The run reaches equilibrium after 12 % of its steps")


def test_one_layer_that_settles_late_is_an_exception_and_not_the_answer():
    """24 layers are in equilibrium from 5 % on, and a head from 69 % on."""
    run = record([*BLOCKS, "head.weight"], norm=np.where(np.arange(100) < 5, 2.0, 1.0))
    run.data["head.weight"]["norm"] = run.data["head.weight"]["predicted_norm"] * np.where(
        np.arange(100) < 69, 2.0, 1.0
    )
    assert diagnose(run).summary[-1] == (
        "The run reaches equilibrium after 5.1 % of its steps (run length: 5 memories of 200 steps), except head "
        "(after 70 % of its steps)."
    )


def test_a_family_in_another_state_is_an_exception():
    run = record([*BLOCKS, *(f"transformer.h.{block}.k.weight" for block in range(3))])
    for name in list(run.data)[-3:]:
        run.data[name]["norm"] = 1.5 * run.data[name]["norm"]
    assert diagnose(run).summary[-1].endswith("memories of 200 steps), except h.*.k (3) (off equilibrium).")


@pytest.mark.parametrize(("decay", "effect"), [(0.02, "almost no effect"), (0.1, "little effect")])
def test_a_short_run_says_what_weight_decay_does(decay, effect):
    state = diagnose(record(rule=AdamW(1e-3, decay), norm=0.4)).summary[-1]
    assert state.startswith("The run is too short for equilibrium (run length: 0.")
    assert state.endswith(f", so weight decay has {effect}.")


def test_a_run_that_goes_on_is_too_short_only_so_far():
    run = record(rule=AdamW(1e-3, 0.1), norm=0.4)
    run.status = "running"
    assert diagnose(run).summary[-1].startswith("So far the run is too short for equilibrium")


def test_a_memory_is_that_of_the_peak_learning_rate_and_the_length_of_the_schedule():
    run = record(rule=AdamW(1e-3, 0.1), steps=2000, lr=lambda t: 1e-3 * (1 - t / 2000), norm=0.5)
    assert "(run length: 0.1 memories of 10,000 steps)" in diagnose(run).summary[-1]


def test_thresholds_of_the_run_length_leave_no_gap():
    words = []
    for length in (0.9 * limit.MIN_DECAY_EFFECT, 1.1 * limit.MIN_DECAY_EFFECT, 0.9, 1.1, 2.9, 3.1):
        state = diagnose(record(rule=AdamW(1e-3, length), norm=1.5)).summary[-1]
        words.append(state.partition("so weight decay has ")[2])
    assert words == ["almost no effect.", "little effect.", "little effect.", "", "", ""]


def test_what_to_change_comes_first_then_why_then_the_state():
    fast = diagnose(record(rule=AdamW(0.5, 0.5)))
    assert fast.summary[0] == "Lower the learning rate, for example to 0.3 times."
    assert fast.summary[1].startswith("All 3 layers rotate by")
    assert fast.summary[2].startswith("The run reaches equilibrium")
    assert fast.changes == {"lr": "×0.3"}


def test_no_change_is_never_said_beside_a_finding_that_has_a_remedy():
    """A start that is too fast was a note with a warmup, below "Nothing to change."."""
    started_fast = record(speed=np.where(np.arange(100) < 1, 8.0, 1.0))
    unbalanced = record()
    unbalanced.data["b"]["angular_update"] /= 3
    for run in (started_fast, unbalanced, record(), record(norm=1.4), record(rule=AdamW(0.5, 0.5))):
        diagnosis = diagnose(run)
        assert (diagnosis.summary[0] == NO_CHANGE) == (not any(finding.remedy for finding in diagnosis))
    assert diagnose(started_fast).summary[0].startswith("Warm up over")
    assert set(diagnose(started_fast).changes) == {"warmup"}


def test_the_first_sentence_is_what_the_changes_do():
    """A dead network was told to check that its layers are used, beside a learning rate that is far too high."""
    start = np.where(np.arange(100) < 1, 8.0, 1.0)
    dead = diagnose(record(speed=start, dead_vectors=np.full(100, 32.0)))
    assert (dead.kinds[0], dead.changes) == ("dead_vectors", {"lr": "×0.3"})
    assert dead.summary[0] == "Lower the learning rate, for example to 0.3 times."
    looked_at = record(speed=start)
    for series in ("angular_update", "norm"):
        looked_at.data["b"][series] = looked_at.data["b"][series] * np.nan
    diagnosis = diagnose(looked_at)
    assert diagnosis.changes == {"warmup": 10}
    assert diagnosis.summary[0] == "Warm up over 10 steps (now 0)."


def test_a_rotational_optimizer_is_at_its_angle_by_itself():
    run = record(rule=AdamW(1e-3, 0.02))
    run.config["groups"][0]["optimizer"] = "RotationalAdamW"
    assert (
        diagnose(run).summary[-1].startswith("The optimizer sets the rotation, so nothing has to settle (run length:")
    )


def test_hyperball_has_no_weight_decay_that_could_matter():
    plan = plan_settings(read_settings({"optimizer": "hyperball", "lr": 0.02, "momentum": 0.95, "steps": 400}))
    text = " ".join(str(plan).split())
    assert "The optimizer sets the rotation, so nothing has to settle, and weight decay has no effect." in text


def test_beside_hyperball_weight_decay_is_judged_by_the_other_layers_alone():
    hidden, head = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    adamh = gyro.optim.Rotational(torch.optim.AdamW(hidden.parameters(), lr=0.1), mode="hyperball")
    adamw = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.1)
    planned = gyro.plan(torch.nn.ModuleDict({"hidden": hidden, "head": head}), [adamh, adamw], steps=200)
    assert planned.findings.summary[-1] == (
        "The optimizer sets the rotation, so nothing has to settle, and weight decay has no effect, except head "
        "(short)."
    )


def test_what_cannot_be_told_is_said():
    empty = diagnose(Memory(np.arange(100))).summary
    assert empty[0].startswith("Train on")
    assert empty[1].startswith("Too short to judge")
    unpredicted = record(predicted_angular_update=np.full(100, np.nan), predicted_norm=np.full(100, np.nan))
    assert diagnose(unpredicted).summary == (
        NO_CHANGE,
        "All 3 layers have no prediction: the theory does not cover the optimizer.",
        "It is unknown whether the run reaches equilibrium.",
    )


def test_a_diverged_run_begins_with_what_to_do():
    diagnosis = diagnose(record(non_finite=np.where(np.arange(100) < 70, 0.0, 1.0)))
    assert diagnosis.summary[0].startswith("Go back to a checkpoint")
    assert diagnosis.summary[1].startswith(
        "The run diverged: weights or gradients of all 3 layers are not finite from step"
    )
    assert len(diagnosis.summary) == 2
    assert diagnosis.changes == {"lr": "×0.3"}


def test_a_plan_begins_with_a_summary():
    asked = {"optimizer": "adamw", "fan_in": 256, "lr": 1e-3, "weight_decay": 0.1, "steps": 200}
    assert plan_settings(read_settings(asked)).findings.summary == (
        NO_CHANGE,
        "The run is too short for equilibrium (run length: 0.02 memories of 10,000 steps), so weight decay has almost "
        "no effect.",
    )


@pytest.mark.parametrize("peak", [1e-2, float("nan")])
def test_a_checkpoint_is_short_only_at_a_known_peak_rate(peak):
    """After a decay to zero the last rate would call any run short."""
    layer = CheckpointLayer(
        "a", (8, 64), 0, "neuron", 8, 64, AdamW(1e-2, 0.5), norm=2.0, predicted_norm=1.0, timescale=1e6, peak_lr=peak
    )
    summary = checkpoint_findings([layer.facts(1000)], lost={}).summary
    assert summary[-1].startswith("The run is too short" if peak > 0 else "It is unknown whether")


@pytest.mark.parametrize("rule", [AdamW(1e-2, 0.5), AdamW(1e-3, 0.0), SGDM(0.1, 1e-3, 0.9)])
def test_a_summary_has_at_most_three_statements(rule):
    for run in (record(rule=rule), record(rule=rule, norm=3.0, speed=0.3), record(["a"], rule=rule)):
        summary = diagnose(run).summary
        assert 2 <= len(summary) <= 3
        assert all(text.endswith(".") and ";" not in text for text in summary)


RULES = [AdamW(1e-2, 0.5), AdamW(3e-3, 0.1), AdamW(2e-3, 0.3, (0.9, 0.95)), SGDM(0.1, 1e-3, 0.9), Lion(1e-3, 0.5)]


@pytest.mark.slow
def test_a_thousand_stationary_runs_get_no_remedy():
    """Layers in equilibrium, with noise of steps and of layers, under constant and falling learning rates."""
    for number in range(1000):
        rng = np.random.default_rng(number)
        rule = RULES[number % len(RULES)]
        shared = np.exp(0.1 * rng.standard_normal(100))
        lr = (lambda at, rule=rule: rule.lr * (1 + np.cos(np.pi * at / 1000)) / 2) if number % 2 else None
        run = record(rule=rule, lr=lr)
        for name in run.data:
            noise = shared * np.exp(0.1 * rng.standard_normal((100, 1)).T)
            run.data[name]["angular_update"] = run.data[name]["angular_update"] * noise.T.reshape(100, 1)
            run.data[name]["norm"] = run.data[name]["norm"] * np.exp(0.02 * rng.standard_normal(100))
        assert diagnose(run).changes == {}, (number, str(diagnose(run)))
        assert not any(finding.remedy for finding in diagnose(run)), (number, str(diagnose(run)))
