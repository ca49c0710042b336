"""An optimizer of one's own: its rule, two runs, their table and their comparison.

    python examples/researcher.py [steps]

The optimizer moves weights by the sign of an average of gradients. That is Lion with one β, so Lion's rule predicts it.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro
from gyroscope.theory import Lion

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000


class SignMomentum(torch.optim.Optimizer):
    """Steps by the sign of an average of gradients, and decays weights."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 1.0, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]  # noqa: D102
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["beta"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * average.sign())


def rule(group: dict[str, Any]) -> Lion:
    """Return the theory of a parameter group."""
    return Lion(group["lr"], group["weight_decay"], (group["beta"], group["beta"]))


def train(name: str, **settings: float) -> str:
    """Train on labels that cannot be learnt, so that gradients stay noise, and return the path of the run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = SignMomentum(gyro.param_groups(model, weight_decay=5.0), **settings)
    with gyro.Tracker(model, optimizer, f"runs/{name}", every=5, rules={SignMomentum: rule}) as tracker:
        for _ in range(STEPS):
            loss = cross_entropy(model(torch.randn(64, 128)), torch.randint(10, (64,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.log(loss=loss)
    return str(tracker.path)


runs = [gyro.store.open_run(train(name, beta=beta)) for name, beta in (("short", 0.5), ("long", 0.9))]
for run in runs:
    late = slice(-len(run.steps) // 4, None)
    measured = run.series("0.weight", "angular_update")[late].mean()
    predicted = run.series("0.weight", "predicted_angular_update")[late].mean()
    print(f"{measured:.5f} rad per step measured, {predicted:.5f} predicted")  # noqa: T201
gyro.store.export(runs, "runs/both.csv")
print(runs[1].diagnose())  # noqa: T201
print("compare: gyroscope report runs/short runs/long; all numbers: runs/both.csv")  # noqa: T201
