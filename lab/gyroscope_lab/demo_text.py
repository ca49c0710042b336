"""The losses of the demo: a table, a closing sentence and a figure."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import ConfidenceInterval, confidence_interval
from gyroscope_lab.framework.figures import COLOURS, Panels

# Arrays by optimizer: (learning rates, seeds).
ByOptimizer = Mapping[str, Array]
LOSS_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def loss_table(lrs: Sequence[float], losses: ByOptimizer, accuracies: ByOptimizer) -> Table:
    """Return loss and accuracy of each optimizer at each learning rate, with 95 % intervals."""
    table = Table()
    table.add_column("learning rate", justify="right")
    for name in losses:
        table.add_column(f"{name}: loss", justify="right")
        table.add_column("accuracy", justify="right")
    for number, lr in enumerate(lrs):
        cells = []
        for name in losses:
            cells.append(_with_half_width(confidence_interval(losses[name][number]), 3))
            cells.append(_with_half_width(confidence_interval(100 * accuracies[name][number]), 1) + " %")
        table.add_row(f"{lr:g}", *cells)
    return table


def _with_half_width(interval: ConfidenceInterval, digits: int) -> str:
    return f"{interval.mean:.{digits}f} ± {interval.high - interval.mean:.{digits}f}"


def closing_sentence(lrs: Sequence[float], losses: ByOptimizer, accuracies: ByOptimizer) -> str:
    """Return a sentence about what the comparison shows and what it does not."""
    plain, rotational = losses
    best = int(losses[plain].mean(1).argmin())
    at_best = confidence_interval(losses[rotational][best] - losses[plain][best])
    over_rates = confidence_interval((losses[rotational] - losses[plain]).mean(0))
    points = 100 * confidence_interval((accuracies[rotational] - accuracies[plain]).mean(0)).mean
    return (
        f"{rotational} less {plain}, n = {at_best.n} seeds: the loss differs by {_signed(over_rates)} and the accuracy "
        f"by {points:+.1f} points on average over the learning rates, and the loss by {_signed(at_best)} at "
        f"{lrs[best]:g}, the best of {plain}. {_conclusion(over_rates, at_best)} Long runs, runs with a warmup, and "
        "other networks and data were not tested."
    )


def _conclusion(over_rates: ConfidenceInterval, at_best: ConfidenceInterval) -> str:
    """Return the sentence that both intervals support."""
    if at_best.high < 0:
        return "This shows a lower loss in a short run without warmup, even at the learning rate that suits SGD best."
    if over_rates.high < 0:
        return "This shows a lower loss in a short run without warmup if the learning rate is not tuned."
    return "This does not show that either of them is better."


def _signed(interval: ConfidenceInterval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def loss_figure(lrs: Sequence[float], losses: ByOptimizer, courses: ByOptimizer, tracked_lr: float) -> str:
    """Return a page with the loss over the learning rate, and the training loss over the steps, of all seeds."""
    titles = ("held-out loss over learning rate", f"training loss over steps, rate {tracked_lr:g}")
    panels = Panels(*titles, rows=2, vertical_spacing=0.14)
    for name, colour in zip(losses, COLOURS, strict=False):
        panels.line(0, lrs, losses[name].mean(1), name, colour)
        for of_seed in losses[name].T:
            panels.dots(0, lrs, of_seed, colour=colour, size=6)
        steps = np.arange(courses[name].shape[1])
        for of_seed in courses[name]:
            panels.line(1, steps, of_seed, colour=colour, width=0.7)
    panels.figure.update_xaxes(type="log", tickvals=lrs, row=1)
    for row in (1, 2):
        panels.figure.update_yaxes(type="log", tickvals=LOSS_TICKS, row=row)
    figure = panels.titled("SGD and RotationalSGD on digits")
    # The figure takes the available width, because pages are read on phones too.
    figure.update_layout(width=None, autosize=True, height=760, margin={"l": 45, "r": 15}, legend={"y": -0.07})
    page: str = figure.to_html(include_plotlyjs=True, config={"responsive": True, "displayModeBar": False})
    return page.replace("<head>", '<head><meta name="viewport" content="width=device-width">', 1)
