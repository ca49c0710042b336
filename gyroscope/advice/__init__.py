"""Numbers to findings: the meaning of predictions and measurements, and what to do about them."""

from typing import TYPE_CHECKING

from gyroscope._lazy import lazy_names
from gyroscope.advice.findings import Finding, Findings

if TYPE_CHECKING:
    from gyroscope.advice.record import Record
    from gyroscope.advice.run_findings import diagnose

__all__ = ["Finding", "Findings", "Record", "diagnose"]
__getattr__ = lazy_names(__name__, {"Record": "gyroscope.advice.record", "diagnose": "gyroscope.advice.run_findings"})
