"""Trainings whose steps are seen, and what SP's and SMD's experiments take from them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gyroscope_lab.framework.arms import Arms
from gyroscope_lab.framework.experiment import Trial
from gyroscope_lab.framework.weight_steps import WeightStep, train_and_see
from gyroscope_lab.smd._networks import LayerMotion, averaged, drawn, rule_of, theory_angle, theory_norm
from gyroscope_lab.smd._norm_map import sgd_map, sgdm_map
from gyroscope_lab.smd.fig2 import _steps_per_e_fold
from gyroscope_lab.smd.fig7 import turned_together
from gyroscope_lab.sp._effective_step import effective_step
from gyroscope_lab.sp.fig3 import largest

SETTINGS = {
    "task": "digits",
    "model": "cnn:width=4,convolutions=2",
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "schedule": "constant",
    "batch_size": 32,
    "steps": 5,
    "turn_head": False,
}


@pytest.fixture(scope="module")
def seen():
    steps = []
    scores = train_and_see(Trial(SimpleNamespace(), seed=0), SETTINGS, lambda t, weights: steps.append(copied(weights)))
    return SimpleNamespace(steps=steps, scores=scores)


def copied(weights):
    """As they are now: the next step changes `after` and the gradient."""
    return {
        name: WeightStep(step.before, step.after.clone(), step.gradient.clone(), step.momentum)
        for name, step in weights.items()
    }


def test_factors_that_are_returned_rescale_weights_and_their_momentum():
    steps = []

    def see(step, weights):
        steps.append(copied(weights))
        return dict.fromkeys(weights, 0.5) if step == 2 else None

    train_and_see(Trial(SimpleNamespace(), seed=0), SETTINGS, see)
    for name, last in steps[2].items():
        buffer = 0.9 * last.momentum + last.gradient + 0.01 * last.before
        torch.testing.assert_close(steps[3][name].before, 0.5 * last.after)
        # Gradients of a scale-invariant weight are inversely proportional to its norm.
        torch.testing.assert_close(steps[3][name].momentum, 2 * buffer)


def test_every_step_is_that_of_sgd_with_momentum(seen):
    assert len(seen.steps) == 5
    assert list(seen.steps[0]) == ["features.0.weight", "features.3.weight"]  # without the head
    for weights in seen.steps:
        for step in weights.values():
            buffer = 0.9 * step.momentum + step.gradient + 0.01 * step.before
            torch.testing.assert_close(step.after, step.before - 0.1 * buffer)


def test_each_step_begins_where_the_last_one_ended(seen):
    for first, second in zip(seen.steps[:-1], seen.steps[1:], strict=True):
        for name in first:
            assert torch.equal(first[name].after, second[name].before)
    assert all(step.momentum.abs().sum() == 0 for step in seen.steps[0].values())
    assert 0 < seen.scores["validation_accuracy"] < 1


def test_the_motion_of_layers_follows_the_map_that_its_own_h_drives(seen):
    motion = LayerMotion(momentum=0.9, spans=(1, 3))
    for t, weights in enumerate(seen.steps):
        motion.see(t, weights)
    for layer, name in enumerate(seen.steps[0]):
        start = seen.steps[0][name].before.square().sum().item()
        path = sgdm_map(motion["h"][:, layer], lr=0.1, weight_decay=0.01, momentum=0.9, norm2=start)
        # The map is exact for gradients orthogonal to the weight, which BatchNorm's eps leaves them but for a little.
        np.testing.assert_allclose(motion["norm2"][:, layer], path.norm2, rtol=1e-3)
    np.testing.assert_allclose(motion.turned(1), motion["angle"])
    assert np.isnan(motion.turned(3)[:2]).all()
    last = seen.steps[-1]["features.3.weight"].after.flatten()
    first = seen.steps[-3]["features.3.weight"].before.flatten()
    cosine = torch.nn.functional.cosine_similarity(last.double(), first.double(), dim=0)
    assert motion.turned(3)[-1, 1] == pytest.approx(float(torch.arccos(cosine)), rel=1e-4)


def test_averages_are_those_of_a_window_that_shrinks_at_the_ends():
    values = np.random.default_rng(0).standard_normal((11, 2))
    plain = [values[max(t - 2, 0) : t + 3].mean(0) for t in range(11)]
    np.testing.assert_allclose(averaged(values, 5), plain)
    assert drawn(values).shape == (80, 2)


def test_steps_to_come_e_times_nearer_are_those_of_the_map():
    lr, weight_decay = 0.1, 0.01
    path = sgd_map(np.full(3000, 2.0), lr=lr, weight_decay=weight_decay, norm2=30.0)
    arms = Arms(base={"lr": lr, "weight_decay": weight_decay, "momentum": 0.0}, arms={"": {}})
    theory = theory_norm(rule_of(arms, ""), np.full(3000, 2.0))
    assert path.norm[-1] == pytest.approx(theory[-1], rel=1e-3)
    assert path.angular_update[-1] == pytest.approx(theory_angle(rule_of(arms, "")), rel=0.01)
    assert _steps_per_e_fold(path.norm, theory) == pytest.approx(1 / (4 * lr * weight_decay), rel=0.02)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_with_momentum_turn_together_as_a_walk_does(momentum):
    noise = torch.randn(2000, 4000, generator=torch.Generator().manual_seed(0))
    buffer = torch.zeros(4000)
    places = [torch.zeros(4000)]
    for gradient in noise:
        buffer = momentum * buffer + gradient
        places.append(places[-1] + buffer)
    path = torch.stack(places[500:])
    one = (path[1:] - path[:-1]).norm(dim=1).square().mean().sqrt()
    for k in (4, 16):
        many = (path[k:] - path[:-k]).norm(dim=1).square().mean().sqrt()
        assert float(many / one) == pytest.approx(turned_together(k, momentum), rel=0.03)


def test_the_largest_of_all_filters_are_those_of_the_effective_step():
    generator = torch.Generator().manual_seed(0)
    before, gradient = torch.randn(2, 3, 8, generator=generator)
    lr = 0.05
    step = WeightStep(before, before - lr * gradient, gradient, torch.zeros_like(before))
    effective = effective_step(before.numpy(), gradient.numpy(), 1.0, lr)
    radial, tangent, taylor, printed = largest({"weight": step}, lr)
    assert radial == pytest.approx(np.abs(1 - effective.radial_factor).max(), rel=1e-4)
    assert tangent == pytest.approx(np.tan(effective.angle).max(), rel=1e-4)
    g2 = (gradient**2).sum(1)
    assert taylor == pytest.approx(float((lr**2 * g2 / (before**2).sum(1)).max()), rel=1e-4)
    assert printed == pytest.approx(float((lr**2 * g2).max()), rel=1e-4)
