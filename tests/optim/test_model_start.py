"""Gains and starting norms as arguments of the constructor."""

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.optim import RotationalAdamW, RotationalLion, RotationalSGD, to_equilibrium_
from gyroscope.store import open_run


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def norms(model):
    return [p.detach().norm(dim=1) for p in model.parameters() if p.dim() == 2]


def test_gain_and_start_in_one_line_are_the_three_calls():
    one, three = network(), network()
    optimizer = RotationalAdamW(one, lr=1e-2, gain=True, start="equilibrium")
    gyro.nn.add_gain(three)
    other = RotationalAdamW(three, lr=1e-2)
    to_equilibrium_(three, other)
    for (name, p), (same, q) in zip(one.named_parameters(), three.named_parameters(), strict=True):
        assert name == same
        assert torch.equal(p, q)
    assert [g["param_names"] for g in optimizer.param_groups] == [g["param_names"] for g in other.param_groups]
    assert not {"gain", "start", "start_from"} & optimizer.param_groups[0].keys()


def finished_run(path):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
    with gyro.Tracker(model, optimizer, path, every=1):
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize(
    "make", [RotationalAdamW, RotationalLion, lambda model, **options: RotationalSGD(model, 0.1, **options)]
)
def test_a_model_starts_at_the_norms_at_which_a_run_ended(make, gain, tmp_path):
    trained = finished_run(tmp_path / "run")
    model = network()
    directions = [p.detach() / p.detach().norm() for p in model.parameters() if p.dim() == 2]
    make(model, start_from=open_run(tmp_path / "run"), gain=gain)
    weights = [p.detach() for name, p in model.named_parameters() if p.dim() == 2 and not name.endswith("gain")]
    for weight, end, direction in zip(weights, norms(trained), directions, strict=True):
        torch.testing.assert_close(weight.norm(), end.norm(), rtol=1e-4, atol=0.0)
        torch.testing.assert_close(weight / weight.norm(), direction)


@pytest.mark.parametrize("options", [{"gain": True}, {"start": "equilibrium"}, {"start_from": object()}])
def test_a_start_without_the_model_is_an_error_with_the_remedy(options):
    (name,) = options
    with pytest.raises(
        ValueError, match=rf"{name}=… changes the model, .* pass the model itself as the first argument"
    ):
        RotationalAdamW(network().parameters(), **options)


def test_two_starts_an_unknown_one_and_one_that_needs_gradients_are_errors(tmp_path):
    finished_run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    with pytest.raises(ValueError, match="are two starts: pass one of them"):
        RotationalAdamW(network(), start="equilibrium", start_from=run)
    with pytest.raises(ValueError, match="start='zero' is unknown: choose 'initial' or 'equilibrium'"):
        RotationalAdamW(network(), start="zero")
    with pytest.raises(ValueError, match=r"start='equilibrium' with RotationalSGD, .*to_equilibrium_\(.* loss=…\)"):
        RotationalSGD(network(), 0.1, start="equilibrium")
    with pytest.raises(ValueError, match=r"start_from has no norm of 'weight': it has 0.weight"):
        RotationalAdamW(nn.Linear(8, 4), start_from=run)
