"""Long stretches of a smooth run, solved at a few of their steps.

Once momentum and second moment have filled, moments change as smoothly as the learning rate. A polynomial through
their values at a few steps then gives all others. The recursion  x(t+1) = keep·x(t) + added  is required to hold at
those steps (collocation). The polynomial's last coefficients tell whether it is exact enough.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from gyroscope._types import Array, Int64, Number

# Steps at which a stretch is solved. Their polynomial has one degree less.
NODES = 17
# Lengths of a stretch, powers of two so that few matrices are needed. A shorter one takes as long step by step.
MIN_STRIDE = 4096
MAX_STRIDE = 32_768
# Largest difference between settings and their polynomial, over the largest setting.
SMOOTH = 1e-10
# Columns of a product at a time. Larger ones wake threads, which take more processor time than they save.
COLUMNS = 512


class Series(NamedTuple):
    """A moment before and after each of some steps."""

    before: Array
    after: Array


class Stretch(NamedTuple):
    """Matrices that take values at the nodes of a stretch to other values of the polynomial through them."""

    nodes: Int64  # steps, the first and the last of the stretch included
    times: Array  # to all times, from before the first step until after the last. One column for each
    following: Array  # to one step after each node
    coefficients: Array  # to the Chebyshev coefficients

    def filtered(self, start: Array, keep: Number, added: Array) -> Series:
        """Return x at the nodes and one step later, where  x(t+1) = keep·x(t) + added  from x(0) = `start`."""
        # The first node has the start for an equation, so the recursion holds at the others.
        ahead = self.following[1:]
        kept = np.zeros((NODES, 1)) + keep
        known = (added[1:] - ahead[:, :1] * start).T[:, :, None]
        # One system for each column of `keep`. Layers that share it are solved together.
        if kept.shape[1] == 1:
            known = known[:, :, 0].T[None]
        solved = np.linalg.solve(ahead[:, 1:] - kept[1:].T[:, :, None] * np.eye(NODES - 1), known)
        values = solved[0] if kept.shape[1] == 1 else solved[:, :, 0].T
        before = np.concatenate([start[None], values])
        return Series(before, self.following @ before)

    def are_smooth(self, values: Array, tolerance: float) -> bool:
        """Return whether the polynomials through values at the nodes are exact to this fraction."""
        last = np.abs(self.coefficients[-2:] @ values).max(0)
        return bool((last <= tolerance * np.abs(values).min(0)).all())

    def everywhere(self, values: Array) -> Array:
        """Return values from before the first step until after the last, from those at the nodes."""
        found = np.empty((values.shape[1], self.times.shape[1]))  # transposed, so that a layer's are contiguous
        for first in range(0, found.shape[1], COLUMNS):
            block = slice(first, first + COLUMNS)
            np.matmul(values.T, self.times[:, block], out=found[:, block])
        return found.T

    def follows(self, values: Array) -> bool:
        """Return whether values for each step are those of the polynomial through the nodes."""
        guess = self.everywhere(values[self.nodes, None])[:-1, 0]
        return bool(np.abs(values - guess).max() <= SMOOTH * np.abs(values).max())


@cache
def stretch(length: int) -> Stretch:
    """Return the matrices for so many steps, at Chebyshev's points rounded to steps.

    >>> grid = stretch(4096)
    >>> error = grid.everywhere(np.cos(grid.nodes[:, None] / 2000))[:, 0] - np.cos(np.arange(4097) / 2000)
    >>> bool(np.abs(error).max() < 1e-13)
    True
    """
    nodes = np.round((1 - np.cos(np.pi * np.arange(NODES) / (NODES - 1))) / 2 * (length - 1)).astype(np.int64)
    scale = 2 / (length - 1)

    def polynomials(t: Int64) -> Array:
        return np.asarray(np.polynomial.chebyshev.chebvander(t * scale - 1, NODES - 1), dtype=np.float64)

    coefficients = np.asarray(np.linalg.inv(polynomials(nodes)), dtype=np.float64)
    times = coefficients.T @ polynomials(np.arange(length + 1, dtype=np.int64)).T
    return Stretch(nodes, times, times[:, nodes + 1].T.copy(), coefficients)
