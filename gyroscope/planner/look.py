"""How every page of the library looks: its colours, its style sheet and the few lines that switch light and dark."""

from importlib.resources import files

# Okabe and Ito's colours: told apart by every kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")


def style() -> str:
    """The style sheet that all pages share."""
    return files("gyroscope.planner").joinpath("look.css").read_text(encoding="utf-8")


def script() -> str:
    """Light and dark, by the reader's system or by a button, for the page and for what Plotly draws on it."""
    return files("gyroscope.planner").joinpath("look.js").read_text(encoding="utf-8")
