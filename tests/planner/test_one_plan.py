"""`gyroscope plan` is `gyro.plan` on layers made from flags: equal numbers give equal findings, for every rule."""

import io
import json
import math
from contextlib import redirect_stdout

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope._files import read_toml
from gyroscope.cli import main
from gyroscope.planner import rule_settings
from gyroscope.planner.rule_settings import RULES

FAN_IN = 64
ROWS = 16
UNIT_GRAD_NORM = 0.5
STEPS = 1000
STARTS = (0.25, 0.92, 1.0, 4.0)
"""Initial norm over the equilibrium's; at 0.92 an SGDM layer turns 1.18 times as fast as settled."""

# The rule of an optimizer always has its momentum.
TYPICAL = {**rule_settings.TYPICAL, "hyperball": {"lr": 0.01, "momentum": 0.95}}

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "sgdm": torch.optim.SGD,
    "lion": gyro.optim.Lion,
    "nadam": lambda params, **options: torch.optim.NAdam(params, decoupled_weight_decay=True, **options),
    "adam_l2": torch.optim.Adam,
    "nadam_l2": torch.optim.NAdam,
    "adam_s": gyro.optim.AdamS,
    "adam_srt": gyro.optim.AdamSRT,
    "sgd_mrt": gyro.optim.SGDMRT,
    "k_adam": gyro.optim.KAdam,
    "muon": torch.optim.Muon,
    "adafactor": torch.optim.Adafactor,
    "hyperball": lambda params, **options: gyro.optim.Rotational(
        torch.optim.SGD(params, **options), mode="hyperball", granularity="neuron"
    ),
}


class Rows(nn.Module):
    """Weight vectors of the same norm, and a loss of their directions whose gradient has a known size."""

    def __init__(self, norm):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        directions, targets = (nn.functional.normalize(torch.randn(ROWS, FAN_IN, generator=generator)) for _ in "ab")
        self.weight = nn.Parameter(norm * directions)
        across = targets - (targets * directions).sum(1, keepdim=True) * directions
        self.target = UNIT_GRAD_NORM * nn.functional.normalize(across) + directions

    def loss(self, model):
        return (nn.functional.normalize(model.weight) * self.target).sum()


def settings_file(path, rule, norm):
    numbers = "\n".join(f"{name} = {json.dumps(value)}" for name, value in TYPICAL[rule].items())
    path.write_text(
        f'optimizer = "{rule}"\nsteps = {STEPS}\n{numbers}\n[[layer]]\nname = "weight"\nfan_in = {FAN_IN}\n'
        f"shape = [{ROWS}, {FAN_IN}]\nunit_grad_norm = {UNIT_GRAD_NORM}\ninit_norm = {norm}\n"
    )
    return path


def norms(rule, start):
    """Of the vectors that turn, and of one row: Muon turns the whole matrix."""
    equilibrium = RULES[rule](**TYPICAL[rule]).equilibrium(
        fan_in=FAN_IN, unit_grad_norm=UNIT_GRAD_NORM, shape=(ROWS, FAN_IN)
    )
    # Hyperball and Adafactor have no norm to settle at.
    settled = equilibrium.norm is not None and math.isfinite(equilibrium.norm)
    norm = start * (equilibrium.norm if settled else 1.0)
    return norm, norm / (ROWS**0.5 if rule == "muon" else 1.0)


def model_plan(rule, norm):
    model = Rows(norm)
    optimizer = OPTIMIZERS[rule](model.parameters(), **TYPICAL[rule])
    return gyro.plan(model, optimizer, steps=STEPS, loss=model.loss)


def printed(*argv):
    text = io.StringIO()
    with redirect_stdout(text):
        assert main([str(arg) for arg in argv]) == 0
    return text.getvalue()


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("rule", RULES)
def test_both_warn_or_neither_does(rule, start, tmp_path):
    norm, row_norm = norms(rule, start)
    by_flags = printed("plan", "--config", settings_file(tmp_path / "plan.toml", rule, norm))
    assert is_warning(by_flags) == is_warning(str(model_plan(rule, row_norm)))


def is_warning(text):
    return any(line.startswith(("!", "✗")) for line in text.splitlines())


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("rule", RULES)
def test_both_give_the_same_findings_and_facts(rule, start, tmp_path):
    from gyroscope.planner import plan_settings, read_settings

    norm, row_norm = norms(rule, start)
    config = read_toml(settings_file(tmp_path / "plan.toml", rule, norm))
    by_settings, by_model = plan_settings(read_settings(config)), model_plan(rule, row_norm)
    assert by_model.predictions[0].rule == by_settings.predictions[0].rule
    assert spoken(by_model.findings) == spoken(by_settings.findings)
    assert by_model.facts == by_settings.facts
    assert str(by_model) == str(by_settings)


def spoken(findings):
    return [(f.kind, f.severity, f.layers, f.sentence, f.remedy, f.formula) for f in findings]


def test_both_agree_on_several_layers_under_a_schedule(tmp_path):
    from gyroscope.planner import plan_settings, read_settings

    model = nn.ModuleDict({"small": nn.Linear(64, 8, bias=False), "large": nn.Linear(256, 8, bias=False)})
    nn.init.constant_(model["small"].weight, 1 / 8)
    nn.init.constant_(model["large"].weight, 1 / 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    by_model = gyro.plan(model, optimizer, gyro.theory.cosine(STEPS, warmup=50), steps=STEPS)
    path = tmp_path / "plan.toml"
    path.write_text(
        f'optimizer = "adamw"\nlr = 1e-2\nweight_decay = 0.1\nsteps = {STEPS}\nschedule = "cosine"\nwarmup = 50\n'
        '[[layer]]\nname = "small.weight"\nfan_in = 64\ninit_norm = 1.0\n'
        '[[layer]]\nname = "large.weight"\nfan_in = 256\ninit_norm = 8.0\n'
    )
    by_settings = plan_settings(read_settings(read_toml(path)))
    assert by_model.findings.kinds == ("layer_imbalance",)
    assert by_model.findings.summary[-1].startswith("The run is too short for equilibrium")
    assert str(by_model) == str(by_settings)
