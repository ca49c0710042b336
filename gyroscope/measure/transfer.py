"""From the devices, and the processes, to the host that writes: without waiting where training waits.

Sums leave each device in one tensor. On a CUDA device the copy to pinned memory is only begun; whoever opens the crate,
in another thread, waits for it. Sums of parameters that are spread over processes are gathered by process 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope.measure.layers import Ids, Tracked
from gyroscope.measure.merge import Array
from gyroscope.measure.sums import SUMS, Watch, precise


@final
class Parcel:
    """Numbers on their way to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._arrived: Any = None
        if numbers.device.type == "cuda":
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(numbers.device))
        else:
            self._numbers = numbers.cpu()

    def open(self) -> Array:
        """The numbers, once they are here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.double().numpy()


@final
@dataclass(frozen=True)
class Crate:
    """The sums of several layers in one parcel, or in one from each process with the ids of its pieces beside them."""

    layers: tuple[Tracked, ...]
    parcels: tuple[Parcel, ...]
    gathered: bool = False

    def open(self) -> Iterator[tuple[Tracked, Ids, Array]]:
        """Each layer with the ids of its pieces and their sums."""
        arrived = [parcel.open() for parcel in self.parcels]
        start = 0
        for layer in self.layers:
            rows, columns = _shape(layer, self.gathered)
            stop = start + rows * columns
            tables = [numbers[start:stop].reshape(rows, columns) for numbers in arrived]
            start = stop
            if self.gathered:
                table = np.concatenate([part[:, part[0] >= 0] for part in tables], axis=1)
                yield layer, table[0].astype(np.int64), table[1:]
            else:
                yield layer, np.tile(layer.pieces.ids, layer.pieces.cuts), tables[0].copy()


def ship(watches: Sequence[Watch]) -> list[Crate]:
    """Send off the sums; only process 0 gets crates of what is spread over processes."""
    crates = []
    shared = [watch for watch in watches if watch.layer.pieces.sharded]
    if shared:
        flat = torch.cat([_padded(watch).flatten() for watch in shared])
        parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        dist.gather(flat, parts, dst=0)
        if parts is not None:
            crates.append(Crate(tuple(watch.layer for watch in shared), tuple(map(Parcel, parts)), gathered=True))
    alone = [watch for watch in watches if not watch.layer.pieces.sharded]
    for device in dict.fromkeys(_sums(watch).device for watch in alone):
        here = [watch for watch in alone if _sums(watch).device == device]
        parcel = Parcel(torch.cat([_sums(watch).flatten() for watch in here]))
        crates.append(Crate(tuple(watch.layer for watch in here), (parcel,)))
    return crates


def _sums(watch: Watch) -> Tensor:
    assert watch.sums is not None, "a layer is shipped after it was measured"
    return watch.sums


def _shape(layer: Tracked, gathered: bool) -> tuple[int, int]:
    pieces = layer.pieces
    return (len(SUMS) + 1, pieces.capacity) if gathered else (len(SUMS), pieces.cuts * len(pieces.ids))


def _padded(watch: Watch) -> Tensor:
    """Ids above sums, with room for as many pieces as any process may have; places left over have id -1."""
    sums, pieces = watch.sums, watch.layer.pieces
    table = torch.full(
        _shape(watch.layer, True), -1.0, dtype=precise(watch.layer.parameter), device=watch.layer.parameter.device
    )
    if sums is not None and len(pieces.ids):
        ids = pieces.owners.repeat(pieces.cuts)
        table[0, : len(ids)] = ids
        table[1:, : len(ids)] = sums[:, : len(ids)]
    return table
