"""A report on a run and an autopsy of its last step give one answer: one remedy, one state, one word on the balance."""

from types import SimpleNamespace

import pytest
import torch

import gyroscope as gyro
from tests.advice.test_runs import HIDDEN, Branches, Training, adamw, network, warmup

STATES = (
    "is in equilibrium",
    "reaches equilibrium",
    "is not in equilibrium",
    "is too short for equilibrium",
    "has no weight decay",
    "The optimizer sets the rotation",
)


def equilibrium():
    model = network()
    optimizer = adamw(model)
    gyro.optim.to_equilibrium_(model, optimizer)
    return model, optimizer, 400


def short():
    model = network()
    return model, adamw(model, 0.01), 200


def far_from_equilibrium():
    model = network()
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.weight *= 4
    return model, adamw(model), 260


def rotational():
    model = network()
    return model, gyro.optim.RotationalAdamW(gyro.param_groups(model, weight_decay=0.5), lr=1e-2), 200


def unbalanced():
    torch.manual_seed(0)
    model = Branches()
    return model, torch.optim.Adam(gyro.param_groups(model, weight_decay=1e-2), lr=1e-2), 400


def state_of(summary):
    """The state that a summary names. A run also has the step at which it was reached."""
    (named,) = [state for state in STATES if state in summary[-1]]
    return named.replace("reaches equilibrium", "is in equilibrium")


@pytest.mark.parametrize("made", [equilibrium, short, far_from_equilibrium, rotational, unbalanced])
def test_a_report_and_an_autopsy_of_the_same_training_do_not_contradict_each_other(made, tmp_path):
    model, optimizer, steps = made()
    training = Training(tmp_path / "run", model, optimizer, warmup, layers=None if made is unbalanced else HIDDEN)
    training.go(steps - 1)
    # The checkpoint of a training loop comes before the scheduler's step.
    training.scheduler = SimpleNamespace(step=int)
    training.go(1)
    report = training.diagnose()
    saved = gyro.autopsy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}).findings
    assert saved.summary[0] == report.summary[0]
    assert state_of(saved.summary) == state_of(report.summary)
    assert saved.changes == report.changes
    assert ("layer_imbalance" in saved.kinds) == ("layer_imbalance" in report.kinds)
