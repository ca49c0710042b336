"""The newest samples of a run, straight from its file: all layers of a sample stand together there.

A `Run` reads layer by layer and keeps all it has read, which suits whole runs; a live page wants a few numbers of every
layer, of one sample, each second.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from gyroscope.store import Run
from gyroscope.store.codec import Layout
from gyroscope.store.database import open_reader, sentences
from gyroscope.store.schema import LAYER_BITS


@final
class Tail:
    """Reads named series, quantity.statistic, of all layers at a step."""

    def __init__(self, run: Run, names: Sequence[str]) -> None:
        layout = Layout(run.quantities.values())
        self.names = [name for name in names if name.partition(".")[0] in run.quantities]
        parts = [name.partition(".") for name in self.names]
        self._columns = [layout.column(run.quantities[name], stat or "mean") for name, _, stat in parts]
        self._missing = [name for name in names if name not in self.names]
        self._layers = len(run.layers)
        self._file, self._connection = open_reader(run.path)

    def block(self, step: int) -> dict[str, npt.NDArray[np.float64]]:
        """By name, a number for each layer; NaN where it was not measured."""
        found = np.full((self._layers, len(self.names)), np.nan)
        with sentences(self._file):
            rows = self._connection.execute(
                "SELECT key, numbers FROM sample JOIN measurement ON key >= id << ?1 AND key < (id + 1) << ?1 "
                "WHERE step = ?2",
                (LAYER_BITS, step),
            )
            for key, numbers in rows:
                layer = key & (1 << LAYER_BITS) - 1
                if layer < self._layers:
                    found[layer] = np.frombuffer(numbers, "<f4")[self._columns]
        known = {name: found[:, column] for column, name in enumerate(self.names)}
        return known | {name: np.full(self._layers, np.nan) for name in self._missing}

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
