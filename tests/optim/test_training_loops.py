"""What training loops do around a step, for every optimizer: precision, clipping, averaging, recomputation, hooks."""

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from gyroscope import optim, theory
from tests.optim.catalogue import every_optimizer

STEPS = 4


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.LayerNorm(5)).double()


def batch(step):
    return torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def loss_of(net, step):
    return (net(batch(step)) - batch(step)[:, :5]).square().mean()


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def trained(row, change=lambda net, optimizer, step: None):
    """Weights after a few steps; `change` acts between backward and step."""
    net = network()
    optimizer = row.make(net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        change(net, optimizer, step)
        optimizer.step()
    return weights(net)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.compile
@every_optimizer
@pytest.mark.filterwarnings("ignore:Dynamo")
def test_a_training_step_that_is_compiled_as_a_whole_is_the_same_step(row):
    net = network()
    optimizer = row.make(net.parameters())

    @torch.compile(backend="eager")
    def training_step(x):
        optimizer.zero_grad()
        (net(x) - x[:, :5]).square().mean().backward()
        optimizer.step()

    for step in range(STEPS):
        training_step(batch(step))
    assert_same(weights(net), trained(row))


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_mixed_precision_with_a_grad_scaler_lowers_the_loss(row, dtype):
    net = network().float()
    optimizer = row.make(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = batch(0).float()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = (net(x) - x[:, :5].roll(1, 1)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 1024.0, "a step was skipped"
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in net.parameters())


@every_optimizer
def test_clipped_gradients_are_gradients_times_a_number(row):
    limit = 0.05

    def clip(net, optimizer, step):
        clip_grad_norm_(net.parameters(), limit)

    def scale(net, optimizer, step):
        norm = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
        assert norm > limit
        for p in net.parameters():
            p.grad = p.grad * (limit / (norm + 1e-6))

    assert_same(trained(row, clip), trained(row, scale))


@every_optimizer
def test_accumulated_gradients_are_those_of_the_whole_batch(row):
    net = network()
    optimizer = row.make(net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(step)
        for part in (slice(0, 3), slice(3, 7)):
            ((net(x[part]) - x[part, :5]).square().sum() / (7 * 5)).backward()
        optimizer.step()
    assert_same(weights(net), trained(row))


@every_optimizer
def test_a_moving_average_of_weights_follows_them_and_changes_nothing(row):
    averaged = []

    def average(net, optimizer, step):
        if not averaged:
            averaged.extend([AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)), weights(net)])
        else:
            averaged[1] = [0.9 * old + 0.1 * new for old, new in zip(averaged[1], weights(net), strict=True)]
        averaged[0].update_parameters(net)

    assert_same(trained(row, average), trained(row))
    assert_same(weights(averaged[0].module), averaged[1])


@every_optimizer
def test_checkpointed_activations_give_the_same_step(row):
    net = network()
    optimizer = row.make(net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(step)
        hidden = checkpoint(net[:2], x, use_reentrant=False)
        (net[2:](hidden) - x[:, :5]).square().mean().backward()
        optimizer.step()
    assert_same(weights(net), trained(row))


@every_optimizer
def test_an_optimizer_for_each_parameter_may_step_within_backward(row):
    net = network()
    optimizers = {p: row.make([p]) for p in net.parameters()}

    def take_step(p):
        optimizers[p].step()
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(take_step)
    for step in range(STEPS):
        loss_of(net, step).backward()
        assert all(p.grad is None for p in net.parameters())
    assert_same(weights(net), trained(row))


@every_optimizer
def test_a_step_waits_for_no_device(row):
    """A tensor of the device "meta" has no numbers: to ask it for one is an error, where a GPU would make us wait."""
    # torch's own Adam reads lr for what does not turn; the wrapper's weights all do.
    shapes = [(6, 8), (5, 3)] if row.wraps else [(6, 8), (5, 3), (8,)]
    parameters = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    optimizer = row.make(parameters)
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    for _ in range(3):
        for p in parameters:
            p.grad = torch.empty_like(p)
        optimizer.step()
    with pytest.raises(RuntimeError, match="meta"):
        float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    "rule",
    [
        theory.AdamW(2e-3, 0.1),
        theory.AdamW(4e-3, 0.1, corrected_decay=True),
        theory.NAdam(2e-3, 0.1),
        theory.Lion(2e-4, 1.0),
        theory.SGDM(0.1, 1e-3, 0.9),
        theory.SGDM(0.1, 1e-3, 0.9, nesterov=True),
        theory.Muon(2e-3, 0.1, 0.95),
        theory.Hyperball(1e-2),
        theory.Rule(decay=1e-3, correlation_time=19.0),
    ],
    ids=repr,
)
def test_the_angle_by_which_a_rule_turns_at_an_lr_on_a_device_is_that_of_the_number(rule):
    """Of a device the host knows no lr: the angle follows from another one by the rule's exponent."""
    optimizer = optim.Rotational(torch.optim.AdamW([nn.Parameter(torch.ones(6, 4))], lr=2e-3), angular_update=rule)
    group = optimizer.param_groups[0]
    weights = theory.law.Weights(4, None, (6, 4))
    by_number = optimizer._rule_angle(group, weights)

    class OnDevice(torch.Tensor):
        device = torch.device("meta")

    lr = torch.tensor(2e-3, dtype=torch.float64).as_subclass(OnDevice)
    by_device = optimizer._rule_angle({**group, "lr": lr}, weights)
    assert isinstance(by_device, torch.Tensor)
    assert float(by_device) == pytest.approx(by_number, rel=1e-12)


def test_sgd_with_dampening_turns_by_the_angle_of_the_lr_that_reaches_the_weights():
    angles = []
    for lr, dampening in ((0.1, 0.75), (0.025, 0.0)):
        inner = torch.optim.SGD([nn.Parameter(torch.ones(6, 4))], lr, 0.9, dampening, weight_decay=1e-3)
        optimizer = optim.Rotational(inner)
        angles.append(optimizer._rule_angle(optimizer.param_groups[0], theory.law.Weights(4, None, (6, 4))))
    assert angles[0] == pytest.approx(angles[1], rel=1e-12)
