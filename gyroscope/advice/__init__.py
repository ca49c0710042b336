"""Numbers to findings: what a plan's predictions and a run's measurements mean, and what to do about it."""

from gyroscope.advice.diagnose import diagnose
from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.history import Record

__all__ = ["Diagnosis", "Finding", "Record", "diagnose"]
