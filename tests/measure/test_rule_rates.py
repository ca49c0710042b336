"""Rules whose learning rate is not the group's: rules per step, shares of the learning rate, and AdamG."""

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.theory import Rule

pytestmark = pytest.mark.slow

FAN_IN = 400
STEPS = 500
EVERY = 5


class Decoupled(torch.optim.Optimizer):
    """SGD with decoupled weight decay, as pytorch_optimizer's SGDW."""

    def __init__(self, params, lr, weight_decay, momentum):
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, {**options, "weight_decouple": True, "nesterov": False})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * buffer)


# As it is called there.
SGDW = type("SGDW", (Decoupled,), {"__module__": "pytorch_optimizer.optimizer.sgd"})


class Lion(torch.optim.Optimizer):
    """Lion whose decay is divided by the first learning rate, as lion-pytorch's."""

    __module__ = "lion_pytorch.lion_pytorch"

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": (0.9, 0.9)})
        self.decoupled_wd = True
        self._init_lr = lr

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"] / self._init_lr)
                p.sub_(group["lr"] * torch.lerp(p.grad, m, beta1).sign())
                m.lerp_(p.grad, 1 - beta2)


def per_step(group):
    return Rule(group["lr"] * group["weight_decay"], 19.0)


CASES = {
    "a rule of another library": (lambda p: SGDW(p, lr=0.1, weight_decay=0.2, momentum=0.9), None),
    "a rule of the user": (lambda p: Decoupled(p, lr=0.1, weight_decay=0.2, momentum=0.9), {Decoupled: per_step}),
    "dampening": (lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.02, momentum=0.9, dampening=0.5), None),
    "decay over the first learning rate": (lambda p: Lion(p, lr=8e-4, weight_decay=5e-3), None),
    "AdamG": (lambda p: gyro.optim.SphericalAdam(p, lr=0.1), None),
    "AdamG*": (lambda p: gyro.optim.SphericalAdam(p, lr=0.1, betas=(0.0, 0.9), v0=10.0), None),
}


def train(model, optimizer, schedule, generator):
    """Take steps on tangent noise of constant size, whatever the norm of the vectors."""
    for t in range(STEPS):
        w = model[0].weight.detach()
        g = torch.randn(w.shape, generator=generator)
        square = w.square().sum(1, keepdim=True)
        model[0].weight.grad = (g - (g * w).sum(1, keepdim=True) / square * w) / square.sqrt()
        for group in optimizer.param_groups:
            group["lr"] = schedule(t) * group.setdefault("peak", group["lr"])
        optimizer.step()


def run_of(case, path, schedule):
    make, rules = CASES[case]
    model = nn.Sequential(nn.Linear(FAN_IN, 16, bias=False))
    optimizer = make(model.parameters())
    with gyro.Tracker(model, optimizer, path, every=EVERY, rules=rules):
        train(model, optimizer, schedule, torch.Generator().manual_seed(0))
    return gyro.store.open_run(path), gyro.rule_of(optimizer.param_groups[0], optimizer, rules)


@pytest.mark.parametrize("case", CASES)
def test_the_tracker_predicts_the_rotation_that_it_measures(case, tmp_path):
    run, rule = run_of(case, tmp_path / "run", lambda t: 1.0)
    predicted = run.series("0.weight", "predicted_angular_update")
    expected = rule.equilibrium(unit_grad_norm=20.0).angular_update
    assert predicted == pytest.approx(np.full(len(predicted), expected), rel=1e-3)
    assert run.series("0.weight", "angular_update")[-40:].mean() == pytest.approx(predicted[-1], rel=0.02)
    assert "off_prediction" not in run.diagnose().kinds


@pytest.mark.parametrize("case", CASES)
def test_predictions_follow_a_warmup(case, tmp_path):
    run, rule = run_of(case, tmp_path / "run", lambda t: min(1.0, (t + 1) / 100))
    predicted = run.series("0.weight", "predicted_angular_update")
    early = np.flatnonzero(run.steps < 50)[-1]
    warmup = (run.steps[early] + 1) / 100
    assert predicted[early] / predicted[-1] == pytest.approx(warmup**rule.angle_exponent, rel=0.02)
    assert "off_prediction" not in run.diagnose().kinds


def test_a_plan_of_a_rule_without_the_size_of_updates_has_the_rotation_and_says_what_is_missing():
    model = nn.Sequential(nn.Linear(FAN_IN, 16, bias=False))
    plan = str(gyro.plan(model, SGDW(model.parameters(), lr=0.1, weight_decay=0.2, momentum=0.9), steps=100))
    assert (
        "0.weight has no forecast: Rule needs update_rms, the RMS norm of one vector's update. Pass it to the rule."
        in (" ".join(plan.split()))
    )
    assert "Cannot tell" not in plan
    assert "settles at  0.0461 rad per step in equilibrium" in plan
