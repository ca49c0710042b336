"""A small chart for the terminal: a solid and a dashed curve over the steps of a run, on a logarithmic scale."""

import numpy as np

from gyroscope._types import Array, Mask

WIDTH = 68
HEIGHT = 11
# Largest over smallest value that is shown. Otherwise the last steps of a schedule would flatten all others.
RANGE = 1000.0
# Bits of a braille character: four rows of two dots.
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
# The braille character without dots.
BRAILLE = 0x2800


def chart(curve: Array, dashed: Array) -> list[str]:
    """Draw `curve` in dots and `dashed` as a dashed line behind it, as lines of text with 2 × 4 dots per character.

    >>> chart(np.ones(100), np.ones(100))[-1].split()
    ['0', '100']
    """
    values = np.concatenate([curve, dashed])
    values = values[np.isfinite(values) & (values > 0)]
    if values.size == 0:
        return []
    high = float(np.log10(values.max()))
    low = max(float(np.log10(values.min())), high - float(np.log10(RANGE)))
    # A margin even if the curve is flat, so that it stays inside the frame.
    margin = 0.05 * (high - low) + 0.02
    low -= margin
    high += margin
    canvas = np.zeros((4 * HEIGHT, 2 * WIDTH), dtype=bool)
    _draw(canvas, dashed, low, high, dash=4)
    _draw(canvas, curve, low, high, dash=0)
    cells = canvas.reshape(HEIGHT, 4, WIDTH, 2).transpose(0, 2, 1, 3)
    rows = ["".join(chr(BRAILLE + int(code)) for code in row) for row in (cells * DOTS).sum((2, 3))]
    labels = {0: f"{10**high:.1e}", HEIGHT // 2: f"{10 ** ((low + high) / 2):.1e}", HEIGHT - 1: f"{10**low:.1e}"}
    lines = [f"{labels.get(i, ''):>8} ┤{row}" for i, row in enumerate(rows)]
    last = f"{len(curve):,}"
    return [*lines, " " * 9 + "└" + "─" * WIDTH, " " * 10 + "0" + " " * (WIDTH - len(last) - 1) + last]


def _draw(canvas: Mask, values: Array, low: float, high: float, dash: int) -> None:
    """Set the dots of one curve. Neighbouring columns are joined so that a steep curve stays a line."""
    rows, columns = canvas.shape
    edges = np.linspace(0, len(values), columns + 1).astype(int)
    previous: int | None = None
    for column in range(columns):
        part = values[edges[column] : max(edges[column + 1], edges[column] + 1)]
        # Logarithms of zeros, at the end of a schedule, are below any range.
        part = part[np.isfinite(part) & (np.log10(np.maximum(part, 1e-320)) > low)]
        if part.size == 0:
            previous = None
            continue
        # A flat curve may lie halfway between two rows. Rounding errors must not move it.
        heights = ((high - np.log10([part.max(), part.min()])) / (high - low) * (rows - 1)).round(9)
        top = int(heights[0].round())
        bottom = int(heights[1].round())
        if previous is not None:
            top = min(top, previous)
            bottom = max(bottom, previous)
        if not dash or column % (2 * dash) < dash:
            canvas[top : bottom + 1, column] = True
        previous = int(heights.mean().round())
