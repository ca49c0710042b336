"""A transfer from a measured run or an optimizer."""

import json

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.cli import main
from gyroscope.theory import AdamW, Scale, transfer

STEPS = 120


def train(path, width=16, batch=32, lr=0.02, weight_decay=2.0, steps=STEPS, make=torch.optim.AdamW):
    """A run whose gradients are noise, so that what theory promises comes true."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False))
    weights = list(model.parameters())
    for weight in weights:
        weight.data *= 0.1 * width**0.5 / weight.data.norm(dim=1, keepdim=True)
    optimizer = make(weights, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 12))
    with gyro.Tracker(model, optimizer, path, every=4) as tracker:
        for step in range(steps):
            for weight in weights:
                size = weight.detach().norm(dim=1, keepdim=True)
                unit = weight.detach() / size
                noise = torch.randn(weight.shape)
                weight.grad = (noise - (noise * unit).sum(1, keepdim=True) * unit) / size
            optimizer.step()
            scheduler.step()
            tracker.log(batch_size=batch)
            if step % 20 == 0:
                tracker.flush()  # these steps are faster than any training, and samples would be left out
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run") / "tuned")


def answer(capsys, *argv):
    assert main(["transfer", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_has_its_settings_length_batch_width_and_schedule(run, capsys):
    data = answer(capsys, "--from", run, "--to", "batch=128")
    assert data["optimizer"]["name"] == "AdamW"
    # At the peak, and not at the first step of the warmup.
    assert (data["optimizer"]["lr"], data["optimizer"]["weight_decay"]) == pytest.approx((0.02, 2.0))
    assert data["base"] == {"batch": 32.0, "tokens": 32.0 * STEPS, "width": 16.0, "depth": None, "params": None}
    in_warmup = sum((step + 1) / 12 for step in range(12))
    assert data["tuned"]["run_length"] == pytest.approx(0.04 * (STEPS - 12 + in_warmup), rel=0.02)
    # The tuned start is that of the run, with entries of 0.1.
    assert data["tuned"]["start_over_rotation"] == pytest.approx(data["tuned"]["rms_entry"] / 0.1, rel=0.02)


def test_a_length_in_tokens_gives_the_batch_of_a_run(run, capsys):
    data = answer(capsys, "--from", run, "--tokens", "1.2M", "--to", "tokens=4.8M")
    assert data["base"]["batch"] == pytest.approx(1e4)
    assert data["unit"] == "tokens"


def test_what_is_given_replaces_what_was_measured(run, capsys):
    data = answer(capsys, "--from", run, "--lr", "0.01", "--width", "64", "--schedule", "cosine", "--to", "width=128")
    assert (data["optimizer"]["lr"], data["base"]["width"], data["schedule"]["name"]) == (0.01, 64, "cosine")


def test_a_rotational_run_is_transferred_by_the_settings_that_set_its_angle(tmp_path, capsys):
    tuned = train(tmp_path / "tuned", make=gyro.optim.RotationalAdamW)
    argv = ("--from", tuned, "--to", "batch=128")
    data = answer(capsys, *argv)
    row = next(row for row in data["rules"] if row["name"] == "tau")
    # A run in steps keeps its steps, so that it sees four times the samples.
    assert (row["lr"], row["weight_decay"]) == pytest.approx((0.04, 1.0))
    assert (row["rms_entry"], row["start_over_rotation"]) == (None, 1.0)
    assert main(["transfer", *map(str, argv)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    # tau for the batch and horizon for the samples.
    assert f"Use lr {0.04 * 4**-0.32:.4f} and weight decay 4 for hidden weights. (tau for batch × 4, horizon for" in out
    assert "Tuned: AdamW(lr=0.02, weight_decay=2, betas=(0.9, 0.95)), measured schedule, batch 32, 120 steps" in out


def test_a_rotational_optimizer_is_transferred_like_the_one_inside():
    sizes = {"base": Scale(16, 16e3), "to": Scale(64, 16e3)}
    settings = {"lr": 1e-2, "weight_decay": 0.3, "betas": (0.9, 0.95)}
    optimizer = gyro.optim.RotationalAdamW([nn.Parameter(torch.ones(4, 8))], **settings)
    moved = gyro.transfer(optimizer, **sizes).recommended
    assert {row.rms_entry for row in moved} == {None}
    free = transfer(AdamW(**settings), **sizes).recommended
    assert [(row.name, row.lr, row.weight_decay) for row in moved] == [(r.name, r.lr, r.weight_decay) for r in free]


def test_an_optimizer_is_transferred_by_its_first_group_that_decays():
    weights = [nn.Parameter(torch.ones(4, 8)) for _ in range(2)]
    groups = [{"params": weights[:1], "weight_decay": 0.0}, {"params": weights[1:], "weight_decay": 0.3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    sizes = {"base": Scale(16, 16e3), "to": Scale(64, 16e3)}
    assert gyro.transfer(optimizer, **sizes).rows == transfer(AdamW(1e-2, 0.3, (0.9, 0.95)), **sizes).rows


def test_an_optimizer_without_weight_decay_is_refused():
    sizes = {"base": Scale(16, 16e3), "to": Scale(64, 16e3)}
    with pytest.raises(ValueError, match="no group of AdamW has weight decay"):
        gyro.transfer(torch.optim.AdamW([torch.ones(4, 8)], weight_decay=0.0), **sizes)
    with pytest.raises(ValueError, match="needs a theory rule or a torch optimizer, not str"):
        gyro.transfer("adamw", **sizes)
