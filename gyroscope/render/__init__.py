"""A run on disk to a page that answers: is training healthy, and if not, where and why.

report = gather(["runs/first"])
page(report), ReportText(report), dumps(report)
"""

from gyroscope._json import dumps
from gyroscope.render.gather_runs import gather, gather_run
from gyroscope.render.run_data import LayerData, Report, RunData

__all__ = ["LayerData", "Report", "RunData", "dumps", "gather", "gather_run"]
