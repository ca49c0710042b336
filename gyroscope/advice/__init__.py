"""Numbers to findings: what a plan's predictions and a run's measurements mean, and what to do about it."""

from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.history import Record
from gyroscope.advice.run_findings import diagnose

__all__ = ["Diagnosis", "Finding", "Record", "diagnose"]
