"""The alarms that the first look has chosen, as numbers: all later looks judge these and choose nothing."""

from gyroscope_lab.speed._alarm import PILOT, UNITS, Alarm, Candidate

UNIT = "mid-run rotation"


def _alarm(name: str, band: tuple[float, float], slow: float, fast: float) -> Candidate:
    return Candidate(Alarm(name, band, slow, fast), UNITS[UNIT])


# By the rule that was fixed before the first look, in radians per step.
BY_RULE = _alarm("chosen by the rule", (0.0, 0.0), 0.0, 0.0)
# By the same rule without SGDM. In the first look nearly all false alarms were runs of SGDM, which this alarm does not
# judge.
WITHOUT_SGD = _alarm("chosen by the rule without SGDM", (0.0, 0.0), 0.0, 0.0)
ALARMS = (BY_RULE, WITHOUT_SGD, PILOT)
