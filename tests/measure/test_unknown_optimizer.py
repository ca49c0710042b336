"""An optimizer without a rule is measured, and the run says once what is missing."""

import warnings

import numpy as np
import torch
from torch import nn

import gyroscope as gyro


class Signs(torch.optim.AdamW):
    """A subclass of a known optimizer with a step of its own."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * p.grad.sign())


def tracked(path, rules=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias]}]
    optimizer = Signs(groups, lr=1e-3, weight_decay=0.5)
    with gyro.Tracker(model, optimizer, path, every=1, rules=rules):
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
    return gyro.store.open_run(path), optimizer


def test_everything_is_measured_and_nothing_predicted_by_the_ancestor(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run, _ = tracked(tmp_path / "run")
    for quantity in ("angular_update", "norm"):
        assert np.isfinite(run.series("0.weight", quantity)).all()
    for quantity in ("predicted_angular_update", "predicted_norm", "forecast_angular_update"):
        assert not np.isfinite(run.series("0.weight", quantity)).any()
    assert "rule" not in run.config["groups"][0]


def test_the_run_says_once_what_rule_of_answers(tmp_path):
    run, optimizer = tracked(tmp_path / "run")
    answer = ""
    try:
        gyro.rule_of(optimizer.param_groups[0], optimizer)
    except ValueError as error:
        answer = str(error)
    assert "rules={Signs: lambda group: AdamW(" in answer
    assert [note for note in run.notes if answer in note] == [f"No predictions for parameter group 0: {answer}"]
    (finding,) = [finding for finding in run.diagnose() if answer in finding.sentence]
    assert set(finding.layers) == {"0.weight", "2.weight"}


def test_a_declared_rule_predicts_it(tmp_path):
    declared = {Signs: lambda group: gyro.theory.Lion(group["lr"], group["weight_decay"], (0.0, 0.0))}
    run, _ = tracked(tmp_path / "run", declared)
    assert np.isfinite(run.series("0.weight", "predicted_angular_update")).all()
