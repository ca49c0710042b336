"""torch's NAdam over its first steps, on tangent noise, against the forecast of its rule."""

import numpy as np
import pytest
import torch
from torch.optim import NAdam

import gyroscope as gyro
from gyroscope import rule_of, theory
from tests.optim.torch_walk import walk

FAN_IN = 64


def walked(make, steps, norm):
    """Angles and norms of torch's own steps, and the rule of the optimizer."""
    generator = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.randn(256, FAN_IN, generator=generator, dtype=torch.float64))
    w.data *= norm / w.data.norm(dim=1, keepdim=True)
    optimizer = make([w])
    rule = rule_of(optimizer.param_groups[0], optimizer)
    angles, norms = walk(w, optimizer, steps, generator, 1.0)
    return np.array(angles), np.array(norms), rule


@pytest.mark.parametrize("momentum_decay", [4e-3, 0.0, 0.5])
@pytest.mark.parametrize("decoupled", [True, False], ids=["decoupled", "L2"])
def test_nadam_is_forecast_with_its_ramp_of_the_momentum(decoupled, momentum_decay):
    options = {"weight_decay": 0.25 if decoupled else 0.05, "decoupled_weight_decay": decoupled, "foreach": False}
    angles, norms, rule = walked(
        lambda params: NAdam(params, lr=1e-2, betas=(0.9, 0.99), eps=1e-30, momentum_decay=momentum_decay, **options),
        steps=600,
        norm=1.0,
    )
    f = theory.forecast(rule, steps=600, norm=1.0, fan_in=FAN_IN, unit_grad_norm=1.0)
    assert angles[:5] == pytest.approx(f.angular_update[:5], rel=0.05)
    assert angles[50:].mean() == pytest.approx(f.angular_update[50:].mean(), rel=0.02)
    assert norms[-1] == pytest.approx(f.norm[-1], rel=0.02)
    # The equilibrium of the moment moves with the ramp, and is where the angle is.
    assert f.equilibrium_angular_update[-1] == pytest.approx(angles[-100:].mean(), rel=0.05)


def test_the_equilibrium_of_nadam_is_the_one_after_the_ramp():
    literal = theory.NAdam(1e-3, 0.1)
    assert literal.replace(momentum_decay=4e-3).equilibrium(fan_in=64) == literal.equilibrium(fan_in=64)
    half = literal.replace(momentum_decay=0.0).equilibrium(fan_in=64)  # torch's momentum then stays at β1/2
    assert half.angular_update / literal.equilibrium().angular_update == pytest.approx(2.2, rel=0.05)
    assert half.norm == pytest.approx(literal.equilibrium(fan_in=64).norm, rel=0.02)


def test_a_run_that_is_followed_from_its_middle_on_has_the_ramp_of_its_steps():
    rule = theory.NAdam(1e-2, 0.25, (0.9, 0.99), momentum_decay=4e-3)
    whole = theory.forecast(rule, steps=6000, norm=1.0, fan_in=FAN_IN)
    rest = theory.forecast(rule.replace(steps_done=5000), steps=1000, norm=whole.norm[4999], fan_in=FAN_IN)
    assert rest.angular_update[100:] == pytest.approx(whole.angular_update[5100:], rel=0.01)


def test_the_tracker_predicts_the_ramp_of_nadam(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(FAN_IN, 32, bias=False)
    nadam = NAdam(model.parameters(), lr=1e-2, weight_decay=0.25, decoupled_weight_decay=True)
    with gyro.Tracker(model, nadam, tmp_path, every=5) as tracker:
        for _ in range(30):
            model.weight.grad = torch.randn(32, FAN_IN)
            nadam.step()
        run = tracker.run
    limit = theory.NAdam(1e-2, 0.25).equilibrium(fan_in=FAN_IN).angular_update
    predicted = run.series("weight", "predicted_angular_update")
    assert predicted[-1] / limit == pytest.approx(2.2, rel=0.05)
