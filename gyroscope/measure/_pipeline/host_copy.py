"""The way of sums from devices and processes to the host that writes, without waiting in the training thread.

On a CUDA device all tables of sums are sent in one tensor. The training thread only starts the copy to pinned memory,
and the thread that processes the sample waits for it. Process 0 gathers the sums of parameters that are distributed
over processes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope._types import Array
from gyroscope.measure._pipeline.layer_step import ROW, SUMS
from gyroscope.measure._pipeline.layers import Ids, Layer
from gyroscope.measure._pipeline.sums import precise

# Layers, each with its table of sums, (SUMS, pieces), or None if this process has none.
Tables = Sequence[tuple[Layer, Tensor | None]]


@final
class HostCopy:
    """Numbers on their way from a device to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._arrived: Any = None
        # Only a copy into pinned memory is asynchronous.
        if numbers.device.type == "cuda":
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(numbers.device))
        else:
            self._numbers = numbers.cpu()
        self.num_bytes = self._numbers.nbytes

    def wait(self) -> Array:
        """Return the numbers, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.double().numpy()


@final
@dataclass
class SentSums:
    """Tables of layers in one copy to the host, one after the other, or in one copy per process, with ids on top."""

    layers: Sequence[Layer]
    copies: Sequence[HostCopy]
    gathered: bool = False

    def unpack(self) -> Iterator[tuple[Layer, Ids, Array]]:
        """Return each layer with the ids of its pieces and their sums."""
        arrived = [copy.wait().ravel() for copy in self.copies]
        start = 0
        for layer in self.layers:
            rows = len(SUMS) + self.gathered
            stop = start + rows * _columns(layer, self.gathered)
            parts = [numbers[start:stop].reshape(rows, -1) for numbers in arrived]
            start = stop
            if self.gathered:
                table = np.concatenate([part[:, part[0] >= 0] for part in parts], axis=1)
                yield layer, table[0].astype(np.int64), table[1:]
            else:
                yield layer, np.tile(layer.pieces.ids, layer.pieces.cuts), parts[0]


def send_to_host(tables: Tables) -> list[SentSums]:
    """Start to copy the sums. Only process 0 gets the sums of layers that are distributed over processes."""
    sent = []
    spread = [(layer, table) for layer, table in tables if layer.pieces.sharded]
    if spread:
        flat = torch.cat([_with_ids(layer, table).flatten() for layer, table in spread])
        parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        # One collective for all layers. Every process enters it at each sample, even with nothing to send.
        dist.gather(flat, parts, dst=0)
        if parts is not None:
            sent.append(SentSums([layer for layer, _ in spread], [HostCopy(part) for part in parts], gathered=True))
    by_device: dict[torch.device, list[tuple[Layer, Tensor]]] = {}
    for layer, table in tables:
        if table is not None and not layer.pieces.sharded:
            by_device.setdefault(table.device, []).append((layer, table))
    for device, here in by_device.items():
        if device.type == "cpu":  # already on the host, so joining the tables would only double their memory
            sent += [SentSums([layer], [HostCopy(table)]) for layer, table in here]
        else:
            joined = torch.cat([table.flatten() for _, table in here])
            sent.append(SentSums([layer for layer, _ in here], [HostCopy(joined)]))
    return sent


def _columns(layer: Layer, gathered: bool) -> int:
    return layer.pieces.capacity if gathered else layer.pieces.cuts * len(layer.pieces.ids)


def _with_ids(layer: Layer, sums: Tensor | None) -> Tensor:
    """Return ids above sums, with room for the largest number of pieces of any process. Unused columns have id -1."""
    p = layer.parameter
    size = (len(SUMS) + 1, _columns(layer, gathered=True))
    table = torch.full(size, -1.0, dtype=precise(p), device=p.device)
    if sums is not None and len(layer.pieces.ids):
        ids = (layer.pieces.owners - layer.start).repeat(layer.pieces.cuts)
        table[0, : len(ids)] = ids
        table[1:, : len(ids)] = sums[:, : len(ids)]
    return table


def merge_pieces(ids: Ids, pieces: Array) -> tuple[Ids, Array]:
    """Return sums over vectors, in the order of their ids, from sums over pieces.

    Sums are added, and of largest entries the maximum is taken. The tangential part of a vector has two sources: the
    tangential parts of its pieces, and their different radial growth,  ‖d - r·w‖² = Σ_i (‖d_i - r_i·w_i‖² + (r_i -
    r)²·‖w_i‖²).
    """
    if np.all(ids[1:] > ids[:-1]):  # nearly always each piece is a vector
        return ids, pieces
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    pieces = pieces[:, order]
    vectors, first = np.unique(ids, return_index=True)
    if len(vectors) == len(ids):
        return ids, pieces
    owner = np.repeat(np.arange(len(vectors)), np.diff(np.append(first, len(ids))))
    for turn in ("", "old_", "start_"):
        ww = pieces[ROW[f"{turn}ww"]]
        wd = pieces[ROW[f"{turn}wd"]]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = wd / ww - (np.add.reduceat(wd, first) / np.add.reduceat(ww, first))[owner]
        pieces[ROW[f"{turn}tt"]] += np.where(ww > 0, apart**2 * ww, 0.0)
    sums = np.add.reduceat(pieces, first, axis=1)
    sums[ROW["most"]] = np.maximum.reduceat(pieces[ROW["most"]], first)
    return vectors, sums
