"""A sweep as one self-contained page: the map first, then arms, all settings and failures."""

from html import escape
from string import Template

from gyroscope.render.page import page_json, plotly, standalone
from gyroscope.render.theme import asset
from gyroscope.report.sweep_data import SweepData


def sweep_page(sweep: SweepData) -> str:
    """The whole page as HTML; it opens from disk, without a network."""
    return standalone(
        sweep.name,
        Template(asset("sweep.html")).substitute(title=escape(sweep.name)),
        style=asset("report.css"),
        packed={"plotly": plotly(), "data": page_json(sweep)},
        script="".join(map(asset, ("figure.js", "sweep.js", "boot.js"))),
    )
