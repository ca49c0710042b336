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
from gyroscope_lab.transfer import (
    conversion,
    conversion_back,
    conversion_start,
    conversion_tuning,
    critical_batch,
    decay_grid,
    rules,
    split,
    tuning,
    width_check,
    width_grid,
)
from gyroscope_lab.transfer._conversions import AS_CONVERTED, Factors, run_back
from gyroscope_lab.transfer._forgetting import forgetting_rate
from gyroscope_lab.transfer._networks import make_problem
from gyroscope_lab.transfer._pooled import Pooled, read_pooled
from gyroscope_lab.transfer._rules_trial import COMPARED
from gyroscope_lab.transfer._table import POOLED

from gyroscope.report.convert_data import read_trials
from gyroscope.theory.transfer_rules import FAVOURED
from gyroscope.theory.transfer_trials import TRIED
from tests.needs import muon_for
from tools import conversion_trials

RESULTS = Path(__file__).parents[2] / "results"

TUNED = replace(tuning.TUNED["mlp"], width=8, batch=8, steps=8)
TINY: dict[str, Any] = {
    "batch": (rules, rules.Config(TUNED, "batch", (0.25, 4.0), 2)),
    "tokens": (rules, rules.Config(TUNED, "tokens", (0.5,), 2)),
    "width": (rules, rules.Config(TUNED, "width", (2.0,), 2)),
    "conversion": (conversion, conversion.Config(TUNED, seeds=2)),
    "conversion_back": (conversion_back, conversion_back.Config(TUNED, seeds=2)),
    "conversion_start": (conversion_start, conversion_start.Config(TUNED, seeds=2)),
    "conversion_tuning": (conversion_tuning, conversion_tuning.Config(TUNED, ("Lion", "Hyperball"))),
    "width_grid": (width_grid, width_grid.Config(TUNED, 4.0, (1.0, 0.25), 2)),
    "decay_grid": (decay_grid, decay_grid.Config(TUNED, seeds=2)),
    "split": (split, split.Config(TUNED, 2)),
    "tuning": (tuning, tuning.Config(TUNED, (1e-3, 3e-3), (0.1, 0.3))),
}


@pytest.mark.parametrize("name", muon_for("conversion", muon_for("conversion_back", TINY)))
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
    assert (row.lr, to.batch, to.steps) == pytest.approx((4 * TUNED.lr, 32, 2))


def test_a_rule_that_loses_by_more_than_the_margin_is_judged_so():
    config = rules.Config(TUNED, "tokens", (4.0,), 3)
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


def test_the_best_weight_decay_of_each_seed_is_found_on_the_grid():
    config = decay_grid.Config(TUNED, (4.0,), 2)
    # The grid has × 1/16, × 1/4 (tau), × 1 and × 4. Rules beside the grid do not count.
    values = {"loss": np.array([[1.0, 0.9, 0.8, 1.0, 0.1, 0.1, 0.1], [0.7, 0.9, 0.8, 1.0, 0.1, 0.1, 0.1]])}
    assert decay_grid.best_orders(Result(config, values), 4.0).tolist() == [2.0, -2.0]


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


@pytest.mark.parametrize("network", ["gpt", "mlp", "cnn"])
def test_the_best_of_nine_settings_are_those_of_the_tuning_record(network):
    record = ExperimentRecord.read(RESULTS, f"transfer/conversion_tuning_{network}")
    loss = np.array(record.data["values"]["loss"]).mean(0).reshape(-1, 9)
    for name, means in zip(record.data["config"]["optimizers"], loss, strict=True):
        best = conversion_tuning.grid_of(name)[int(means.argmin())]
        assert conversion_back.BEST_OF_NINE[network][name] == best


@pytest.mark.parametrize("name", ["NAdam", "Lion", "RotationalAdamW", "Hyperball"])
def test_a_conversion_back_gives_the_tuned_settings_again(name):
    groups = run_back(TUNED, name, 0, AS_CONVERTED).optimizers[0].param_groups
    for group in groups:
        assert (group["lr"], group["weight_decay"]) == pytest.approx((TUNED.lr, TUNED.weight_decay))


def test_twice_the_learning_rate_of_lion_is_twice_that_of_adamw():
    groups = run_back(TUNED, "Lion", 0, Factors(lr=2.0)).optimizers[0].param_groups
    assert groups[0]["lr"] == pytest.approx(2 * TUNED.lr, rel=0.02)
    assert groups[0]["weight_decay"] == pytest.approx(TUNED.weight_decay, rel=0.02)


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


def test_a_largest_batch_above_the_critical_one_is_judged_so():
    config = critical_batch.Config(("mlp",), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(critical_batch, "TUNED", {"mlp": replace(TUNED, steps=60)})
        result = run_trials(critical_batch, config)
        assert len(critical_batch.plot(result).data) > 0
    assert result["signal_ratio"].shape == (2, 1, len(critical_batch.TENTHS))
    # Signal and noise are equal at half of the largest batch, then at twice.
    for ratio, outcome in ((0.5, ClaimOutcome.DOES_NOT_HOLD), (0.125, ClaimOutcome.HOLDS)):
        measured = {"signal_ratio": np.full((2, 1, len(critical_batch.TENTHS)), ratio)}
        assert [claim.outcome for claim in critical_batch.claims(Result(config, measured))] == [outcome]


def test_directions_that_forget_at_a_known_rate_are_measured_so():
    generator = torch.Generator().manual_seed(0)
    keep = np.exp(-1 / 20)
    walk = [torch.randn(400, 64, generator=generator)]
    for _ in range(200):
        walk.append(keep * walk[-1] + (1 - keep**2) ** 0.5 * torch.randn(400, 64, generator=generator))
    assert forgetting_rate(torch.nn.functional.normalize(torch.stack(walk), dim=2), 20.0) == pytest.approx(
        1 / 20, rel=0.03
    )


def test_the_coordinate_check_runs_draws_and_fails_for_a_wrong_line():
    config = replace(width_check.QUICK, steps=12, width=8, context=8, seeds=1)
    result = run_trials(width_check, config)
    assert result["over_promise"].shape == (1, len(config.parts), 3)
    assert len(width_check.plot(result).data) > 0
    wrong = Result(config, {"over_promise": np.full((2, len(config.parts), 3), 1.2)})
    assert {claim.outcome for claim in width_check.claims(wrong)} == {ClaimOutcome.DOES_NOT_HOLD}
