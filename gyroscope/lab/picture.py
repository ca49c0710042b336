"""A plotly figure as a small file: SVG by kaleido or by an installed Chrome, else a page with plotly inside."""

import html
import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gyroscope.render import theme

WIDTH, HEIGHT = 1000, 560
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PAGE = """<!doctype html><meta charset="utf-8"><body>{figure}<pre id="svg"></pre><script>
Plotly.toImage("figure", {{format: "svg", width: {width}, height: {height}}}).then(url => {{
  document.getElementById("svg").textContent = decodeURIComponent(url.slice(url.indexOf(",") + 1)); }});
</script></body>"""

# The pages' look on light ground: what is measured is solid and coloured, what is predicted dashed and in ink.
COLOURS = theme.COLOURS
INK, GROUND, GRID = (theme.light(name) for name in ("text", "ground", "line"))
MEASURED, PREDICTED = theme.SOLID, {"color": INK, **theme.DASHED}


def styled(figure: Any, title: str) -> Any:
    """The figure in the look of the pages: their ink, ground, grid, font and colours; a title above, a legend below."""
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


def draw(figure: Any, path: Path) -> Path:
    """Write the figure beside `path`, with the suffix of what could be written: .svg, or .html without a browser."""
    svg = _by_kaleido(figure) or _by_browser(figure)
    for old in (".svg", ".html"):
        path.with_suffix(old).unlink(missing_ok=True)
    if svg is None:
        path.with_suffix(".html").write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
        return path.with_suffix(".html")
    path.with_suffix(".svg").write_text(_shorter(svg) + "\n", encoding="utf-8")
    return path.with_suffix(".svg")


def _size(figure: Any) -> dict[str, int]:
    return {"width": figure.layout.width or WIDTH, "height": figure.layout.height or HEIGHT}


def _by_kaleido(figure: Any) -> str | None:
    if find_spec("kaleido") is None:
        return None
    try:
        return bytes(figure.to_image(format="svg", **_size(figure))).decode()
    except (RuntimeError, ValueError):  # kaleido is there but finds no browser
        return None


def _by_browser(figure: Any) -> str | None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return None
    shown = figure.to_html(include_plotlyjs=True, full_html=False, div_id="figure")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "figure.html"
        page.write_text(PAGE.format(figure=shown, **_size(figure)), encoding="utf-8")
        command = [browser, "--headless", "--disable-gpu", "--virtual-time-budget=20000", f"--user-data-dir={folder}/p"]
        command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command += ["--dump-dom", page.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return None
    found = re.search(r'<pre id="svg">(.+?)</pre>', done.stdout, re.DOTALL)
    return html.unescape(found.group(1)) if found else None


def _shorter(svg: str) -> str:
    """Paths with two decimals of a pixel: more than an eye sees, and half the bytes."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path.group()), svg)
