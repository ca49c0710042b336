"""Runs, plans and checkpoints to the data that a page shows.

report = gather(["runs/first"])
"""

from gyroscope.report.run_data import LayerData, Report, RunData
from gyroscope.report.run_gather import gather, gather_run

# The file that makes a folder a sweep, which the lab reports on.
SWEEP_FILE = "sweep.toml"

__all__ = ["SWEEP_FILE", "LayerData", "Report", "RunData", "gather", "gather_run"]
