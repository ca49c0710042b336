"""Every remedy that can be printed was tried on real training, and did no harm there."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import gyroscope
from gyroscope.advice import diagnose, remedies
from gyroscope.advice.findings import NOTHING, Finding, Findings, Remedy
from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.planner.settings import plan_settings, read_settings
from gyroscope.theory import AdamL2
from tests.advice.memory import record
from tests.advice.test_diagnose import only
from tests.planner.test_plan import small

PACKAGE = Path(gyroscope.__file__).parent
RESULTS = PACKAGE.parent / "results"
UNBALANCED = LayerFacts("a", AdamL2(1e-3, 0.1), memory=2000.0)
MADE = [
    *(value for value in vars(remedies).values() if isinstance(value, Remedy)),
    remedies.slower_start(0, [30]),
    remedies.balance_layers(UNBALANCED, [UNBALANCED]),
    remedies.stable_betas(0.9),
]


@pytest.mark.parametrize("trial", sorted({remedy.trial for remedy in MADE} - {""}))
def test_every_trial_has_a_record(trial):
    assert (RESULTS / f"{trial}.json").is_file()


@pytest.mark.parametrize("remedy", MADE, ids=lambda remedy: remedy.text[:30])
def test_a_remedy_changes_settings_of_a_training_if_and_only_if_a_trial_tested_it(remedy):
    from gyroscope_lab.training.config import TrainConfig

    assert bool(remedy.changes) == bool(remedy.trial)
    assert set(remedy.changes) <= {field.name for field in fields(TrainConfig)}


def test_what_a_remedy_changes_cannot_be_written():
    with pytest.raises(TypeError):
        remedies.LOWER_RATE.changes["lr"] = "×0.1"


def test_a_diagnosis_gives_the_changes_of_its_first_finding_that_has_any():
    """A user who follows the first sentence and judges again needs no other, and two could have one cause."""
    found = [
        Finding("fast_rotation", "warn", "b.", "…", changes={"lr": "×0.5"}),
        Finding("diverged", "bad", "a.", "…", changes={"lr": "×0.3"}),
        Finding("unstable_betas", "warn", "c.", "…", changes={"betas": (0.9, 0.99)}),
    ]
    assert Findings(found).changes == {"lr": "×0.3"}
    assert Findings([]).changes == {}


def test_adamw_is_named_with_the_weight_decay_that_forgets_as_fast():
    remedy = remedies.balance_layers(UNBALANCED, [UNBALANCED])
    assert remedy.changes == {"optimizer": "adamw", "weight_decay": 0.5}
    assert remedy.text == "Decouple the weight decay: AdamW with a weight decay of 0.5 forgets as fast."
    unknown = LayerFacts("a", AdamL2(1e-3, 0.1))
    assert remedies.balance_layers(unknown, [unknown]) == NOTHING


def with_neurons_at_two_speeds(rule):
    run = record(rule=rule)
    run.data["a"]["angular_update"] *= np.where(np.arange(32) < 8, 6.0, 1.0)
    return run


@pytest.mark.parametrize(
    ("run", "kind", "trial"),
    [
        (with_neurons_at_two_speeds(AdamL2(1e-2, 1e-2)), "neuron_imbalance", ""),
        (record(non_finite=np.where(np.arange(100) == 70, 1.0, 0.0)), "diverged", ""),
        (record(non_finite=np.where(np.arange(100) < 70, 0.0, 1.0)), "diverged", "remedies/divergence"),
    ],
)
def test_a_remedy_belongs_to_what_was_tested(run, kind, trial):
    """Not: "decouple the weight decay" for neurons, nor "lower the learning rate" for a run that recovered."""
    found = only(diagnose(run), kind)
    assert found.trial == trial
    assert ("Lower" in found.remedy or "lower" in found.remedy) == (trial == "remedies/divergence")
    assert found.severity == ("bad" if kind == "diverged" else "note")


def test_the_recipe_of_rotational_adamw_is_not_given_to_rotational_lion():
    model = small()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.1
    optimizer = gyroscope.optim.RotationalLion(gyroscope.param_groups(model, weight_decay=0.1), lr=1e-2)
    assert gyroscope.plan(model, optimizer, steps=200).findings.changes == {}


def test_no_finding_writes_a_remedy_of_its_own():
    """Advice is in one file: where a finding is made, its remedy comes from there."""
    for path in (PACKAGE / "advice").rglob("*.py"):
        if path.name != "remedies.py":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"remedy\s*=\s*f?[\"']", text), path
            assert "to_equilibrium_(" not in text, path


@pytest.mark.parametrize(
    ("has", "needed", "changes"),
    [
        (0, [20, 50], {"warmup": 50}),
        (20, [50], {"warmup": 50}),
        (50, [50], {"lr": "×0.3"}),
        (100, [20], {"lr": "×0.3"}),
    ],
)
def test_a_start_that_is_too_fast_asks_for_a_warmup_and_after_it_for_a_lower_rate(has, needed, changes):
    assert remedies.slower_start(has, needed).changes == changes


def test_a_plan_names_a_warmup_of_a_round_number_of_steps():
    asked = {"optimizer": "AdamW", "lr": 3e-2, "weight_decay": 0.1, "fan_in": 64, "init_norm": 0.6, "steps": 500}
    plan = plan_settings(read_settings(asked))
    found = next(f for f in plan.findings if f.kind == "over_rotation")
    assert found.sentence == "The first steps rotate weight by 0.38 rad, which is very fast (step 0)."
    assert found.remedy == "Warm up over 10 steps (now 0)."
    assert plan.findings.changes == {"warmup": 10}
    calm = plan_settings(read_settings({**asked, "warmup": 10}))
    assert calm.findings.changes == {}
    assert calm.predictions[0].forecast.angular_update.max() < 0.1
