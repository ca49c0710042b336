"""Trials of transfer: they train, draw and judge, and what loses is judged so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gyroscope_lab.framework.claims import ClaimOutcome
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.results import ExperimentRecord
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.transfer import conversion_start, rules
from gyroscope_lab.transfer._forgetting import forgetting_rate
from gyroscope_lab.transfer._networks import TUNED, make_problem
from gyroscope_lab.transfer._pooled import Pooled, read_pooled
from gyroscope_lab.transfer._rules_trial import COMPARED
from gyroscope_lab.transfer._table import POOLED

from gyroscope.report.convert_data import read_trials
from gyroscope.theory.transfer_rules import FAVOURED
from gyroscope.theory.transfer_trials import TRIED
from tools import conversion_trials

RESULTS = Path(__file__).parents[2] / "results"

SMALL = replace(TUNED["mlp"], width=8, batch=8, steps=8)
TINY: dict[str, Any] = {
    "batch": (rules, rules.Config(SMALL, "batch", (0.25, 4.0), 2)),
    "tokens": (rules, rules.Config(SMALL, "tokens", (0.5,), 2)),
    "width": (rules, rules.Config(SMALL, "width", (2.0,), 2)),
    "conversion_start": (conversion_start, conversion_start.Config(SMALL, seeds=2)),
}


@pytest.mark.parametrize("name", TINY)
def test_a_trial_trains_draws_and_judges(name):
    module, config = TINY[name]
    result = run_trials(module, config)
    assert result["loss"].shape == (2, len(config.parts))
    assert np.isfinite(result["loss"]).all()
    assert len(module.plot(result).data) > 0
    claims = module.claims(result)
    assert len({claim.sentence for claim in claims}) == len(claims) > 0


def test_a_rule_moves_the_settings_and_the_size():
    row, to = rules.moved_settings(TINY["batch"][1], 4.0, "linear-lr")
    assert (row.lr, to.batch, to.steps) == pytest.approx((4 * SMALL.lr, 32, 2))


def test_a_rule_that_loses_by_more_than_the_margin_is_judged_so():
    config = rules.Config(SMALL, "tokens", (4.0,), 3)
    noise = np.array([-1e-3, 0.0, 1e-3])
    losses = {"copy": 1.0 + noise, "tau": 0.9 - noise, "completed": 0.905 + noise, "horizon": 0.95 + noise}
    values = {"loss": np.stack([losses[name] for _, name in config.parts], axis=1)}
    outcomes = {claim.sentence.split(": ")[1]: claim.outcome for claim in rules.claims(Result(config, values))}
    assert outcomes == {
        "copy minus the best rule (tau), nats": ClaimOutcome.DOES_NOT_HOLD,
        "completed minus the best rule (tau), nats": ClaimOutcome.HOLDS,
        "horizon minus the best rule (tau), nats": ClaimOutcome.DOES_NOT_HOLD,
        "the best rule (tau) minus copy, nats": ClaimOutcome.HOLDS,
    }


def test_seeds_that_settings_were_chosen_on_give_other_networks():
    first, again, other = (make_problem("mlp", 8, seed).validation_loss() for seed in (0, 0, 100))
    assert first == again != other


def test_the_trials_that_a_conversion_quotes_are_those_of_the_records():
    assert read_trials() == conversion_trials.trials()


def test_a_quoted_trial_is_a_difference_of_two_mean_losses():
    record = ExperimentRecord.read(RESULTS, "transfer/conversion_gpt")
    loss = dict(
        zip(record.data["config"]["optimizers"], np.array(record.data["values"]["loss"]).mean(0)[1::3], strict=True)
    )
    record = ExperimentRecord.read(RESULTS, "transfer/conversion_back_cnn")
    back = np.array(record.data["values"]["loss"]).mean(0)
    last = record.data["config"]["optimizers"][-1]
    quoted = {(each["from"], each["to"]): each for each in read_trials()}
    assert quoted["AdamW", "Muon"]["nats"]["a GPT"] == pytest.approx(loss["Muon"] - loss["AdamW"], abs=6e-4)
    assert quoted[last, "AdamW"]["nats"]["a CNN"] == pytest.approx(back[-1] - back[0], abs=6e-4)
    assert (quoted["AdamW", "Muon"]["n"], quoted[last, "AdamW"]["n"]) == (3, 5)


def pooled(means, noise):
    """The tokens axis with one network: the loss by rule, and for each seed what is added to the second rule."""
    values = np.tile([means[name] for name in COMPARED["tokens"]], (len(noise), 1))
    values[:, 1] += noise
    return Pooled("tokens", {"mlp": values}, 1)


def test_one_rule_is_supported_if_no_other_can_be_better_by_more_than_the_margin():
    means = {"copy": 1.035, "tau": 1.0, "completed": 1.03, "horizon": 1.035}
    assert pooled(means, [-1e-3, 0.0, 1e-3]).supported() == (("tau",), True)
    # With this noise tau may be worse than completed, and the picked pair may be as good as tau.
    assert pooled(means, [-0.1, 0.0, 0.1]).supported() == (("copy", "horizon"), False)


def test_a_picked_rule_that_is_decidedly_worse_gives_its_place_to_the_best_other():
    means = {"copy": 1.05, "tau": 1.02, "completed": 1.0, "horizon": 1.005}
    noisy = pooled(means, [-0.1, 0.0, 0.1])
    assert noisy.supported() == (("horizon", "completed"), False)


@pytest.mark.parametrize("axis", POOLED)
def test_the_rule_of_an_axis_is_the_one_that_the_records_support(axis):
    trials = read_pooled(RESULTS, axis, POOLED[axis])
    assert trials.supported() == ((FAVOURED["adam"][axis],), True)


@pytest.mark.parametrize(
    ("axis", "quoted"),
    [
        ("batch", {"sqrt-batch": 0.003, "copy": 0.013, "linear-lr": 0.012}),
        ("tokens", {"copy": 0.01, "tau": 0.015}),
        ("width", {"fan": 0.006, "independent": 0.019, "copy": 0.32}),
    ],
)
def test_the_losses_that_an_answer_quotes_are_those_of_the_records(axis, quoted):
    above = read_pooled(RESULTS, axis, POOLED[axis]).above_best()
    for name, value in quoted.items():
        assert f"{value:g}" in TRIED[axis].result
        # Rounded as it is quoted.
        assert float(f"{above[name].mean:.{2 if value == 0.32 else 3}f}") == value


def test_directions_that_forget_at_a_known_rate_are_measured_so():
    generator = torch.Generator().manual_seed(0)
    keep = np.exp(-1 / 20)
    walk = [torch.randn(400, 64, generator=generator)]
    for _ in range(200):
        walk.append(keep * walk[-1] + (1 - keep**2) ** 0.5 * torch.randn(400, 64, generator=generator))
    assert forgetting_rate(torch.nn.functional.normalize(torch.stack(walk), dim=2), 20.0) == pytest.approx(
        1 / 20, rel=0.03
    )
