"""The appearance of every page: colours, style sheet, and the script that switches light and dark."""

import json
import re
from importlib.resources import files
from typing import Any

# Okabe and Ito's colours: distinct for every kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
# Colours of runs: those above, and others for pages of many runs.
RUN_COLOURS = (
    *COLOURS,
    *("#aa4499", "#117733", "#cc6677", "#999933", "#44aa99", "#8b7bd8", "#a0522d", "#c71585", "#6b8e23", "#e07b5a"),
    *("#4d9078", "#b8860b", "#7a8ba8"),
)
FONT = "system-ui, sans-serif"
# Grid and reference lines, on a light and on a dark background.
GREY = "#888888"
# Lines: solid for measurements, dashed for predictions.
SOLID: dict[str, Any] = {"width": 2}
DASHED: dict[str, Any] = {"width": 1.5, "dash": "dash"}


def asset(name: str) -> str:
    """Return the text of a style sheet, script or HTML file of `render/assets`."""
    return files("gyroscope.render").joinpath("assets", name).read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet that all pages share."""
    return asset("theme.css")


def light(name: str) -> str:
    """Return a colour of the style sheet on a light background, for pictures outside a page.

    >>> light("text")
    '#1b1f24'
    """
    match = re.search(rf"--{name}: (#[0-9a-f]+)", style())
    if match is None:
        raise ValueError(f"theme.css names no colour {name!r}")
    return match.group(1)


def script() -> str:
    """Return the script that sets colours and switches light and dark, by the reader's system or by a button."""
    return f"{asset('theme.js')}Look.colours = {json.dumps(RUN_COLOURS)};\n"
