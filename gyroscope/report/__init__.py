"""Runs, plans and checkpoints to the data that a page shows.

report = gather(["runs/first"])
"""

from typing import TYPE_CHECKING

from gyroscope._lazy import lazy_names

if TYPE_CHECKING:
    from gyroscope.report.run_gather import gather

# The file that marks a folder as a sweep. The lab reports on sweeps.
SWEEP_FILE = "sweep.toml"

__all__ = ["SWEEP_FILE", "gather"]
__getattr__ = lazy_names(__name__, {"gather": "gyroscope.report.run_gather"})
