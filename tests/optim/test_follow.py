"""A rotational optimizer that follows its base: the forecast's angle at each step, layer by layer."""

import copy
import io
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR

import gyroscope as gyro
from gyroscope import theory
from gyroscope.optim import Rotational, RotationalAdamW, RotationalLion, RotationalSGD, follow
from gyroscope.theory import cosine, forecast
from tests.optim.catalogue import compiles
from tests.optim.torch_walk import angle, noise_gradient

# A memory of 200 steps: the run has a transient, and an end in which norms that have settled fall out again.
LR = 1e-2
DECAY = 0.5
STEPS = 400
WINDOW = 20
SCHEDULE = cosine(STEPS, warmup=30)


class Layers(nn.Module):
    """Vectors of three lengths that start below, above and at about their equilibrium norms."""

    sizes = ((128, 64, 0.2), (96, 100, 4.0), (64, 150, 1.2))

    def __init__(self, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for number, (vectors, fan_in, norm) in enumerate(self.sizes):
            w = torch.randn(vectors, fan_in, generator=generator, dtype=dtype)
            w -= w.mean(1, keepdim=True)
            self.register_parameter(f"layer{number}", nn.Parameter(w * norm / w.norm(dim=1, keepdim=True)))


def loss(model):
    """Gradients of norm 1 at unit norm, whatever the batch."""
    generator = torch.Generator().manual_seed(5)
    return sum((w * noise_gradient(w.detach(), generator)).sum() for w in model.parameters())


def walk(model, optimizer, steps=STEPS, scheduler=None, seed=1):
    """Mean angle of every layer at each step, (steps, layers), under tangent noise."""
    generator = torch.Generator().manual_seed(seed)
    angles = []
    for _ in range(steps):
        before = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = noise_gradient(p.detach(), generator)
        optimizer.step()
        angles.append([float(angle(w, p.detach()).mean()) for w, p in zip(before, model.parameters(), strict=True)])
        if scheduler is not None:
            scheduler.step()
    return np.array(angles)


def predicted(rule, schedule=SCHEDULE, model=Layers):
    _, fan_in, norm = np.array(model.sizes).T
    return forecast(rule, schedule, norm=norm, fan_in=fan_in, unit_grad_norm=np.ones(3))


def smooth(angles):
    """Means over windows: a step's mean over vectors scatters by a percent."""
    return angles.reshape(-1, WINDOW, angles.shape[1]).mean(1)


ADAMW = theory.AdamW(LR, DECAY)
VARIANTS = {
    "RotationalAdamW": (lambda p: RotationalAdamW(p, lr=LR, weight_decay=DECAY), ADAMW),
    "RotationalSGD": (lambda p: RotationalSGD(p, lr=3e-3, weight_decay=0.15), theory.SGDM(3e-3, 0.15, 0.9)),
    "RotationalLion": (lambda p: RotationalLion(p, lr=7e-4, weight_decay=7.0), theory.Lion(7e-4, 7.0)),
    "special variant": (
        lambda p: Rotational(torch.optim.Adam(p, lr=LR, weight_decay=1e-4), angular_update=ADAMW),
        ADAMW,
    ),
}


# SGD's updates have L2 in them, which the lengths of the turning part are forecast without.
TOLERANCE = {"RotationalSGD": 0.05}


@pytest.mark.parametrize("name", VARIANTS)
def test_each_layer_turns_as_its_base_is_forecast_to_turn(name):
    make, rule = VARIANTS[name]
    tolerance = TOLERANCE.get(name, 0.02)
    model = Layers()
    optimizer = make(model.parameters())
    norms = [p.detach().norm(dim=1) for p in model.parameters()]
    follow(optimizer, model, loss=loss)
    angles = walk(model, optimizer, scheduler=LambdaLR(optimizer, SCHEDULE))
    expected = predicted(rule).angular_update
    assert smooth(angles) == pytest.approx(smooth(expected), rel=tolerance)
    assert angles[0] == pytest.approx(expected[0], rel=0.02)
    for p, norm in zip(model.parameters(), norms, strict=True):
        torch.testing.assert_close(p.detach().norm(dim=1), norm)
    # That is not what they do on their own.
    assert (smooth(expected) / smooth(predicted(theory.FixedNorm(rule)).angular_update)).max() > 2


def batch_norm_network():
    """Scale-invariant weights of mean 0, and a head that stays: the noise of fresh random labels never fades."""
    torch.manual_seed(0)
    hidden = [nn.Linear(32, 64, bias=False), nn.BatchNorm1d(64, affine=False), nn.ReLU()]
    hidden += [nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64, affine=False), nn.ReLU()]
    network = nn.Sequential(*hidden, nn.Linear(64, 10).requires_grad_(False))
    with torch.no_grad():
        for layer in (network[0], network[3]):
            layer.weight -= layer.weight.mean(1, keepdim=True)
    return network


def trained_on_noise(make, follows, steps=400):
    network = batch_norm_network()
    weights = [network[0].weight, network[3].weight]
    optimizer = make(weights, lr=1e-2, weight_decay=DECAY, betas=(0.9, 0.99))
    if follows:
        follow(optimizer, network)
    scheduler = LambdaLR(optimizer, cosine(steps, warmup=20))
    generator = torch.Generator().manual_seed(1)
    angles = []
    for _ in range(steps):
        x = torch.randn(64, 32, generator=generator)
        target = torch.randint(10, (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), target).backward()
        before = [w.detach().clone() for w in weights]
        optimizer.step()
        scheduler.step()
        angles.append([float(angle(old, w.detach()).mean()) for old, w in zip(before, weights, strict=True)])
    return np.array(angles).reshape(-1, 50, 2).mean(1)


def test_a_network_turns_under_its_follower_as_under_adamw():
    base = trained_on_noise(torch.optim.AdamW, follows=False)
    plain = partial(RotationalAdamW, update_average="plain")
    assert trained_on_noise(plain, follows=True) == pytest.approx(base, rel=0.05)
    # While a momentum fills, updates agree more than noise, and its average expects noise.
    assert trained_on_noise(RotationalAdamW, follows=True) == pytest.approx(base, rel=0.13)
    alone = trained_on_noise(RotationalAdamW, follows=False)
    assert (alone / base).min() < 0.8
    assert (alone / base).max() > 2


def turned(steps, resume_at=None, **options):
    """Weights after some steps of a followed run, perhaps through a file in the middle of it."""
    model = Layers(torch.float32)
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY, **options)
    follower = follow(optimizer, model)
    scheduler = LambdaLR(optimizer, lambda t: float(SCHEDULE(t)))  # a function is no part of its state
    if resume_at is None:
        walk(model, optimizer, steps, scheduler)
        return [p.detach() for p in model.parameters()]
    walk(model, optimizer, resume_at, scheduler)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), follower.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model = Layers(torch.float32)
    with torch.no_grad():
        model.layer0 *= 3  # another start: what is followed is the saved one
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY, **options)
    follower = follow(optimizer, model)
    scheduler = LambdaLR(optimizer, lambda t: float(SCHEDULE(t)))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    scheduler.load_state_dict(saved[2])
    follower.load_state_dict(saved[3])
    walk(model, optimizer, steps - resume_at, scheduler, seed=2)
    return [p.detach() for p in model.parameters()]


def test_a_resumed_run_follows_on_bit_for_bit():
    model = Layers(torch.float32)
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    follow(optimizer, model)
    scheduler = LambdaLR(optimizer, SCHEDULE)
    walk(model, optimizer, 25, scheduler)
    walk(model, optimizer, 15, scheduler, seed=2)
    for found, expected in zip(turned(40, resume_at=25), model.parameters(), strict=True):
        assert torch.equal(found, expected.detach())


@compiles
def test_a_compiled_step_follows_alike():
    for found, expected in zip(turned(10, compile=True), turned(10), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_a_scheduler_may_step_once_an_epoch():
    model = Layers()
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    follow(optimizer, model)
    epochs = StepLR(optimizer, 1, 0.25)
    angles = []
    for epoch in range(3):
        angles.append(walk(model, optimizer, 60, seed=1 + epoch))
        epochs.step()
    expected = predicted(ADAMW, [0.25 ** (t // 60) for t in range(180)]).angular_update
    # Without a warmup the first layer's first step turns by 0.4 radians.
    assert smooth(np.concatenate(angles)) == pytest.approx(smooth(expected), rel=0.03)


def test_removing_it_brings_back_the_equilibrium_angle():
    model = Layers()
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY, beta=0.0)
    follower = follow(optimizer, model)
    walk(model, optimizer, 3)
    follower.remove()
    settled = np.arctan(ADAMW.equilibrium(leading_order=True).angular_update)
    assert walk(model, optimizer, 1)[0] == pytest.approx(np.full(3, settled), rel=1e-6)
    assert follower.names == ("layer0", "layer1", "layer2")


def test_a_copy_of_the_optimizer_does_not_follow():
    model = Layers()
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    follow(optimizer, model)
    walk(model, optimizer, 2)
    assert optimizer.angle_factors
    assert not copy.deepcopy(optimizer).angle_factors


def test_zero_vectors_and_what_does_not_rotate_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 4))
    nn.init.zeros_(model[2].weight)
    optimizer = RotationalAdamW(model.parameters(), lr=LR)
    follower = follow(optimizer, model)
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    assert follower.names == ("0.weight",)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_learning_rate_of_0_turns_nothing():
    model = Layers()
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    follow(optimizer, model)
    walk(model, optimizer, 2)
    optimizer.param_groups[0]["lr"] = 0.0
    assert not walk(model, optimizer, 1).any()
    optimizer.param_groups[0]["lr"] = LR
    assert (walk(model, optimizer, 1) > 0).all()


def test_what_cannot_be_followed_is_refused_in_a_sentence():
    model = Layers()
    for make, words in [
        (lambda p: torch.optim.AdamW(p), "AdamW has no base to follow: .*for example RotationalAdamW"),
        (lambda p: Rotational(torch.optim.AdamW(p), mode="hyperball"), "Hyperball has no forecast of norms"),
        (lambda p: RotationalSGD(p, lr=0.1), r"SGDM's norms depend on the gradient of 'layer0': pass loss=…"),
        (lambda p: Rotational(torch.optim.SGD(p), angular_update=0.1), r"angular_update=0\.1 sets the angle by hand"),
    ]:
        with pytest.raises(ValueError, match=words):
            follow(make(model.parameters()), model)


def test_a_state_of_other_weights_is_refused():
    model, other = Layers(), nn.Linear(8, 4)
    saved = follow(RotationalAdamW(model.parameters()), model).state_dict()
    follower = follow(RotationalAdamW(other.parameters()), other)
    with pytest.raises(ValueError, match="layer0, layer1, layer2 and this one weight: call follow with the same model"):
        follower.load_state_dict(saved)


@pytest.mark.parametrize("name", VARIANTS)
def test_plan_and_tracker_predict_the_angles_that_are_followed(name, tmp_path):
    make, rule = VARIANTS[name]
    model = Layers()
    optimizer = make(model.parameters())
    follow(optimizer, model, loss=loss)
    planned = gyro.plan(model, optimizer, SCHEDULE, steps=STEPS, loss=loss)
    expected = predicted(rule)
    with gyro.Tracker(model, optimizer, tmp_path, every=10):
        angles = walk(model, optimizer, scheduler=LambdaLR(optimizer, SCHEDULE))
    run = gyro.store.open_run(tmp_path)
    for number, (_, _, norm) in enumerate(Layers.sizes):
        layer = f"layer{number}"
        course = planned.layers[layer]
        # SGD's gradients are measured, others do not enter.
        assert course.angular_update == pytest.approx(expected.angular_update[:, number], rel=0.02)
        assert course.norm == pytest.approx(np.full(STEPS, norm), rel=1e-6)
        assert smooth(angles)[:, number] == pytest.approx(
            smooth(course.angular_update[:, None])[:, 0], rel=TOLERANCE.get(name, 0.02)
        )
        for quantity in ("predicted_angular_update", "forecast_angular_update"):
            series = run.series(layer, quantity)
            # A tracker's forecast has the gradient of the last sample, a plan that of the start.
            assert series == pytest.approx(course.angular_update[run.steps], rel=TOLERANCE.get(name, 0.02))
    assert "as fast on average" not in str(run.diagnose())


def test_without_its_follower_an_optimizer_is_predicted_to_turn_by_the_equilibrium_angle():
    model = Layers()
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    follower = follow(optimizer, model)
    assert gyro.plan(model, optimizer, steps=10).predictions[0].rule == theory.FixedNorm(ADAMW, follows_base=True)
    follower.remove()
    assert gyro.plan(model, optimizer, steps=10).predictions[0].rule == theory.FixedNorm(ADAMW)


def test_a_tracker_that_starts_in_the_middle_does_not_guess_how_far_the_base_has_come(tmp_path):
    model = Layers()
    optimizer = RotationalAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    follow(optimizer, model)
    walk(model, optimizer, 20)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, start=20):
        walk(model, optimizer, 5)
    run = gyro.store.open_run(tmp_path)
    assert np.isnan(run.series("layer0", "predicted_angular_update")).all()
    assert any("state of the base optimizer that it follows" in str(note) for note in run.notes)
