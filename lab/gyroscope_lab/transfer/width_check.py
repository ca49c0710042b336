"""Rotation and norm of a GPT over its width are on the line that each transfer rule promises, within 10 % (ours).

This is a coordinate check for rotation, with the GPT of `invariants_gpt` at 1 to 8 times the width. If the line of a
rule is flat, the rule keeps the quantity.
"""

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._rules_trial import COMPARED
from gyroscope_lab.transfer.invariants_gpt import QUANTITIES, WITHIN, Config, measure

__all__ = ["measure"]

COST = {"quick": "3 min", "paper": "1 h"}
# The run is too short to measure how fast directions are forgotten.
DRAWN = QUANTITIES[:2]
RATIOS = (1.0, 2.0, 4.0, 8.0)
PARTS = tuple(("width", ratio, name) for ratio in RATIOS for name in COMPARED["width"] if ratio > 1 or name == "copy")
QUICK = Config(steps=500, parts=PARTS, seeds=3)
PAPER = Config(steps=4000, parts=PARTS, seeds=3)


def over_promise(result: Result[Config], ratio: float, name: str) -> Array:
    """Return each quantity over a rule's prediction, (seeds, quantities). At the tuned width all rules equal copy."""
    part = ("width", ratio, name if ratio > 1 else "copy")
    return result["over_promise"][:, result.config.parts.index(part)]


def promised(config: Config, ratio: float, name: str) -> Array:
    """Return the rotation in radians per step and the RMS entry that a rule predicts."""
    row, _ = config.promised("width", ratio, name)
    return np.array([row.rotation, row.rms_entry], dtype=np.float64)


def plot(result: Result[Config]) -> Figure:
    """Draw rotation and norm over the width: a line for the prediction of each rule, and dots for measurements."""
    config = result.config
    panels = Panels("rotation, rad per step", "RMS entry", horizontal_spacing=0.1)
    widths = [config.width * ratio for ratio in RATIOS]
    for name, colour in zip(COMPARED["width"], COLOURS, strict=False):
        lines = np.array([promised(config, ratio, name) for ratio in RATIOS])
        for panel in range(len(DRAWN)):
            panels.line(panel, widths, lines[:, panel], name, colour)
            for ratio, width, line in zip(RATIOS, widths, lines, strict=True):
                values = over_promise(result, ratio, name)[:, panel] * line[panel]
                panels.dots(panel, np.full(len(values), width), values, colour=colour, size=7)
    panels.figure.update_xaxes(title_text="width", type="log", tickvals=widths)
    panels.figure.update_yaxes(type="log")
    return panels.titled("A GPT over its width: lines are promised, dots are measured")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the distance from the line at each width, for every rule."""
    judged = []
    for _, ratio, name in result.config.parts:
        off = np.abs(over_promise(result, ratio, name) - 1)
        for panel, quantity in enumerate(DRAWN):
            sentence = f"width × {ratio:g}, {name}: {quantity}, distance from the line"
            judged.append(at_most(sentence, WITHIN, off[:, panel]))
    return judged
