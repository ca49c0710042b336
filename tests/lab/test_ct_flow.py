"""Adam in continuous time: against the paper's recipe, its own limits, and discrete training."""

import math

import numpy as np
import pytest
import torch
from gyroscope_lab.ct._flow import flow
from gyroscope_lab.ct._sphere_flow import direction_flow, norm_equation, norm_identity
from gyroscope_lab.simulate import random_walk

from gyroscope.theory import AdamW

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tanh(X @ torch.linspace(-1, 1, 6, dtype=torch.float64))


def regression(parameters, x=X, y=Y):
    hidden = torch.tanh(x @ parameters["hidden"] + parameters["bias"])
    return (hidden @ parameters["out"] - y).square().mean()


def start(seed=1):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"hidden": (6, 5), "bias": (5,), "out": (5,)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def flat(parameters):
    return torch.cat([leaf.flatten() for leaf in parameters.values()])


def last(states):
    *_, end = states
    return end


def appendix_i(gradient, theta, *, lr, steps, weight_decay, betas, K, p):
    """CT Appendix I to the letter, in its own units of time."""
    gamma, beta = betas
    unit, psi, m, v, t = lr**p, np.zeros_like(theta), np.zeros_like(theta), np.zeros_like(theta), 0.0
    dt = unit / K
    for n in range(steps * K):
        t = n * dt
        bias = math.sqrt(1 - beta ** (1 + t / unit)) / (1 - gamma ** (1 + t / unit))
        u = bias * np.divide(m, np.sqrt(v), out=np.zeros_like(m), where=v > 0)
        psi_dot = -2 / lr ** (2 * p) * (weight_decay * lr * theta + lr**p * psi + lr * u)
        g = gradient(theta)
        theta, psi = theta + dt * psi, psi + dt * psi_dot
        m = math.exp(-(1 - gamma) / (unit * gamma) * dt) * (m + dt * (1 - gamma) / (unit * gamma) * g)
        v = math.exp(-(1 - beta) / (unit * beta) * dt) * (v + dt * (1 - beta) / (unit * beta) * g**2)
    return theta, psi


@pytest.mark.parametrize("p", [1.0, 1.5])
def test_the_flow_is_the_papers_recipe(p):
    scale, theta = np.array([1.0, 0.3, 2.0]), np.array([1.0, -2.0, 0.5])
    options = {"lr": 0.02, "weight_decay": 0.3, "betas": (0.8, 0.95), "steps": 30}
    expected, velocity = appendix_i(lambda w: scale * w, theta, K=8, p=p, **options)
    weights = torch.from_numpy(scale)
    end = last(flow(lambda w: (weights * w * w).sum() / 2, torch.tensor(theta), substeps=8, timescale=p, **options))
    np.testing.assert_allclose(end.parameters, expected, rtol=1e-10)
    np.testing.assert_allclose(end.velocity, velocity, rtol=1e-9)
    assert end.step == 30


@pytest.mark.slow
def test_the_flow_follows_adamw_and_ends_nearer_for_smaller_steps():
    """At one time lr·n, half the lr halves the distance: the model is first order in lr."""

    def distance(lr, steps):
        end = last(flow(regression, start(), lr=lr, steps=steps, weight_decay=0.1, betas=(0.8, 0.9), substeps=20))
        weights = {name: leaf.clone().requires_grad_() for name, leaf in start().items()}
        optimizer = torch.optim.AdamW(weights.values(), lr, (0.8, 0.9), eps=1e-30, weight_decay=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            regression(weights).backward()
            optimizer.step()
        moved = (flat(weights) - flat(start())).norm()
        return ((flat(end.parameters) - flat(weights)).norm() / moved).item()

    coarse, fine = distance(4e-3, 50), distance(2e-3, 100)
    assert coarse < 0.06
    assert 0.35 < fine / coarse < 0.65


def test_more_substeps_converge_at_first_order():
    ends = [flat(last(flow(regression, start(), lr=0.01, steps=10, substeps=K)).parameters) for K in (10, 20, 40)]
    assert (ends[0] - ends[1]).norm() / (ends[1] - ends[2]).norm() == pytest.approx(2, rel=0.15)


def test_without_gradients_only_the_decay_moves_the_weight():
    """λθ + θ̇ + ½ηθ̈ = 0 from rest: two exponentials (CT Appendix C)."""
    lr, wd, steps, theta = 0.1, 1.0, 10, torch.tensor([2.0, -1.0], dtype=torch.float64)
    end = last(flow(lambda w: 0.0 * w.sum(), theta, lr=lr, weight_decay=wd, steps=steps, substeps=100))
    root = math.sqrt(1 - 2 * lr * wd)
    slow, fast, t = (1 - root) / lr, (1 + root) / lr, lr * steps
    expected = (fast * math.exp(-slow * t) - slow * math.exp(-fast * t)) / (fast - slow)
    torch.testing.assert_close(end.parameters, expected * theta, rtol=2e-3, atol=0)


def test_coupled_decay_is_l2_in_the_loss():
    def with_l2(parameters):
        return regression(parameters) + 0.05 * flat(parameters).square().sum()

    options = {"lr": 0.01, "steps": 20, "substeps": 5}
    coupled = last(flow(regression, start(), weight_decay=0.1, coupled=True, **options))
    torch.testing.assert_close(flat(coupled.parameters), flat(last(flow(with_l2, start(), **options)).parameters))


def test_batches_change_with_the_step_and_states_can_be_kept():
    asked = []

    def batches(n):
        asked.append(n)
        return X[8 * n : 8 * n + 8], Y[8 * n : 8 * n + 8]

    states = list(flow(regression, start(), lr=0.01, steps=4, substeps=3, batches=batches))
    assert asked == [0, 1, 2, 3]
    assert [state.step for state in states] == [1, 2, 3, 4]
    assert states[0].parameters["hidden"].shape == (6, 5)
    assert not torch.equal(states[0].parameters["bias"], states[3].parameters["bias"])
    whole = last(flow(regression, start(), lr=0.01, steps=4, substeps=3))
    assert not torch.allclose(flat(whole.parameters), flat(states[3].parameters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_may_be_any_tree_and_keep_their_dtype(dtype):
    tree = [torch.ones(2, dtype=dtype), (torch.ones(1, 3, dtype=dtype),)]
    end = last(flow(lambda p: p[0].sum() * p[1][0].square().sum(), tree, lr=0.01, steps=2, substeps=2))
    assert end.update[1][0].shape == (1, 3)
    assert end.parameters[0].dtype == dtype


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"betas": (0.0, 0.9)}, "need β above 0"),
        ({"substeps": 1}, "substeps=1"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_bad_input_is_quoted(options, quoted):
    with pytest.raises(ValueError, match=quoted):
        next(flow(regression, start(), **{"lr": 0.01, "steps": 1} | options))


class Watched(torch.optim.AdamW):
    """AdamW that keeps ‖u‖², ⟨W,u⟩ and ‖W‖² of every step, u = -(W' - (1-a)·W)/lr."""

    seen: list

    def step(self):
        (w,), group = self.param_groups[0]["params"], self.param_groups[0]
        before = w.detach().clone()
        super().step()
        u = ((1 - group["lr"] * group["weight_decay"]) * before - w.detach()) / group["lr"]
        self.seen.append([u.square().sum(1).mean(), (before * u).sum(1).mean(), w.detach().square().sum(1).mean()])


def test_the_identity_is_exact_and_the_papers_equation_ends_low_under_noise():
    """By about τ = 19 at β1 = 0.9: it drops the pull of momentum back inwards."""
    seen, rule = [], AdamW(1e-2, 1.0)

    def watched(params):
        optimizer = Watched(params, rule.lr, weight_decay=rule.weight_decay, eps=0)
        optimizer.seen = seen
        return optimizer

    random_walk(watched, steps=800, norm=0.6, shape=(32, 128), dtype=torch.float64)
    update2, overlap, norm2 = np.array(seen).T
    options = {"lr": rule.lr, "weight_decay": rule.weight_decay, "norm2": 0.36}
    np.testing.assert_allclose(norm_identity(update2, overlap, **options), norm2, rtol=1e-9)
    low = norm_equation(update2, **options)[-1] / norm2[-1]
    assert 1 / 22 < low < 1 / 15
    both = norm_equation(np.stack([update2, 2 * update2], 1), **options | {"lr": np.full(800, rule.lr)})
    np.testing.assert_allclose(both[:, 0], norm_equation(update2, **options))


def test_the_papers_equation_is_right_where_updates_stay_tangent():
    u2 = np.random.default_rng(0).uniform(0.5, 1.5, 500)
    exact = norm_identity(u2, np.zeros(500), lr=1e-3, weight_decay=0.5, norm2=1.0)
    np.testing.assert_allclose(norm_equation(u2, lr=1e-3, weight_decay=0.5, norm2=1.0), exact, rtol=1e-3)
    still = norm_equation(u2, lr=1e-3, weight_decay=0.0, norm2=1.0)
    np.testing.assert_allclose(still, 1 + 1e-6 * np.cumsum(u2), rtol=1e-12)


def turned(lr, norm, as_printed=False):
    """Distance between the direction of (7), solved for W itself, and (9), after the time 1."""
    steps, K = round(1 / lr), 20
    w = torch.tensor([norm, 0.0, 0.0], dtype=torch.float64)
    phi, updates, norms = torch.zeros_like(w), [], []
    for n in range(steps):
        unit, t = w / w.norm(), torch.tensor(n * lr, dtype=torch.float64)
        push = torch.stack([torch.zeros_like(t), 3 * norm * torch.cos(t), 3 * norm * torch.sin(2 * t)])
        updates.append(push - (push @ unit) * unit)
        norms.append(w.norm().item())
        for _ in range(K):
            force = -2 * (phi + lr * updates[-1])
            w, phi = w + phi / K, phi + force / K
    start = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    *_, end = direction_flow(start, updates, norms, lr=lr, substeps=K, as_printed=as_printed)
    return (end - w / w.norm()).norm().item()


@pytest.mark.parametrize("norm", [0.3, 3.0])
def test_the_direction_equation_holds_as_derived_and_not_as_printed(norm):
    assert turned(0.01, norm) < 0.002
    assert turned(0.005, norm) < 0.6 * turned(0.01, norm)
    assert turned(0.01, norm, as_printed=True) > 5 * turned(0.01, norm)
