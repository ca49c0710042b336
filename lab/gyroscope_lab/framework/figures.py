"""Plotly figures in the style of the pages, written as small SVG files, or as pages if there is no browser."""

import os
import re
import shutil
from pathlib import Path
from typing import Any, final
from urllib.parse import unquote

import numpy as np
from numpy.typing import ArrayLike, NDArray
from plotly.graph_objects import Figure as Figure  # what every experiment draws
from plotly.graph_objects import Scatter
from plotly.subplots import make_subplots

from gyroscope.render import theme
from gyroscope.tools import write_text

WIDTH = 1000
HEIGHT = 560
# Milliseconds that a browser may take to start or to draw. Playwright's 30 seconds are too few on a busy machine.
PATIENCE = 300_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")

# The style of the pages on a light background: measurements are solid and coloured, predictions dashed and black.
COLOURS = theme.COLOURS
INK = theme.light("text")
GROUND = theme.light("ground")
GRID = theme.light("line")
MEASURED = theme.SOLID
PREDICTED = theme.DASHED

# A logarithmic axis with a label at every power of ten.
DECADES = {"type": "log", "dtick": 1, "exponentformat": "power"}


def styled(figure: Figure, title: str) -> Figure:
    """Return the figure with colours, font and grid of the pages, a title above and a legend below."""
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "font": {"size": 18}, "x": 0.02},
        paper_bgcolor=GROUND,
        plot_bgcolor=GROUND,
        font={"family": theme.FONT, "size": 14, "color": INK},
        colorway=COLOURS,
        legend={"orientation": "h", "yanchor": "top", "y": -0.13, "x": 0},
        margin={"l": 70, "r": 30, "t": 80, "b": 90},
        width=WIDTH,
        height=HEIGHT,
    )
    axis = {"gridcolor": GRID, "linecolor": GRID, "zerolinecolor": GRID}
    return figure.update_xaxes(axis).update_yaxes(axis)


def shown_steps(steps: int, points: int) -> NDArray[np.intp]:
    """Return about `points` evenly spaced steps of 0 … steps-1, which are drawn."""
    return np.unique(np.linspace(0, steps - 1, points).astype(np.intp))


@final
class Panels:
    """A figure of panels, counted from 0 row by row. Each name is in the legend once, even if several panels have it.

    titles   one for each panel. Without any there is one panel
    rows     of panels
    options  of plotly's make_subplots
    """

    def __init__(self, *titles: str, rows: int = 1, **options: Any) -> None:
        self.columns = max(len(titles), 1) // rows
        self.figure = make_subplots(rows, self.columns, subplot_titles=titles or None, **options)
        self._named: set[str] = set()

    def line(self, panel: int, x: ArrayLike, y: ArrayLike, name: str = "", colour: str = INK, **style: Any) -> None:
        """Draw a line, solid unless `style` has a dash."""
        self._add(panel, Scatter(x=x, y=y, mode="lines", line={"color": colour, **style}), name)

    def predicted(self, panel: int, x: ArrayLike, y: ArrayLike, name: str, colour: str = INK, **style: Any) -> None:
        """Draw a line in the dashes of a prediction."""
        self.line(panel, x, y, name, colour, **PREDICTED | style)

    def dots(self, panel: int, x: ArrayLike, y: ArrayLike, name: str = "", colour: str = INK, **marker: Any) -> None:
        """Draw points, filled circles unless `marker` has a symbol."""
        self._add(panel, Scatter(x=x, y=y, mode="markers", marker={"color": colour, **marker}), name)

    def level(self, panel: int, y: float, **style: Any) -> None:
        """Draw a predicted value: a dashed line across the panel."""
        self.figure.add_hline(y=y, line={"color": INK} | PREDICTED | style, **self.place(panel))

    def moment(self, panel: int, x: float, **style: Any) -> None:
        """Draw a predicted moment: a dotted line up the panel."""
        self.figure.add_vline(x=x, line={"color": INK, "dash": "dot"} | style, **self.place(panel))

    def titled(self, title: str) -> Figure:
        """Return the finished figure."""
        return styled(self.figure, title)

    def place(self, panel: int) -> dict[str, int]:
        """Return the row and column of a panel, as plotly counts them."""
        row, column = divmod(panel, self.columns)
        return {"row": row + 1, "col": column + 1}

    def _add(self, panel: int, trace: Scatter, name: str) -> None:
        trace.update(name=name, legendgroup=name, showlegend=bool(name) and name not in self._named)
        self._named.add(name)
        self.figure.add_trace(trace, **self.place(panel))


def write_figure(figure: Figure, path: Path) -> Path:
    """Write the figure to `path` as .svg, or as .html if there is no browser."""
    svg = _svg(figure)
    for old in (".svg", ".html"):
        path.with_suffix(old).unlink(missing_ok=True)
    written = path.with_suffix(".html" if svg is None else ".svg")
    write_text(written, figure.to_html(include_plotlyjs=True) if svg is None else svg)
    return written


def _svg(figure: Figure) -> str | None:
    """Return the figure as SVG, drawn by plotly in a browser that Playwright starts, or None if one is missing."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return None
    page_html = figure.to_html(include_plotlyjs=True, full_html=False, div_id="figure")
    options = {"format": "svg", "width": figure.layout.width or WIDTH, "height": figure.layout.height or HEIGHT}
    installed = next(filter(None, map(shutil.which, BROWSERS)), None)  # None: the browser that Playwright installs
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # as root, Chromium starts only without a sandbox
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=installed, chromium_sandbox=not root, timeout=PATIENCE)
            page = browser.new_page()
            page.set_default_timeout(PATIENCE)
            page.set_content(page_html)  # waits until plotly, which is in the page, has been loaded
            url = page.evaluate("options => Plotly.toImage('figure', options)", options)
            browser.close()
    except Error:  # no browser, or one that does not start
        return None
    return _shorten(unquote(url.partition(",")[2])) + "\n"


def _shorten(svg: str) -> str:
    """Shorten paths to two decimals of a pixel, which is finer than anyone can see and halves the file."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path.group()), svg)
