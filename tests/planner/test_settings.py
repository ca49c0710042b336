"""A plan from settings: extreme numbers get an answer or a refusal, within seconds and without a warning."""

import random
import re
import time
from contextlib import suppress
from dataclasses import fields

import pytest

from gyroscope.planner import plan_settings, read_settings
from gyroscope.planner.rule_settings import RULES

NUMBERS = [0.0, 1e-320, 1e-200, 1e-8, 5e-4, 1e-3, 0.1, 0.5, 0.999999, 1.0, 3.0, 10.0, 1e3, 1e8, 1e200, 1e308]
PAIRS = [(0.9, 0.999), (0.9, 0.5), (0.0, 0.0), (0.999999, 0.9999999), (0.9, 0.0), (0.5, 0.99)]
NAMES = (
    "adamw",
    "sgdm",
    "lion",
    "nadam",
    "adam_l2",
    "nadam_l2",
    "adam_s",
    "adam_srt",
    "sgd_mrt",
    "muon",
    "adafactor",
    "hyperball",
)
CHOICES = {
    "lr": NUMBERS,
    "weight_decay": NUMBERS,
    "betas": PAIRS,
    "momentum": [0.0, 0.5, 0.9, 0.999999],
    "nesterov": [True, False],
    "corrected_decay": [True, False],
    "fan_in": NUMBERS,
    "unit_grad_norm": NUMBERS,
    "init_norm": NUMBERS,
    "shape": [(64, 32), (1, 1), (3, 100_000)],
    "steps": [1, 2, 50, 300],
    "schedule": ["constant", "linear", "cosine", "inverse_sqrt"],
    "warmup": [0, 1],
    "batch_size": NUMBERS,
    "dataset_size": NUMBERS,
}


def arbitrary(seed):
    """Settings that exist, with any numbers."""
    rng = random.Random(seed)
    rule = rng.choice(NAMES)
    own = {field.name for field in fields(RULES[rule])}
    foreign = {"lr", "weight_decay", "betas", "momentum", "nesterov", "corrected_decay"} - own
    chosen = {name: rng.choice(values) for name, values in CHOICES.items() if rng.random() < 0.4}
    settings = {name: value for name, value in chosen.items() if name not in foreign}
    return {"optimizer": rule, "steps": 100} | settings


def test_a_run_that_would_take_minutes_to_follow_is_refused_at_once():
    with pytest.raises(ValueError, match="steps=100000000 is too long to compute step by step"):
        read_settings({"optimizer": "adamw", "fan_in": 256, "steps": 100_000_000})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", range(4))
def test_no_numbers_warn_or_raise_anything_but_a_sentence(part):
    answered = 0
    for seed in range(100 * part, 100 * (part + 1)):
        settings = arbitrary(seed)
        start = time.process_time()
        with suppress(ValueError):  # a refusal in a sentence; an OverflowError, a warning or any other is none
            plan = plan_settings(read_settings(settings))
            text = str(plan) + plan.json()
            answered += 1
            assert not re.search(r"\b(nan|NaN|inf|Infinity)\b", text), settings
        assert time.process_time() - start < 10, settings
    assert answered > 20


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgdm", "momentum": 0.999999, "unit_grad_norm": 0.3},
        {"optimizer": "adamw", "betas": (0.999999, 0.9999999), "fan_in": 64, "schedule": "cosine"},
        {"optimizer": "lion", "betas": (0.999999, 0.9999999), "fan_in": 64, "schedule": "cosine"},
        {"optimizer": "muon", "momentum": 0.999999, "shape": (64, 64)},
    ],
    ids=lambda settings: settings["optimizer"],
)
def test_a_momentum_next_to_one_is_answered_in_seconds(settings):
    start = time.process_time()
    plan = plan_settings(read_settings(settings))
    assert plan.findings.summary
    assert str(plan)
    assert time.process_time() - start < 15


def test_a_layer_without_an_input_is_named_with_the_flag_that_gives_it():
    plan = plan_settings(read_settings({"optimizer": "adam_l2", "fan_in": 64}))
    assert plan.layers == {}
    assert plan.findings.kinds == ("missing_input",)
    assert "it needs --unit-grad-norm (the RMS norm of the gradient times the weight norm)" in plan.findings[0].sentence


@pytest.mark.parametrize(
    ("settings", "kind", "changes"),
    [
        ({"lr": 0.5, "weight_decay": 0.5, "init_norm": 3.0}, "fast_rotation", {"lr": "×0.3"}),
        ({"lr": 1e-2, "weight_decay": 0.5, "init_norm": 0.1}, "over_rotation", {"warmup": 50}),
        ({"lr": 3e-2, "weight_decay": 0.1, "init_norm": 0.6}, "over_rotation", {"warmup": 20}),
        ({"betas": (0.9, 0.5)}, "unstable_betas", {"betas": (0.9, 0.99)}),
    ],
)
def test_each_judgement_has_settings_that_bring_it_about(settings, kind, changes):
    plan = plan_settings(read_settings({"optimizer": "adamw", "fan_in": 256} | settings))
    found = [finding for finding in plan.findings if finding.kind == kind]
    assert len(found) == 1, str(plan.findings)
    assert found[0].severity == "warn", str(plan.findings)
    assert found[0].layers == ("weight",)
    assert plan.findings.changes == changes


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"weight_decay": 0.0}, "has no equilibrium because it has no weight decay"),
        ({"lr": 1e-2, "weight_decay": 0.1, "init_norm": 30.0, "steps": 1001}, "is not in equilibrium"),
        ({"lr": 1e-2, "weight_decay": 0.1, "init_norm": 30.0, "steps": 900}, "is too short for equilibrium"),
        ({"lr": 1e-2, "weight_decay": 0.5, "schedule": "cosine", "steps": 2000}, "and falls out of it at the end"),
        ({"lr": 1e-2, "weight_decay": 0.5, "steps": 2000}, "reaches equilibrium in its first step"),
    ],
)
def test_each_state_has_settings_that_bring_it_about(settings, state):
    plan = plan_settings(read_settings({"optimizer": "adamw", "fan_in": 256, "init_norm": 1.6} | settings))
    assert state in plan.findings.summary[-1]


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"weight_decay": 0.0}, "The run has no equilibrium because it has no weight decay."),
        ({"lr": 1e-2, "weight_decay": 0.1, "init_norm": 30.0, "steps": 1001}, "The run is not in equilibrium (run"),
        ({"lr": 1e-2, "weight_decay": 0.1, "init_norm": 30.0, "steps": 900}, "The run is too short for equilibrium"),
        ({"lr": 1e-2, "weight_decay": 0.5, "schedule": "cosine", "steps": 2000}, "falls out of it at the end"),
        ({"lr": 1e-2, "weight_decay": 0.5, "steps": 2000}, "The run reaches equilibrium after 29 % of its steps (run"),
    ],
)
def test_each_state_of_a_run_has_settings_that_bring_it_about(settings, state):
    plan = plan_settings(read_settings({"optimizer": "adamw", "fan_in": 256} | settings))
    assert state in plan.findings.summary[-1]


def test_layers_far_apart_are_an_imbalance():
    layers = [{"name": "slow", "init_norm": 30.0}, {"name": "fast", "init_norm": 1.0}]
    plan = plan_settings(read_settings({"fan_in": 256, "steps": 200, "layer": layers}))
    finding = next(finding for finding in plan.findings if finding.kind == "layer_imbalance")
    assert finding.layers == ("fast", "slow")
    assert (finding.severity, finding.remedy) == ("note", "")


def test_every_optimizer_of_a_plan_is_drawn():
    assert {*NAMES, "k_adam"} == set(RULES)  # one more name would draw other settings for the recorded findings
