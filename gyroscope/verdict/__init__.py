"""Measurements to words: what a run's numbers mean, and what to do about it."""

from gyroscope.verdict.diagnose import diagnose
from gyroscope.verdict.diagnosis import Diagnosis, Verdict
from gyroscope.verdict.record import Record

__all__ = ["Diagnosis", "Record", "Verdict", "diagnose"]
