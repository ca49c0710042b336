"""Text for a terminal or a pipe of any width: no number is broken, and columns that do not fit are named."""

import re

import pytest
import torch
from gyroscope_lab.sweeps.report import gather_sweep
from gyroscope_lab.sweeps.text import SweepText

import gyroscope as gyro
from gyroscope._text import to_text
from gyroscope.planner import plan_settings, read_settings
from gyroscope.planner.convert_settings import read_conversion
from gyroscope.planner.transfer_answer import answer_transfer
from gyroscope.render.convert_text import conversion_text
from gyroscope.render.run_text import report_text
from gyroscope.render.terminal import table
from gyroscope.render.transfer_text import transfer_text
from gyroscope.report import gather
from tests.lab.make_sweep import sweep_at

WIDTHS = range(20, 121)
# A number, a range, a share or a factor, alone between spaces.
NUMBER = re.compile(r"(?=.*\d)[~±<≥×–-]?[\d.]+(e[+-]?\d*)?([–+-][\d.]*(e[+-]?\d*)?)?[,.%*)]*")
TUNED = {"optimizer": "adamw", "lr": 4e-4, "weight_decay": 0.1, "batch": "500K", "tokens": "10B", "width": "512"}
SWEEP = "[base]\nsteps = 3\n[grid]\noptimizer = ['adamw', 'sgd']\nlr = [1e-3, 1e-2]\nweight_decay = [0.1, 0.125]\n"


def a_plan(tmp_path, runs):
    layers = [{"name": f"transformer.h.{i}.attn.c_attn.weight", "fan_in": 100 * (i + 1)} for i in range(12)]
    return plan_settings(read_settings({"optimizer": "adamw", "steps": 300, "layer": layers})).text()


def a_report(tmp_path, runs):
    return report_text(gather([runs / "imbalanced", runs / "fell_out"]))


def an_autopsy(tmp_path, runs):
    model = torch.nn.Sequential(*(torch.nn.Linear(48, 48) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return gyro.autopsy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}).text()


def a_transfer(tmp_path, runs):
    return transfer_text(answer_transfer(TUNED | {"to": "batch=2M,tokens=200B,width=2048"}))


def a_conversion(tmp_path, runs):
    inputs = {"fan_in": "256", "unit_grad_norm": "0.19,0.06", "schedule": "cosine"}
    return conversion_text(
        read_conversion({"optimizer": "adamw", "other": "sgdm", "lr": 1e-3, "weight_decay": 0.1, **inputs})
    )


def a_sweep(tmp_path, runs):
    return SweepText(gather_sweep(sweep_at(tmp_path / "sweep", SWEEP, lambda config: 0.51234567 * config.lr)))


@pytest.mark.parametrize("make", [a_plan, a_report, an_autopsy, a_transfer, a_conversion, a_sweep])
def test_no_width_breaks_a_number_of_a_table(make, tmp_path, runs):
    drawn = make(tmp_path, runs)
    whole = set(to_text(drawn, 400).split())
    for width in WIDTHS:
        lines = to_text(drawn, width).splitlines()
        assert max(map(len, lines)) <= width
        tokens = {token for line in lines for token in line.split()} - {str(width)}
        broken = {token for token in tokens - whole if NUMBER.fullmatch(token)}
        assert not broken, f"{broken} at {width} columns"


def test_columns_that_do_not_fit_are_left_out_from_the_right_and_named():
    header = ("layer", "rotation,\nrad", "÷ pre-\ndicted", "worst")
    rows = [["transformer.h.*.attn.c_attn (12)", "0.0036–0.0041", "0.912", "transformer.h.11.attn.c_attn"]]

    def lines(width):
        return [line for drawn in table(header, rows, width, (0, 3)) for line in to_text(drawn, width).splitlines()]

    assert lines(120)[-1].split() == " ".join(rows[0]).split()
    assert lines(58)[-2].split()[-2:] == ["0.0036–0.0041", "0.912"]
    assert lines(58)[-1] == "Not shown in 58 columns: worst."
    assert " ".join(lines(36)[-2:]) == "Not shown in 36 columns: ÷ predicted, worst."
    assert lines(20)[2].split()[-1] == "0.0036–0.0041"
