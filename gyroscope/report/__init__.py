"""Runs, plans and checkpoints to the data that a page shows.

report = gather(["runs/first"])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyroscope.report.run_data import LayerData, Report, RunData
    from gyroscope.report.run_gather import gather, gather_run

# The file that makes a folder a sweep, which the lab reports on.
SWEEP_FILE = "sweep.toml"

__all__ = ["SWEEP_FILE", "LayerData", "Report", "RunData", "gather", "gather_run"]


def __getattr__(name: str) -> Any:
    """Import the reader of runs when it is first asked for: plans and transfers start without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gyroscope.report import run_data, run_gather

    return getattr(run_gather if name.startswith("gather") else run_data, name)
