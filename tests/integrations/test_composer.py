"""Composer's OptimizerMonitor gets rotation, prediction and norm of every weight from our optimizers.

Composer pins an older torch, and is not among the libraries of the gate. Where it can be imported its own monitor asks,
elsewhere a literal caller of its protocol.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.geometry import Split
from tests.optim.catalogue import CATALOGUE

# Variants of an optimizer are tested elsewhere.
ROWS = [row for row in CATALOGUE if "-" not in row.name]


class ProtocolMonitor:
    """The protocol: after the step, the first optimizer is asked for every parameter that has a gradient."""

    def __init__(self, batch_log_interval):
        self.interval = batch_log_interval

    def batch_end(self, state, logger):
        if state.timestamp.batch.value % self.interval != 0:
            return
        metrics = {}
        for name, parameter in state.model.named_parameters():
            if parameter.grad is not None and parameter.requires_grad:
                report = state.optimizers[0].report_per_parameter_metrics
                metrics.update(report(parameter, name, metrics))
        logger.log_metrics({name: float(value) for name, value in metrics.items()})


@pytest.fixture(scope="module")
def monitor():
    try:
        from composer.callbacks.optimizer_monitor import OptimizerMonitor
    except ImportError:
        return ProtocolMonitor
    return OptimizerMonitor


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 100), nn.LayerNorm(100), nn.Linear(100, 3))


def train(monitor, model, optimizer, steps, interval=1):
    """What was logged, and the weights before each step and after the last."""
    logged, weights = [], []
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        weights.append([p.detach().clone() for p in model.parameters()])
        optimizer.zero_grad()
        outputs = model(torch.randn(8, 6, generator=generator))
        # Gradients that are noise: a loss that falls would turn the weights less and less.
        (outputs * torch.randn(8, 3, generator=generator)).mean().backward()
        optimizer.step()
        batch = SimpleNamespace(value=step + 1)
        state = SimpleNamespace(
            model=model, optimizers=[optimizer], fsdp_enabled=False, timestamp=SimpleNamespace(batch=batch)
        )
        monitor.batch_end(state, SimpleNamespace(log_metrics=logged.append))
    return logged, [*weights, [p.detach().clone() for p in model.parameters()]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_monitor_logs_how_far_each_weight_turned_and_its_norm(monitor, row):
    model = network()
    optimizer = row.make(model.parameters())
    logged, weights = train(monitor(batch_log_interval=1), model, optimizer, steps=3)
    # Neurons, or whole matrices under AdamH.
    split = Split.of(optimizer.param_groups[0])
    assert not any(name.startswith("rotation/since_report") for name in logged[0]), "there is nothing before it"
    for step, numbers in list(enumerate(logged))[1:]:
        # The second layer's three rows are all measured: of the first layer's 100, every other.
        turned = split.angle(weights[step][4], weights[step + 1][4]).square().mean().sqrt()
        assert numbers["rotation/since_report/2.weight"] == pytest.approx(turned.item(), rel=1e-4)
        some = split.angle(weights[step][0], weights[step + 1][0])[::2].square().mean().sqrt()
        assert numbers["rotation/since_report/0.weight"] == pytest.approx(some.item(), rel=1e-4)
        assert numbers["l2_norm/param/0.weight"] == pytest.approx(weights[step + 1][0].norm().item(), rel=1e-5)
        assert not any(name.endswith("bias") and name.startswith("rotation") for name in numbers)


def test_every_few_batches_the_angle_is_that_since_the_last_report(monitor):
    model = network()
    optimizer = gyro.optim.RotationalAdamW(model, lr=1e-2)
    logged, weights = train(monitor(batch_log_interval=2), model, optimizer, steps=6)
    assert len(logged) == 3
    turned = Split().angle(weights[4][4], weights[6][4]).square().mean().sqrt()
    assert logged[2]["rotation/since_report/2.weight"] == pytest.approx(turned.item(), rel=1e-4)


def test_a_rotational_optimizer_turns_by_what_is_predicted(monitor):
    model = network()
    optimizer = gyro.optim.RotationalAdamW(model, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99))
    logged, _ = train(monitor(batch_log_interval=1), model, optimizer, steps=200)
    measured = torch.tensor([numbers["rotation/since_report/0.weight"] for numbers in logged[100:]])
    predicted = logged[-1]["rotation/predicted_per_step/0.weight"]
    assert predicted == pytest.approx((2 * 1e-3 * 0.1 * 0.1 / 1.9) ** 0.5, rel=1e-4)
    assert measured.square().mean().sqrt().item() == pytest.approx(predicted, rel=0.1)


def test_the_prediction_follows_the_schedule_and_is_left_out_where_there_is_none(monitor):
    model = network()
    optimizer = gyro.optim.RotationalAdamW(model, lr=1e-3)
    first, _ = train(monitor(batch_log_interval=1), model, optimizer, steps=1)
    for group in optimizer.param_groups:
        group["lr"] /= 4
    second, _ = train(monitor(batch_log_interval=1), model, optimizer, steps=1)
    name = "rotation/predicted_per_step/0.weight"
    assert second[0][name] == pytest.approx(first[0][name] / 2, rel=1e-4)
    by_hand = gyro.optim.Rotational(torch.optim.AdamW(model.parameters(), lr=1e-3), angular_update=0.01)
    logged, _ = train(monitor(batch_log_interval=1), model, by_hand, steps=1)
    assert name not in logged[0]
    assert "l2_norm/param/0.weight" in logged[0]


def test_reports_change_nothing_and_are_no_part_of_the_state(monitor):
    plain, asked = network(), network()
    quiet = gyro.optim.RotationalAdamW(plain, lr=1e-2)
    watched = gyro.optim.RotationalAdamW(asked, lr=1e-2)
    train(SimpleNamespace(batch_end=lambda state, logger: None), plain, quiet, steps=3)
    train(monitor(batch_log_interval=1), asked, watched, steps=3)
    for one, other in zip(plain.parameters(), asked.parameters(), strict=True):
        assert torch.equal(one, other)
    assert quiet.state_dict()["state"].keys() == watched.state_dict()["state"].keys()
    assert all(
        state.keys() == watched.state_dict()["state"][key].keys() for key, state in quiet.state_dict()["state"].items()
    )
