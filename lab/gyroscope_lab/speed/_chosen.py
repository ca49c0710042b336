"""The alarms that the first experiment chose, as numbers. All later experiments judge these and choose nothing."""

from dataclasses import dataclass
from typing import final

from gyroscope.tools import Array
from gyroscope_lab.speed._alarm import PILOT, Alarm, Candidate, Correction
from gyroscope_lab.speed._runs import Runs

CORRECTION = Correction(0.25, 0.25)


def corrected_rotation(runs: Runs) -> Array:
    """Return mid-run rotation times (fan-in/64)^¼·(steps/200)^¼."""
    return runs.mid * CORRECTION.factor(runs)


@final
@dataclass(frozen=True)
class Chosen:
    """An alarm, and whether it judges runs of SGDM too."""

    candidate: Candidate
    judges_sgd: bool = True

    def judged(self, runs: Runs) -> Runs:
        """Return the runs that it judges."""
        return runs if self.judges_sgd else runs.where(runs.optimizer != "SGDM")


# In radians per step, by the rule that was fixed before the first experiment.
BY_RULE = Candidate(Alarm("corrected mid-run rotation", (3.30e-3, 30.1e-3), 3.06e-3, 32.2e-3), corrected_rotation)
# By the same rule without SGDM, with the correction and without it. In the first experiment all false alarms of the
# slow threshold were runs of SGDM, which these do not judge.
CORRECTED_WITHOUT_SGD = Candidate(
    Alarm("corrected mid-run rotation without SGDM", (3.92e-3, 30.3e-3), 3.17e-3, 35.4e-3), corrected_rotation
)
WITHOUT_SGD = Candidate(
    Alarm("mid-run rotation without SGDM", (3.38e-3, 24.3e-3), 2.99e-3, 35.3e-3), lambda runs: runs.mid
)
ALARMS = (Chosen(BY_RULE), Chosen(CORRECTED_WITHOUT_SGD, False), Chosen(WITHOUT_SGD, False), Chosen(PILOT))
