"""Claims and figures that compare transfer rules by their losses."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_most, confidence_interval
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels

K = TypeVar("K")

# A loss within this many nats of the best rule counts as kept. The margin was fixed before the trials.
MARGIN = 0.01
# The rules that are compared when an axis changes.
COMPARED = {
    "batch": ("copy", "sqrt-batch", "tau", "tau-wd", "linear-lr"),
    "tokens": ("copy", "tau", "completed", "horizon"),
    "width": ("copy", "mup", "independent", "fan"),
}


def losses_of(result: Result[Any], change: Any) -> dict[Any, Array]:
    """Return the loss by rule for one change of scale, one value for each seed."""
    config = result.config
    return {name: result["loss"][:, number] for number, (size, name) in enumerate(config.parts) if size == change}


def best_of(losses: Mapping[K, Array]) -> K:
    """Return the name with the lowest mean loss."""
    return min(losses, key=lambda name: float(losses[name].mean()))


def claims_within_margin(result: Result[Any], describe: Any) -> list[Claim]:
    """Judge for each change and rule whether its loss is within the margin of the best rule's, and the best by copy.

    The best rule is the one with the lowest mean on the same seeds, so the judgement is strict.
    """
    judged = []
    for change in dict.fromkeys(size for size, _ in result.config.parts):
        losses = losses_of(result, change)
        best = best_of(losses)
        for name, of_rule in losses.items():
            if name != best:
                sentence = f"{describe(change)}: {name} minus the best rule ({best}), nats"
                judged.append(at_most(sentence, MARGIN, of_rule - losses[best]))
        if best != "copy":
            gain = losses[best] - losses["copy"]
            judged.append(at_most(f"{describe(change)}: the best rule ({best}) minus copy, nats", 0.0, gain))
    return judged


def plot_rules(result: Result[Any], describe: Any, title: str) -> Figure:
    """Return one panel for each change: a dot for each seed, and the mean with its interval."""
    changes = list(dict.fromkeys(size for size, _ in result.config.parts))
    panels = Panels(*(describe(change) for change in changes), horizontal_spacing=0.08)
    for panel, change in enumerate(changes):
        for i, (name, values) in enumerate(losses_of(result, change).items()):
            interval = confidence_interval(values)
            panels.dots(panel, np.full(len(values), name), values, colour=COLOURS[i % len(COLOURS)], size=7)
            bars = {"array": [interval.high - interval.mean], "color": INK}
            panels.figure.add_scatter(
                x=[name],
                y=[interval.mean],
                error_y=bars,
                mode="markers",
                marker={"color": INK, "size": 9},
                showlegend=False,
                **panels.place(panel),
            )
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled(title)
