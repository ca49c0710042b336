"""Samples to incidents: what happened in a run, at which step, and the likely cause."""

from gyroscope.advice.incidents.incident_detector import IncidentDetector
from gyroscope.advice.incidents.incident_findings import incident_finding, judged_steps
from gyroscope.advice.incidents.incident_search import IncidentSearch, incidents, logged_loss, loss_name
from gyroscope.advice.incidents.layer_values import SERIES, Incident

__all__ = [
    "SERIES",
    "Incident",
    "IncidentDetector",
    "IncidentSearch",
    "incident_finding",
    "incidents",
    "judged_steps",
    "logged_loss",
    "loss_name",
]
