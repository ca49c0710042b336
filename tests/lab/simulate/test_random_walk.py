"""The machinery of the walks: rules against literal twins, many settings at once, records, the backward pass."""

import time

import numpy as np
import pytest
import torch
from gyroscope_lab.simulate import network, random_gammas, random_walk, unit_grad_norm
from gyroscope_lab.simulate.gradient_models import SimpleSystem

from gyroscope import optim
from gyroscope.theory import SGDM, SGDMRT, AdamL2, AdamS, AdamSRT, AdamW, Lion, Muon, NAdam, NAdamL2, cosine
from tests import walk

SMALL = {"shape": (8, 16), "norm": 0.8, "dtype": torch.float64}
RULES = {
    SGDM(0.1, 0.02): walk.sgdm(0.02),
    SGDM(0.1, 0.02, 0.8): walk.sgdm(0.02, 0.8),
    SGDM(0.1, 0.02, 0.8, nesterov=True): walk.sgdm(0.02, 0.8, nesterov=True),
    AdamW(0.02, 0.5, (0.8, 0.95)): walk.adamw(0.5, (0.8, 0.95)),
    AdamW(0.02, 0.5, corrected_decay=True): walk.adamw(0.5, peak_lr=0.02),
    AdamL2(0.02, 0.05): walk.adam_l2(0.05),
    NAdam(0.02, 0.5): walk.nadam(0.5),
    NAdamL2(0.02, 0.05): walk.nadam(0.05, coupled=True),
    Lion(0.01, 0.5): walk.lion(0.5),
    AdamS(0.02, 0.05): walk.adam_s(0.05),
    AdamSRT(0.02, 0.05): walk.adam_s(0.05, transport=True),
    SGDMRT(0.1, 0.02, 0.8): walk.sgd_mrt(0.02, 0.8),
}
TORCH = {
    SGDM(0.1, 0.02, 0.8): lambda params: torch.optim.SGD(params, 0.1, momentum=0.8, weight_decay=0.02),
    AdamW(0.02, 0.5): lambda params: torch.optim.AdamW(params, 0.02, weight_decay=0.5, eps=0),
    AdamL2(0.02, 0.05): lambda params: torch.optim.Adam(params, 0.02, weight_decay=0.05, eps=0),
    Lion(0.01, 0.5): lambda params: optim.Lion(params, 0.01, weight_decay=0.5),
    AdamSRT(0.02, 0.05): lambda params: optim.AdamSRT(params, 0.02, weight_decay=0.05, eps=1e-30),
}


class Literal(torch.optim.Optimizer):
    """A step of tests/walk.py, which knows nothing of gyroscope, as an optimizer."""

    def __init__(self, params, lr, step):
        super().__init__(params, {"lr": lr})
        self.literal, self.memory, self.t = step, {}, 0

    def step(self):
        (w,), lr, self.t = self.param_groups[0]["params"], self.param_groups[0]["lr"], self.t + 1
        new = self.literal(w.detach().numpy(), w.grad.numpy(), self.memory, lr, self.t)
        w.data.copy_(torch.from_numpy(new))


def same(one, other, rel=1e-9):
    for name in ("norm", "angular_update", "grad_norm", "unit_grad_norm"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rel)


@pytest.mark.parametrize("run", [random_walk, network])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_moves_as_its_literal_twin_does(rule, run):
    schedule = cosine(60, warmup=10)
    same(
        run(rule, schedule, **SMALL),
        run(lambda params: Literal(params, rule.lr, RULES[rule]), schedule, **SMALL),
    )


@pytest.mark.parametrize("rule", TORCH, ids=str)
def test_a_rule_moves_as_the_optimizer_of_that_name_does(rule):
    same(random_walk(rule, steps=50, **SMALL), random_walk(TORCH[rule], steps=50, **SMALL))


def test_many_settings_at_once_are_the_same_as_one_by_one():
    adamw = [AdamW(0.02, 0.5, (beta1, beta2)) for beta1 in (0.5, 0.9) for beta2 in (0.9, 0.99)]
    sgdm = [SGDM(0.1, wd, momentum) for wd in (0.01, 0.05) for momentum in (0.0, 0.9)]
    lion = [Lion(lr, 0.5, betas) for lr, betas in ((0.01, (0.9, 0.99)), (0.02, (0.95, 0.98)))]
    sphere = [AdamSRT(0.02, 0.05, (0.8, 0.9)), AdamSRT(0.01, 0.05), SGDMRT(0.1, 0.02, 0.5), SGDMRT(0.2, 0.02, 0.8)]
    nadam = [NAdam(0.02, 0.5, (0.8, 0.9)), NAdam(0.01, 0.5), AdamL2(0.02, 0.05, (0.8, 0.9)), AdamL2(0.02, 0.1)]
    settings = [rule for rules in zip(adamw, sgdm, lion * 2, sphere, nadam, strict=True) for rule in rules]
    settings.insert(3, TORCH[AdamW(0.02, 0.5)])
    norms, grads = np.linspace(0.5, 1.5, len(settings)), np.linspace(0.2, 0.9, len(settings))
    together = random_walk(settings, steps=40, **SMALL | {"norm": norms}, unit_grad_norm=grads)
    assert together.norm.shape == (40, len(settings), 8)
    for i, rule in enumerate(settings):
        alone = random_walk(rule, steps=40, **SMALL | {"norm": norms[i]}, unit_grad_norm=grads[i])
        np.testing.assert_allclose(together.norm[:, i], alone.norm, rtol=1e-9)
        np.testing.assert_allclose(together.angular_update[:, i], alone.angular_update, rtol=1e-9)


def test_thirty_two_settings_cost_far_less_than_thirty_two_runs():
    rules, options = [AdamW(lr, 1.0) for lr in np.linspace(1e-3, 1e-2, 32)], {"norm": 1.0, "shape": (32, 64)}

    def seconds(optimizers):
        start = time.process_time()
        random_walk(optimizers, steps=150, every=50, **options)
        return time.process_time() - start

    seconds(rules[0])
    one = min(seconds(rules[0]) for _ in range(3))
    together = min(seconds(rules) for _ in range(3))
    assert 32 * one / together > 3, f"32 runs cost {32 * one / together:.1f} times as much as all at once"


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("gammas", [None, random_gammas((8, 16))], ids=["unit", "random"])
def test_the_backward_pass_by_hand_is_autograds(gammas, independent):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, 8, 16, dtype=torch.float64, generator=generator)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64)[:, None, None]
    gamma_in, gamma_out = (None, 1.0) if gammas is None else (gammas[0].double(), gammas[1].double()[:, None])
    by_hand, twin = (
        SimpleSystem(weights, gamma_in, scale * gamma_out, 6, torch.Generator().manual_seed(0), independent)
        for _ in range(2)
    )
    for _ in range(3):
        written = torch.empty_like(weights)
        by_hand(weights, written)
        x, upstream = twin.draw()
        w = weights.clone().requires_grad_()
        z = w @ x
        normalised = (z - z.mean(2, keepdim=True)) / z.std(2, correction=0, keepdim=True)
        normalised.backward(upstream.expand_as(normalised))
        torch.testing.assert_close(written, w.grad, rtol=1e-9, atol=1e-12 * float(w.grad.abs().max()))


def test_gradients_are_tangent_and_have_the_given_size():
    seen = []

    class Look(torch.optim.Optimizer):
        def step(self):
            (w,) = self.param_groups[0]["params"]
            seen.append((w.grad * w).sum(1) / (w.grad.norm(dim=1) * w.norm(dim=1)))

    def look(params):
        return Look(params, {"lr": 0.0})

    for run in (random_walk, network):
        run(look, steps=10, **SMALL)
    assert torch.stack(seen).detach().abs().max() < 1e-12
    large = random_walk(look, steps=300, shape=(32, 64), norm=2.0, unit_grad_norm=0.3)
    assert large.averages().layer_unit_grad_norm == pytest.approx(0.3, rel=0.005)


@pytest.mark.parametrize(("shape", "batch"), [((16, 32), 8), ((32, 64), 32)])
def test_the_gradient_of_the_simple_system_has_a_closed_form(shape, batch):
    measured = network(SGDM(0.1, 0.01), steps=2000, every=10, average=10, shape=shape, batch=batch, loss_scale=3.0)
    predicted = unit_grad_norm(shape, batch, loss_scale=3.0)
    assert measured.averages().layer_unit_grad_norm == pytest.approx(predicted, rel=0.01)


def test_records_are_thinned_or_averaged():
    rule = AdamW(0.02, 0.5)
    all_steps = random_walk(rule, steps=47, reference=10, **SMALL)
    thin = random_walk(rule, steps=47, every=10, reference=10, **SMALL)
    mean = random_walk(rule, steps=47, every=10, average=4, reference=10, **SMALL)
    assert all_steps.steps.tolist() == list(range(47))
    assert thin.steps.tolist() == mean.steps.tolist() == [9, 19, 29, 39]
    np.testing.assert_allclose(thin.norm, all_steps.norm[9::10])
    np.testing.assert_allclose(mean.angular_update[1], all_steps.angular_update[16:20].mean(0))
    np.testing.assert_allclose(mean.norm[1], np.sqrt((all_steps.norm[16:20] ** 2).mean(0)))
    np.testing.assert_allclose(mean.cosine[3], all_steps.cosine[36:40].mean(0))
    assert np.isnan(all_steps.cosine[:11]).all()
    np.testing.assert_allclose(all_steps.cosine[11], np.cos(all_steps.angular_update[11]))
    assert all_steps.after(40).steps.tolist() == list(range(40, 47))


def test_the_length_of_a_step_closes_the_triangle_of_the_weights_before_and_after_it():
    walk = random_walk(AdamW(1e-2, 1.0), steps=20, norm=0.7, shape=(4, 16), dtype=torch.float64)
    before = walk.norm[:-1]
    after = walk.norm[1:]
    squares = before**2 + after**2 - 2 * before * after * np.cos(walk.angular_update[1:])
    np.testing.assert_allclose(walk.step_length[1:], np.sqrt(squares), rtol=1e-9)
    np.testing.assert_allclose(walk.averages().step_length, np.sqrt((walk.step_length**2).mean(0)))


def test_a_seed_or_generator_repeats_a_run_and_a_longer_run_begins_as_a_shorter_one():
    rule, options = SGDM(0.1, 0.02, 0.9), {"shape": (64, 64), "norm": 1.0}
    short, long = (random_walk(rule, steps=n, seed=7, **options) for n in (150, 300))
    same(short, random_walk(rule, steps=150, seed=torch.Generator().manual_seed(7), **options), rel=0)
    np.testing.assert_array_equal(short.norm, long.norm[:150])
    assert not np.allclose(short.norm, random_walk(rule, steps=150, seed=8, **options).norm, rtol=1e-4)


def test_settings_share_their_noise_unless_independent():
    rules = [AdamW(0.02, 0.5)] * 2
    shared, independent = (random_walk(rules, steps=30, independent=flag, **SMALL) for flag in (False, True))
    np.testing.assert_array_equal(shared.norm[:, 0], shared.norm[:, 1])
    assert not np.allclose(independent.norm[:, 0], independent.norm[:, 1], rtol=1e-3)


def test_the_whole_matrix_can_be_the_vector():
    whole = random_walk(AdamW(0.02, 0.5), steps=30, granularity="tensor", **SMALL)
    one_row = random_walk(AdamW(0.02, 0.5), steps=30, **SMALL | {"shape": (1, 128)})
    assert whole.norm.shape == (30, 1)
    same(whole, one_row)


def test_a_vector_without_gradient_only_decays():
    gammas = (torch.ones(16), torch.tensor([0.0] + [1.0] * 7))
    walk = network([AdamW(0.02, 0.5), Lion(0.02, 0.5)], steps=50, gammas=gammas, **SMALL)
    np.testing.assert_allclose(walk.norm[-1, :, 0], 0.8 * 0.99**50)
    np.testing.assert_allclose(walk.angular_update[:, :, 0], 0, atol=1e-12)


def test_progress_is_reported_every_hundred_steps():
    reported = []
    random_walk(AdamW(0.02, 0.5), steps=250, progress=reported.append, **SMALL)
    assert reported == [100, 200]


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"optimizers": []}, "nothing to simulate"),
        ({"optimizers": Muon(0.1, 0.1)}, "no built-in update for Muon"),
        ({"optimizers": "adamw"}, "neither a rule nor a function"),
        ({"optimizers": [AdamW(0.02, 0.5), 3]}, "3 is neither"),
        ({"norm": -1.0}, "norm=-1.0"),
        ({"norm": [1.0, 2.0]}, "norm of shape"),
        ({"shape": (8,)}, r"shape=\(8,\)"),
        ({"dtype": torch.bfloat16}, "too coarse"),
        ({"every": 0}, "every=0"),
        ({"every": 5, "average": 6}, "average=6"),
        ({"every": 100}, "leaves no record"),
        ({"reference": 20}, "reference=20"),
        ({"steps": None}, "steps is missing"),
        ({"steps": 3_000_000, "shape": (64, 2)}, "do not fit in memory"),
        ({"optimizers": SGDM(1e38, 0.0), "steps": 20}, "numeric overflow"),
    ],
)
def test_bad_input_is_quoted(options, quoted):
    defaults = {"optimizers": AdamW(0.02, 0.5), "steps": 20, "norm": 1.0, "shape": (4, 8)}
    with pytest.raises(ValueError, match=quoted):
        random_walk(**defaults | options)


def test_gammas_must_fit_and_a_batch_must_leave_a_gradient():
    with pytest.raises(ValueError, match="do not fit a matrix"):
        network(AdamW(0.02, 0.5), steps=5, shape=(4, 8), gammas=random_gammas((8, 4)))
    with pytest.raises(ValueError, match="batch=3"):
        network(AdamW(0.02, 0.5), steps=5, shape=(4, 8), batch=3)
    with pytest.raises(ValueError, match="step=9 is after the last record"):
        random_walk(AdamW(0.02, 0.5), steps=5, norm=1.0, shape=(4, 8)).averages(after=9)
