"""A run on disk to a page that answers: is training healthy, and if not, where and why.

report = gather(["runs/first"])
page(report), ReportText(report), dumps(report)
"""

from gyroscope.report.data import LayerData, Report, RunData
from gyroscope.report.encode import dumps
from gyroscope.report.runs import gather, gather_run

__all__ = ["LayerData", "Report", "RunData", "dumps", "gather", "gather_run"]
