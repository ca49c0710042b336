"""Samples to incidents: what happened in a run, at which step, and the likely cause."""

from gyroscope.advice.incidents.incident_findings import incident_finding, judged_steps
from gyroscope.advice.incidents.incident_search import KEPT, IncidentSearch, incidents, loss_name, named_values
from gyroscope.advice.incidents.samples import SERIES, Incident

__all__ = [
    "KEPT",
    "SERIES",
    "Incident",
    "IncidentSearch",
    "incident_finding",
    "incidents",
    "judged_steps",
    "loss_name",
    "named_values",
]
