"""A sweep as one self-contained page: the map first, then arms, all settings and failures."""

from html import escape
from importlib.resources import files
from string import Template

from gyroscope.render.page import page_json, plotly, standalone
from gyroscope.render.theme import asset
from gyroscope_lab.sweeps.data import SweepData


def sweep_page(sweep: SweepData) -> str:
    """Return the whole page as HTML. It opens from disk, without a network."""
    return standalone(
        sweep.name,
        Template(own_asset("sweep.html")).substitute(title=escape(sweep.name)),
        style=asset("report.css"),
        packed={"plotly": plotly(), "data": page_json(sweep)},
        script=asset("figure.js") + own_asset("sweep.js") + asset("boot.js"),
    )


def own_asset(name: str) -> str:
    """Return the text of a file of `sweeps/assets`."""
    return files("gyroscope_lab.sweeps").joinpath("assets", name).read_text(encoding="utf-8")
