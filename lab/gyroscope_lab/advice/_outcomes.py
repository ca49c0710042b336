"""Whether a situation is bad, and what its remedy does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np

from gyroscope_lab.framework.claims import ConfidenceInterval, confidence_interval
from gyroscope_lab.framework.experiment import Result

# A run is bad if its loss is this much above the tuned one, in nats, or its accuracy this much below.
BAD_LOSS = 0.05
BAD_ACCURACY = 0.02
# A remedy raises the loss if the whole interval is above this, in nats.
HARM = 0.01
Effect = Literal["lowers the loss", "no effect seen", "raises the loss", "none"]


@final
@dataclass(frozen=True)
class Outcome:
    """A situation on a network: losses before and after the remedy and of the tuned run, as means over seeds.

    change  of the loss by the remedy, with its interval
    effect  of the remedy, "none" if fewer than half of the seeds are told one
    """

    part: str
    before: float
    after: float
    tuned: float
    change: ConfidenceInterval
    is_bad: bool
    effect: Effect


class Score(NamedTuple):
    """How many situations have which outcome. The first four are bad ones, and `good` are all others."""

    improved: int
    useless: int
    silent: int
    harmed_bad: int
    harmed: int
    good: int
    disturbed: int

    def __str__(self) -> str:
        bad = self.improved + self.useless + self.silent + self.harmed_bad
        return (
            f"{bad} bad situations: {self.improved} have a remedy that lowers the loss, {self.useless} one without an "
            f"effect that was seen, {self.harmed_bad} one that raises it, and {self.silent} have none. "
            f"{self.disturbed} of {self.good} good ones have a remedy. {self.harmed} remedies raise the loss."
        )


def outcomes(result: Result[Any]) -> list[Outcome]:
    """Return the outcome of every part."""
    return [_outcome(result, number, part) for number, part in enumerate(result.config.parts)]


def _outcome(result: Result[Any], number: int, part: str) -> Outcome:
    losses = np.asarray(result["losses"][:, number])
    tuned = np.asarray(result["tuned_loss"][:, number])
    change = confidence_interval(losses[:, -1] - losses[:, 0])
    lost_accuracy = float((result["tuned_accuracy"] - result["accuracy"])[:, number].mean())
    before = float(losses[:, 0].mean())
    is_bad = before - tuned.mean() > BAD_LOSS or lost_accuracy > BAD_ACCURACY
    effect: Effect = "none"
    if 2 * np.count_nonzero(result["changes"][:, number]) >= len(losses):
        effect = "lowers the loss" if change.high < 0 else "raises the loss" if change.low > HARM else "no effect seen"
    return Outcome(part, before, float(losses[:, -1].mean()), float(tuned.mean()), change, bool(is_bad), effect)


def score(judged: Sequence[Outcome]) -> Score:
    """Count the outcomes."""
    bad = [each.effect for each in judged if each.is_bad]
    good = [each.effect for each in judged if not each.is_bad]
    return Score(
        improved=bad.count("lowers the loss"),
        useless=bad.count("no effect seen"),
        silent=bad.count("none"),
        harmed_bad=bad.count("raises the loss"),
        harmed=(bad + good).count("raises the loss"),
        good=len(good),
        disturbed=len(good) - good.count("none"),
    )
