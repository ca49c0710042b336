"""Scores of arms side by side, for figures of several panels."""

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import confidence_interval
from gyroscope_lab.framework.figures import INK, Panels


def draw_scores(panels: Panels, panel: int, name: str, scores: Array, colour: str) -> None:
    """Draw one score per seed as dots at `name` on the x axis, and their mean with its 95 % interval."""
    interval = confidence_interval(scores)
    panels.dots(panel, np.full(len(scores), name), scores, colour=colour, size=7)
    panels.figure.add_scatter(
        x=[name],
        y=[interval.mean],
        error_y={"array": [interval.high - interval.mean], "color": INK},
        mode="markers",
        marker={"color": INK, "size": 9},
        showlegend=False,
        **panels.place(panel),
    )
