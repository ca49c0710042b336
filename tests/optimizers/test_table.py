"""The table of optimizers against torch's classes, and against the formulas of every room that reads it."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from gyroscope_lab.simulate.updates import STEPS

from gyroscope.checkpoint.files.saved_optimizers import optimizer_name
from gyroscope.checkpoint.last_step.last_update import LAST_UPDATES
from gyroscope.optimizers import COMMANDS, SPECS

ROOT = Path(__file__).parent.parent.parent
FORMULAS = {spec.formula for spec in SPECS}
# Why a room has no formula for an optimizer.
NO_LAST_UPDATE = {
    "adafactor": "its second moment is kept in rows and columns",
    "adagrad": "it keeps no direction",
    "adadelta": "it keeps no direction",
    "asgd": "it keeps no direction",
    "rotational": "its inner optimizer's formula is turned",
    **dict.fromkeys(
        ("nadam", "radam", "adamax", "rmsprop", "adam_s", "adam_srt", "sgd_mrt", "spherical_adam", "k_adam"),
        "too rare in checkpoints",
    ),
}
NO_SIMULATION = {
    "radam": "predicted as Adam",
    "muon": "needs whole matrices",
    "adafactor": "needs whole matrices",
    "adamax": "has no rule",
    "rmsprop": "has no rule",
    "adagrad": "has no rule",
    "adadelta": "has no rule",
    "asgd": "has no rule",
    "rotational": "keeps norms",
    "spherical_adam": "has no rule",
    "k_adam": "is simulated by its optimizer",
}


@pytest.mark.parametrize(
    ("formulas", "absent"),
    [(LAST_UPDATES, NO_LAST_UPDATE), (STEPS, NO_SIMULATION)],
    ids=["last update", "simulation"],
)
def test_every_room_has_a_formula_for_every_optimizer_or_a_reason_why_not(formulas, absent):
    assert set(formulas) | set(absent) == FORMULAS
    assert not set(formulas) & set(absent)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_record_names_an_optimizer_that_exists_and_its_own_class(spec):
    if spec.name == "Muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    cls = spec.load()
    assert issubclass(cls, torch.optim.Optimizer)
    assert cls.__name__ == spec.name
    taken = inspect.signature(cls).parameters
    assert {*spec.typical, *spec.needed} <= set(taken)
    assert spec.decay_switch is None or spec.decay_switch in taken


def made(spec):
    """An optimizer of the record, after a step of one matrix."""
    weight = torch.nn.Parameter(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    settings = {"lr": 1e-2, **spec.typical}
    if "weight_decay" in inspect.signature(spec.load()).parameters:
        settings["weight_decay"] = 0.1
    if "momentum" in inspect.signature(spec.load()).parameters:
        settings["momentum"] = 0.9
    if spec.wraps:
        optimizer = spec.load()(torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1))
    else:
        optimizer = spec.load()([weight], **settings)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


INSTALLED = [spec for spec in SPECS if spec.name != "Muon" or hasattr(torch.optim, "Muon")]


@pytest.mark.parametrize("spec", INSTALLED, ids=lambda spec: spec.name)
def test_state_keys_are_those_that_the_optimizer_keeps(spec):
    (state,) = made(spec).state.values()
    kept = set(state) | {"max_exp_avg_sq"}  # only with amsgrad
    assert {*spec.momentum, *spec.second_moment} <= kept
    others = {"exp_avg", "momentum_buffer", "exp_avg_sq", "square_avg"} - {*spec.momentum, *spec.second_moment}
    if not spec.wraps:
        assert not others & set(state)


@pytest.mark.parametrize("spec", [spec for spec in INSTALLED if spec.signs], ids=lambda spec: spec.name)
def test_a_saved_state_shows_its_optimizer(spec):
    saved = made(spec).state_dict()
    group = saved["param_groups"][0]
    if spec.name in ("AdamS", "AdamSRT"):
        with pytest.raises(ValueError, match=r"AdamS .*or AdamSRT .*optimizer='adam-s' or 'adam-srt'"):
            optimizer_name(group, set(saved["state"][0]), None)
        return
    # torch's AdamW is its Adam with an option.
    expected = "Adam" if spec.name == "AdamW" else spec.name
    assert optimizer_name(group, set(saved["state"][0]), None) == expected


def test_names_are_unique():
    names = [spec.name for spec in SPECS]
    assert len(set(names)) == len(names)
    commands = [spec.command for spec in SPECS if spec.command]
    assert list(COMMANDS) == commands


def test_an_optimizer_is_named_only_by_its_class_its_rule_its_record_and_its_exports():
    """No other file lists optimizers by name: adding one is a record and its formulas."""
    package = ROOT / "gyroscope"
    named = [path for path in package.rglob("*.py") if re.search(r"\bKAdam\b", path.read_text(encoding="utf-8"))]
    allowed = ("optim/k_adam.py", "optim/__init__.py", "optimizers/table.py", "optimizers/group_rules.py")
    theory = ("theory/rules/k_adam.py", "theory/__init__.py")
    assert {str(path.relative_to(package)) for path in named} <= {*allowed, *theory}
