"""Measurements to words: what a run's numbers mean, and what to do about it."""

from gyroscope.advice.diagnose import diagnose
from gyroscope.advice.findings import Diagnosis, Verdict
from gyroscope.advice.record import Record

__all__ = ["Diagnosis", "Record", "Verdict", "diagnose"]
