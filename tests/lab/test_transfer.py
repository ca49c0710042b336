"""Trials of transfer: they train, draw and judge, and what loses is judged so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gyroscope_lab.framework.claims import ClaimOutcome
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.results import ExperimentRecord
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.transfer import conversion, rules, split, tuning
from gyroscope_lab.transfer._networks import make_problem

from gyroscope.report.convert_data import TRIALS
from tests.needs import muon_for

RESULTS = Path(__file__).parents[2] / "results"

TUNED = replace(tuning.TUNED["mlp"], width=8, batch=8, steps=8)
TINY: dict[str, Any] = {
    "batch": (rules, rules.Config(TUNED, "batch", (0.25, 4.0), 2)),
    "tokens": (rules, rules.Config(TUNED, "tokens", (0.5,), 2)),
    "width": (rules, rules.Config(TUNED, "width", (2.0,), 2)),
    "conversion": (conversion, conversion.Config(TUNED, seeds=2)),
    "split": (split, split.Config(TUNED, 2)),
    "tuning": (tuning, tuning.Config(TUNED, (1e-3, 3e-3), (0.1, 0.3))),
}


@pytest.mark.parametrize("name", muon_for("conversion", TINY))
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


def test_seeds_that_settings_were_chosen_on_give_other_networks():
    first, again, other = (make_problem("mlp", 8, seed).validation_loss() for seed in (0, 0, 100))
    assert first == again != other


@pytest.mark.parametrize(("place", "network"), [(0, "mlp"), (1, "gpt")])
def test_the_trials_that_a_conversion_quotes_are_those_of_the_record(place, network):
    record = ExperimentRecord.read(RESULTS, f"transfer/conversion_{network}")
    loss = np.array(record.data["values"]["loss"]).mean(0)
    names = record.data["config"]["optimizers"]
    by_name = dict(zip(names, loss.reshape(len(names), 3), strict=True))
    for name, (above, lost) in TRIALS.items():
        assert by_name[name][1] - by_name["AdamW"][1] == pytest.approx(above[place], abs=6e-4)
        assert by_name[name][1] - by_name[name].min() == pytest.approx(lost[place], abs=6e-4)
