"""Rotational(inner) among schedulers, hooks, checkpoints and inner optimizers of every kind."""

import io
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gyroscope.geometry import Split
from gyroscope.optim import Rotational
from gyroscope.theory import AdamW, cosine


def weights():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8))]


def take(optimizer, params, steps=1):
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()


@pytest.mark.parametrize(
    "inner",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    ],
)
@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=10),
        lambda o: lr_scheduler.CyclicLR(o, base_lr=1e-4, max_lr=1e-2, step_size_up=3),
    ],
)
def test_schedulers_that_cycle_momentum_take_it(inner, schedule):
    params = weights()
    optimizer = Rotational(inner(params))
    scheduler = schedule(optimizer)
    seen = []
    for _ in range(6):
        take(optimizer, params)
        scheduler.step()
        group = optimizer.inner.param_groups[0]
        seen.append(group["betas"][0] if "betas" in group else group["momentum"])
    assert len(set(seen)) > 1


ANGLES = [0.02, lambda step: 0.01 * (step + 1), AdamW(lr=1.0, weight_decay=0.3)]


@pytest.mark.parametrize("angle", ANGLES)
def test_a_state_dict_goes_through_a_file_without_the_code_of_its_angles(angle):
    params = weights()
    schedule = {"params": params, "angle_schedule": cosine(9)}
    optimizer = Rotational(torch.optim.AdamW([schedule], lr=0.01, weight_decay=0.1), angular_update=angle)
    take(optimizer, params, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = Rotational(torch.optim.AdamW([dict(schedule)], lr=0.01, weight_decay=0.1), angular_update=angle)
    other.load_state_dict(saved)
    assert other.param_groups[0]["angular_update"] == angle
    assert other.param_groups[0]["angle_schedule"] == schedule["angle_schedule"]
    assert other.state[params[0]]["turns"] == 2
    take(other, params)


def test_hooks_of_loading_are_called():
    params = weights()
    optimizer = Rotational(torch.optim.AdamW(params, lr=0.01, weight_decay=0.1))
    calls = []
    optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append("before"))
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("after"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "after"]


def test_hooks_for_all_optimizers_are_called_once_a_step_and_those_of_the_inner_one_too():
    params = weights()
    inner = torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)
    optimizer = Rotational(inner)
    calls = []
    inner.register_step_pre_hook(lambda o, *_: calls.append(("inner before", o)))
    inner.register_step_post_hook(lambda o, *_: calls.append(("inner after", o)))
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: calls.append(("before", o))),
        register_optimizer_step_post_hook(lambda o, *_: calls.append(("after", o))),
    ]
    take(optimizer, params)
    for handle in handles:
        handle.remove()
    assert calls == [("before", optimizer), ("inner before", inner), ("inner after", inner), ("after", optimizer)]


def test_a_scheduler_of_the_inner_optimizer_sees_its_steps():
    params = weights()
    inner = torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)
    optimizer = Rotational(inner)
    scheduler = lr_scheduler.ExponentialLR(inner, 0.5)
    take(optimizer, params)
    scheduler.step()  # a warning that no step was taken would be an error here
    assert optimizer.param_groups[0]["lr"] == 0.005


@pytest.mark.filterwarnings("ignore:.*Adafactor.*")
def test_adafactor_turns_by_the_angle_that_is_asked_for():
    params = weights()
    optimizer = Rotational(torch.optim.Adafactor(params, lr=0.01), angular_update=0.01, beta=0.0)
    take(optimizer, params)
    before = params[0].detach().clone()
    take(optimizer, params)
    expected = torch.full((6,), math.atan(0.01))
    torch.testing.assert_close(Split().angle(before, params[0].detach()), expected, rtol=1e-3, atol=0)


def test_an_optimizer_that_needs_a_closure_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"LBFGS calls a closure several times in each step.*AdamW"):
        Rotational(torch.optim.LBFGS(weights()), angular_update=0.01)


def test_complex_weights_are_refused_with_a_sentence():
    inner = torch.optim.AdamW([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))], weight_decay=0.1)
    with pytest.raises(ValueError, match=r"Rotational has no complex weights.*view_as_real"):
        Rotational(inner)


def test_a_misspelt_option_of_a_group_is_an_error_and_a_label_is_not():
    params = weights()
    Rotational(torch.optim.AdamW([{"params": params, "label": "all", "lr_scale": 0.5}], weight_decay=0.1))
    with pytest.raises(ValueError, match="has no option 'center', perhaps you mean 'centre'"):
        Rotational(torch.optim.AdamW([{"params": params, "center": False}], weight_decay=0.1))
