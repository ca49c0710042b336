"""The data of a report as one self-contained page that opens from disk, without a network."""

from html import escape
from string import Template

from gyroscope.advice.layer_families import join_words
from gyroscope.render.page import page_json, plotly, standalone
from gyroscope.render.theme import asset
from gyroscope.report.run_data import Report

# Each script uses only those before it.
SCRIPTS = ("figure.js", "run_figures.js", "layer.js", "report.js")


def page(report: Report) -> str:
    """Return the whole page as HTML. Plotly and the data are compressed, so a page of a hundred layers stays small."""
    title = title_of(report)
    return standalone(
        title,
        body(title),
        style=asset("report.css"),
        packed={"plotly": plotly(), "data": page_json(report)},
        script="".join(map(asset, (*SCRIPTS, "boot.js"))),
    )


def title_of(report: Report) -> str:
    """Name of the run, or the number of runs and their names."""
    names = [run.name for run in report.runs]
    return names[0] if len(names) == 1 else f"{len(names)} runs: {join_words(names)}"


def body(title: str) -> str:
    """Return the panels, empty. Report.js fills them."""
    return Template(asset("report.html")).substitute(title=escape(title))
