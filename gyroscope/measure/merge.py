"""From sums over pieces, of one process or many, to sums over vectors."""

import numpy as np
import numpy.typing as npt

from gyroscope.measure.layers import Ids
from gyroscope.measure.sums import ROW, SUMS

Array = npt.NDArray[np.float64]


def merged(ids: Ids, pieces: Array) -> tuple[Ids, Array]:
    """Vectors in the order of their ids, each with the sums over its pieces.

    Sums add up and largest entries compete. The tangential part of a vector has two sources: those of its pieces, and
    that the pieces grow by different factors,  ‖d - r·w‖² = Σ_i (‖d_i - r_i·w_i‖² + (r_i - r)²·‖w_i‖²).
    """
    order = np.argsort(ids, kind="stable")
    ids, pieces = ids[order], pieces[:, order]
    vectors, first = np.unique(ids, return_index=True)
    if len(vectors) == len(ids):
        return ids, pieces
    owner = np.repeat(np.arange(len(vectors)), np.diff(np.append(first, len(ids))))
    for turn in ("", "old_"):
        ww, wd = pieces[ROW[f"{turn}ww"]], pieces[ROW[f"{turn}wd"]]
        whole_ww, whole_wd = (np.add.reduceat(x, first) for x in (ww, wd))
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = wd / ww - (whole_wd / whole_ww)[owner]
        pieces[ROW[f"{turn}tt"]] += np.where(ww > 0, apart**2 * ww, 0.0)
    sums = np.add.reduceat(pieces, first, axis=1)
    sums[ROW["most"]] = np.maximum.reduceat(pieces[ROW["most"]], first)
    assert len(sums) == len(SUMS)
    return vectors, sums
