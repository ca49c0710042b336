"""Every remedy that can be printed was tried on real training, and did no harm there."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import gyroscope
from gyroscope.advice import diagnose, remedies
from gyroscope.advice.findings import Finding, Findings, Remedy
from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.advice.remedies import TRIALS
from gyroscope.planner.settings import plan_settings, read_settings
from gyroscope.theory import AdamL2
from tests.advice.memory import record
from tests.advice.test_diagnose import only
from tests.planner.test_plan import small

PACKAGE = Path(gyroscope.__file__).parent
RESULTS = PACKAGE.parent / "results" / "advice.md"
MADE = [
    *(value for value in vars(remedies).values() if isinstance(value, Remedy)),
    remedies.slower_start(0, [30]),
    remedies.balance_layers(LayerFacts("a", AdamL2(1e-3, 0.1))),
    remedies.stable_betas(0.9),
]


def test_every_trial_belongs_to_a_remedy_and_every_remedy_to_a_trial():
    assert {remedy.trial for remedy in MADE if remedy.trial} == {
        *TRIALS,
        remedies.ROTATIONAL_RECIPE,
    }


def test_every_trial_is_an_experiment_of_the_lab():
    from gyroscope_lab.framework.catalogue import catalogue

    implemented = {entry.id for entry in catalogue().values() if entry.implemented}
    assert {f"remedies/{trial}" for trial in TRIALS} | {remedies.ROTATIONAL_RECIPE} <= implemented
    assert (RESULTS.parent / f"{remedies.ROTATIONAL_RECIPE}.json").is_file()


@pytest.mark.parametrize("remedy", MADE, ids=lambda remedy: remedy.text[:30])
def test_a_remedy_changes_settings_of_a_training_if_and_only_if_a_trial_tested_it(remedy):
    from gyroscope_lab.training.config import TrainConfig

    assert bool(remedy.changes) == bool(remedy.trial)
    assert set(remedy.changes) <= {field.name for field in fields(TrainConfig)}


def test_what_a_remedy_changes_cannot_be_written():
    with pytest.raises(TypeError):
        remedies.LOWER_RATE.changes["lr"] = "×0.1"


def test_a_diagnosis_gives_the_changes_of_its_findings_and_the_first_one_counts():
    found = [
        Finding("fast_rotation", "warn", "b.", "…", changes={"lr": "×0.5"}),
        Finding("diverged", "bad", "a.", "…", changes={"lr": "×0.3"}),
        Finding("unstable_betas", "warn", "c.", "…", changes={"betas": (0.9, 0.99)}),
    ]
    assert Findings(found).changes == {"lr": "×0.3", "betas": (0.9, 0.99)}
    assert Findings([]).changes == {}


@pytest.mark.parametrize("trial", TRIALS)
def test_every_trial_was_run_and_its_remedy_did_no_harm(trial):
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RESULTS.read_text(encoding="utf-8"), re.M | re.S))
    rows = [line for line in sections[trial].splitlines() if line.startswith("| ") and not line.startswith("| task")]
    assert len(rows) >= 3
    assert not any("harms" in row for row in rows), sections[trial]


def with_neurons_at_two_speeds(rule):
    run = record(rule=rule)
    run.data["a"]["angular_update"] *= np.where(np.arange(32) < 8, 6.0, 1.0)
    return run


@pytest.mark.parametrize(
    ("run", "kind", "trial"),
    [
        (with_neurons_at_two_speeds(AdamL2(1e-2, 1e-2)), "neuron_imbalance", ""),
        (record(non_finite=np.where(np.arange(100) == 70, 1.0, 0.0)), "diverged", ""),
        (record(non_finite=np.where(np.arange(100) < 70, 0.0, 1.0)), "diverged", "divergence"),
    ],
)
def test_a_remedy_belongs_to_what_was_tested(run, kind, trial):
    """Not: "decouple the weight decay" for neurons, nor "lower the learning rate" for a run that recovered."""
    found = only(diagnose(run), kind)
    assert found.trial == trial
    assert ("Lower" in found.remedy or "lower" in found.remedy) == (trial == "divergence")
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
    ("has", "needed", "trial"),
    [(0, [30], "warmup"), (100, [30], ""), (2000, [60_000], ""), (0, [30, None], ""), (0, [], "")],
)
def test_a_warmup_is_named_only_where_it_can_help(has, needed, trial):
    """Not: "use a warmup of about 26 steps (now 100)", nor "of about 60,000 steps (now 2,000)"."""
    assert remedies.slower_start(has, needed).trial == trial


def test_a_finding_of_a_plan_carries_the_name_of_its_trial():
    asked = {"optimizer": "AdamW", "lr": 1e-2, "weight_decay": 0.5, "fan_in": 64, "init_norm": 0.78, "steps": 2000}
    found = next(f for f in plan_settings(read_settings(asked)).findings if f.kind == "over_rotation")
    assert found.remedy.startswith("Use a warmup of about")
    assert found.trial == "warmup"
