"""Trials of remedies: they run and draw, and a remedy that raises the loss is judged so."""

import numpy as np
import pytest
from gyroscope_lab.framework.claims import ClaimOutcome, confidence_interval
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.remedies import _table
from gyroscope_lab.remedies import experiments as remedies

SETTINGS = {"task": "digits", "model": "mlp:width=8", "norm": "none", "steps": 80, "lr": 1e-3}


def test_a_trial_trains_as_it_was_and_as_advised():
    task = remedies.Task("digits", {**SETTINGS, "betas": (0.95, 0.5)}, {"betas": (0.95, 0.99)})
    result = run_trials(remedies, remedies.Config("unstable_betas", (task,), seeds=2))
    assert result["loss"].shape == (2, 2)
    assert result["found"].tolist() == [[1, 0], [1, 0]]
    assert len(remedies.plot(result).data) == 2
    assert [claim.sentence.split(":")[0] for claim in remedies.claims(result)] == ["digits", "digits"]


@pytest.mark.parametrize(
    ("change", "outcome", "word"),
    [
        (-0.2, ClaimOutcome.HOLDS, "helps"),
        (0.0, ClaimOutcome.UNDECIDED, "no harm seen"),
        (0.2, ClaimOutcome.DOES_NOT_HOLD, "**harms**"),
    ],
)
def test_harm_is_called_harm(change, outcome, word):
    noise = np.array([-0.01, 0.0, 0.01])
    values = {"loss": np.stack([1.0 + 0 * noise, 1.0 + change + noise], axis=1), "found": np.ones((3, 2))}
    config = remedies.Config("unstable_betas", (remedies.Task("digits", SETTINGS, {}),))
    made, judged = remedies.claims(Result(config, values))
    assert made.outcome == ClaimOutcome.HOLDS
    assert judged.outcome == outcome
    assert _table.outcome(confidence_interval(values["loss"][:, 1] - values["loss"][:, 0])) == word
