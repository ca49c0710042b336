"""Runs, plans, checkpoints and sweeps to the data that a page shows.

report = gather(["runs/first"])
"""

from gyroscope.report.run_data import LayerData, Report, RunData
from gyroscope.report.run_gather import gather, gather_run

__all__ = ["LayerData", "Report", "RunData", "gather", "gather_run"]
