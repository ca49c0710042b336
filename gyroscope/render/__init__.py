"""A run on disk to a page that answers: is training healthy, and if not, where and why.

report = gather(["runs/first"])
page(report), ReportText(report), page_json(report)
"""

from gyroscope.render.page import page_json
from gyroscope.render.run_data import LayerData, Report, RunData
from gyroscope.render.run_gather import gather, gather_run

__all__ = ["LayerData", "Report", "RunData", "gather", "gather_run", "page_json"]
