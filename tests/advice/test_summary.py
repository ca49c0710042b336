"""The first sentences of plans, runs and checkpoints: what it means, and what to change."""

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.advice import Diagnosis, Finding, diagnose
from gyroscope.advice import thresholds as limit
from gyroscope.advice.checkpoint_findings import checkpoint_findings
from gyroscope.advice.remedies import SHORT_RUN
from gyroscope.checkpoint.checkpoint_layer import CheckpointLayer
from gyroscope.planner import plan_settings, read_settings
from gyroscope.theory import SGDM, AdamW
from tests.advice.memory import Memory, record

BLOCKS = [f"transformer.h.{block}.{kind}.weight" for block in range(12) for kind in ("attn", "mlp")]


def test_the_summary_is_printed_first_and_then_a_blank_line():
    diagnosis = Diagnosis([Finding("well", "good", "All is well.")], ("Nothing to change.",))
    assert str(diagnosis) == "Nothing to change.\n\n✓ All is well."
    assert str(Diagnosis(diagnosis)) == "✓ All is well."
    assert Diagnosis(diagnosis).summary == ()


def test_a_run_in_equilibrium_says_so_with_its_length():
    assert diagnose(record(BLOCKS)).summary == (
        "Your run reaches equilibrium in its first step.",
        "Weight decay can matter in this run. "
        "Its length is 5 memories (a memory is 200 steps at the peak learning rate).",
        "All 24 layers rotate alike.",
        "Nothing to change.",
    )


def test_a_run_that_settles_late_says_after_which_share_of_its_steps():
    run = record(norm=np.where(np.arange(100) < 12, 2.0, 1.0))
    assert diagnose(run).summary[0] == "Your run reaches equilibrium after 12 % of its steps."


@pytest.mark.parametrize(
    ("decay", "effect", "trial"), [(0.02, "has almost no effect", SHORT_RUN), (0.1, "has little effect", SHORT_RUN)]
)
def test_a_short_run_begins_with_the_effect_of_weight_decay(decay, effect, trial):
    diagnosis = diagnose(record(rule=AdamW(1e-3, decay), norm=0.4))
    assert diagnosis.summary[0].startswith(f"Weight decay {effect} in this run. Its length is 0.")
    assert diagnosis.summary[1] == "Your run is too short to reach equilibrium."
    found = next(finding for finding in diagnosis if finding.kind == "short_memory")
    assert (found.trial, f"Weight decay {effect}" in found.sentence) == (trial, True)


def test_a_run_that_goes_on_is_too_short_only_so_far():
    run = record(rule=AdamW(1e-3, 0.1), norm=0.4)
    run.status = "running"
    assert diagnose(run).summary[1] == "So far your run is too short to reach equilibrium."


def test_a_memory_is_that_of_the_peak_learning_rate_and_the_length_of_the_schedule():
    """One number for one word, in the summary and in the findings, also under a schedule."""
    run = record(rule=AdamW(1e-3, 0.1), steps=2000, lr=lambda t: 1e-3 * (1 - t / 2000), norm=0.5)
    diagnosis = diagnose(run)
    assert "Its length is 0.1 memories (a memory is 10,000 steps at the peak" in diagnosis.summary[0]
    assert "Run length: 0.1 memories of 10,000 steps" in str(diagnosis)


def test_thresholds_of_the_run_length_leave_no_gap():
    words = []
    for length in (0.9 * limit.MIN_DECAY_EFFECT, 1.1 * limit.MIN_DECAY_EFFECT, 0.9, 1.1, 2.9, 3.1):
        diagnosis = diagnose(record(rule=AdamW(1e-3, length), norm=1.5))
        words.append(next(text for text in diagnosis.summary if text.startswith("Weight decay")).split(" in ")[0])
    assert words == [
        "Weight decay has almost no effect",
        *["Weight decay has little effect"] * 2,
        *["Weight decay can matter"] * 3,
    ]


def test_layers_out_of_balance_are_named_with_the_remedy_if_one_was_tried():
    mixed = record()
    mixed.data["b"]["angular_update"] /= 3
    assert diagnose(mixed).summary[-2:] == (
        "Layers are not balanced: a rotates 3 times as fast as b.",
        "No tested remedy is known.",
    )
    fast = diagnose(record(rule=AdamW(0.5, 0.5)))
    assert fast.summary[-1] == "What to do: Lower the learning rate."


def test_a_rotational_optimizer_is_in_equilibrium_by_itself():
    run = record(rule=AdamW(1e-3, 0.02))
    run.config["groups"][0]["optimizer"] = "RotationalAdamW"
    summary = diagnose(run).summary
    assert summary[0].startswith("Your run is in equilibrium from the first step")
    assert summary[1].startswith("Weight decay matters in this run because it sets the rotation.")


def test_hyperball_has_no_weight_decay_that_could_matter():
    plan = plan_settings(read_settings({"optimizer": "hyperball", "lr": 0.02, "momentum": 0.95, "steps": 400}))
    text = " ".join(str(plan).split())
    assert "Weight decay has no effect in this run because the learning rate alone sets the rotation." in text


def test_beside_hyperball_weight_decay_is_judged_by_the_other_layers_alone():
    hidden, head = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    adamh = gyro.optim.Rotational(torch.optim.AdamW(hidden.parameters(), lr=0.1), mode="hyperball")
    adamw = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.1)
    planned = gyro.plan(torch.nn.ModuleDict({"hidden": hidden, "head": head}), [adamh, adamw], steps=200)
    assert planned.findings.summary[:2] == (
        "The optimizer sets the rotation of 1 of 2 layers, so they are in equilibrium from the first step. No other "
        "layer reaches it.",
        "Weight decay has almost no effect in this run. Its length is 0.02 memories (a memory is 10,000 steps at the "
        "peak learning rate).",
    )


def test_what_cannot_be_told_is_said():
    assert diagnose(Memory(np.arange(100))).summary[0].startswith("Cannot tell yet")
    unpredicted = record(predicted_angular_update=np.full(100, np.nan), predicted_norm=np.full(100, np.nan))
    assert diagnose(unpredicted).summary == (
        "All 3 layers have no prediction: the theory does not cover the optimizer.",
        "Until then it is unknown whether the run reaches equilibrium.",
    )


def test_a_diverged_run_begins_with_that():
    diagnosis = diagnose(record(non_finite=np.where(np.arange(100) < 70, 0.0, 1.0)))
    assert diagnosis.summary[0].startswith("The run diverged: at step 700")
    assert diagnosis.summary[1].startswith("Go back to a checkpoint")


def test_a_plan_begins_with_a_summary():
    asked = {"optimizer": "adamw", "fan_in": 256, "lr": 1e-3, "weight_decay": 0.1, "steps": 200}
    summary = plan_settings(read_settings(asked)).findings.summary
    assert summary[0] == (
        "Weight decay has almost no effect in this run. Its length is 0.02 memories (a memory is 10,000 steps at the "
        "peak learning rate)."
    )
    assert summary[-1] == "Nothing to change."


@pytest.mark.parametrize("peak", [1e-2, float("nan")])
def test_a_checkpoint_is_short_only_at_a_known_peak_rate(peak):
    """After a decay to zero the last rate would call any run short."""
    layer = CheckpointLayer(
        "a", (8, 64), 0, "neuron", 8, 64, AdamW(1e-2, 0.5), norm=2.0, predicted_norm=1.0, timescale=1e6, peak_lr=peak
    )
    summary = checkpoint_findings([layer], step=1000).summary
    assert summary[0].startswith("Weight decay has almost no effect" if peak > 0 else "Cannot tell whether")


@pytest.mark.parametrize("rule", [AdamW(1e-2, 0.5), AdamW(1e-3, 0.0), SGDM(0.1, 1e-3, 0.9)])
def test_a_summary_has_two_to_four_statements(rule):
    for run in (record(rule=rule), record(rule=rule, norm=3.0, speed=0.3), record(["a"], rule=rule)):
        summary = diagnose(run).summary
        assert 2 <= len(summary) <= 4
        assert all(text.endswith(".") and ";" not in text for text in summary)
