"""The parameters that are measured, and how each splits into vectors, also if it is sharded over processes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, cast, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gyroscope._dtensor import across_processes, local, row_like
from gyroscope._types import Int64
from gyroscope.geometry import Split
from gyroscope.model.measured import measured_layers
from gyroscope.model.selection import AnyOptimizer, Invariance

# Numbers of vectors within a parameter.
Ids = Int64

# Most entries of a piece. Longer vectors are cut. Sums of this many float32 are accurate enough, and BLAS does not use
# several threads for them.
MAX_PIECE_ENTRIES = 2**13
# Most vectors of a layer whose first weights are kept, and their entries in total: 64 MB in float32. A model with a
# billion weights keeps about forty vectors of each layer.
MAX_INITIAL_VECTORS = 64
MAX_INITIAL_ENTRIES = 2**24


@final
@dataclass(frozen=True, eq=False)
class Pieces:
    """The vectors of a parameter that this process measures.

    `split` cuts its part of the tensor into pieces, each a vector or a share of one. `places` are the chosen pieces
    (None: all), `ids` the vectors of the layer they belong to, and `owners` the vectors of the parameter, on the
    device. Long pieces are measured in `cuts` parts. No process has more than `capacity` pieces, cuts counted.
    """

    split: Split
    places: Tensor | slice | None
    ids: Ids
    owners: Tensor
    cuts: int
    capacity: int
    sharded: bool


@final
@dataclass(eq=False)
class Layer:
    """A measured parameter as it was when it was found, because its data may be replaced later.

    It has `vectors` of `fan_in` entries, those of the parameter from `start` on. `rows` are the ids of those that are
    measured, None for all. `vector` is the word for one, such as "token" in an embedding.

    Two things are kept from sample to sample, None before the first: `copy`, the weights at the previous sample in
    float32 or better, (pieces, entries), and `initial`, the first weights of the pieces at `initial_places`, from which
    `angle_to_start` is measured.
    """

    name: str
    parameter: nn.Parameter
    shape: torch.Size
    group: int
    split: Split
    vectors: int
    fan_in: int
    rows: tuple[int, ...] | None
    pieces: Pieces
    start: int
    vector: str
    initial_places: Ids
    initial: Tensor | None = None
    copy: Tensor | None = None

    def per_vector(self, values: Tensor) -> Tensor:
        """Return the values per vector of this process's chosen pieces, from the optimizer's layout."""
        mine = local(values)
        if mine.shape == values.shape:
            return mine[self.pieces.owners]
        return mine if self.pieces.places is None else mine[self.pieces.places]


def find_layers(
    model: nn.Module,
    optimizer: AnyOptimizer,
    layers: re.Pattern[str] | None = None,
    probe: Mapping[str, Invariance] | None = None,
    rows: int | None = None,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> list[Layer]:
    """Return the layers that are measured (`gyroscope.model.measured`), `rows` vectors of each at most."""
    found = []
    for measured in measured_layers(model, optimizer, layers=layers, probe=probe, parts=parts):
        parameter = measured.decision.parameter
        split = measured.split
        vectors = measured.stop - measured.start
        chosen = chosen_rows(vectors, measured.at_most if rows is None else rows)
        found.append(
            Layer(
                name=measured.name,
                parameter=parameter,
                shape=parameter.shape,
                group=measured.decision.group,
                split=split,
                vectors=vectors,
                fan_in=split.fan_in(parameter.shape),
                rows=chosen,
                pieces=_pieces(parameter, split, measured.start, measured.stop, chosen),
                start=measured.start,
                vector=measured.vector,
                initial_places=np.empty(0, np.int64),
            )
        )
    for layer, ids in zip(found, initial_rows(found), strict=True):
        layer.initial_places = np.flatnonzero(np.isin(layer.pieces.ids, ids))
    return found


def chosen_rows(vectors: int, rows: int | None) -> tuple[int, ...] | None:
    """Return the ids of `rows` vectors, evenly spread, or None if that is all of them.

    >>> chosen_rows(10, 4), chosen_rows(3, 4)
    ((0, 2, 5, 7), None)
    """
    return None if rows is None or rows >= vectors else tuple(i * vectors // rows for i in range(rows))


def initial_rows(layers: Sequence[Layer]) -> list[Ids]:
    """Return the ids of the vectors of each layer whose first weights are kept, evenly spread over those measured."""
    measured = [np.arange(layer.vectors) if layer.rows is None else np.array(layer.rows) for layer in layers]
    counts = [min(len(ids), MAX_INITIAL_VECTORS) for ids in measured]
    entries = sum(count * layer.fan_in for count, layer in zip(counts, layers, strict=True))
    share = min(1.0, MAX_INITIAL_ENTRIES / max(entries, 1))
    # If a vector is longer than the share of its layer, its start is not kept.
    kept = [int(count * share) for count in counts]
    return [ids[np.arange(n) * len(ids) // max(n, 1)] for ids, n in zip(measured, kept, strict=True)]


def _pieces(p: Tensor, split: Split, start: int, stop: int, chosen: tuple[int, ...] | None) -> Pieces:
    """Return this process's pieces of the vectors from `start` to `stop`, or of the chosen ones."""
    of_all = split.num_vectors(p.shape)
    shape = list(p.shape)
    sharded = hasattr(p, "placements")
    if sharded:
        shape = _largest_shard(p)
        ids, split = _held_ids(p, split)
    else:
        ids = np.arange(of_all)
    places: Tensor | slice | None = None
    if chosen is None and not sharded and stop - start < of_all:
        ids = ids[start:stop]
        places = slice(start, stop)
    elif chosen is not None or stop - start < of_all:
        wanted = np.arange(start, stop) if chosen is None else start + np.array(chosen)
        kept = np.flatnonzero(np.isin(ids, wanted))
        ids = ids[kept]
        places = torch.from_numpy(kept).to(p.device)
    pieces = split.num_vectors(shape)
    cuts = max(1, ceil(prod(shape) / max(pieces, 1) / MAX_PIECE_ENTRIES))
    return Pieces(split, places, ids - start, torch.from_numpy(ids).to(p.device), cuts, cuts * pieces, sharded)


def _held_ids(p: Tensor, split: Split) -> tuple[Ids, Split]:
    """Return the vectors of a DTensor to which this process's pieces belong, and how its part splits into pieces.

    Of several copies only the first counts. Vectors cut across their length are pieces with one id.
    """
    sharded = cast(Any, p)
    mesh = sharded.device_mesh
    if mesh.size() != dist.get_world_size():
        raise ValueError(
            f"a parameter of shape {tuple(p.shape)} is on {mesh.size()} of {dist.get_world_size()} processes, but "
            "the tracker gathers from all of them. Leave such parameters out by layers=…, a regular expression"
        )
    across = across_processes(p, split)
    if across is not None and across.owners is not None:
        split = across.split
        ids = across.owners
    else:
        ids = local(row_like(p, split, torch.arange(split.num_vectors(p.shape)))).flatten()
    held = [at == 0 or part.is_shard() for part, at in zip(sharded.placements, mesh.get_coordinate(), strict=True)]
    return (ids.cpu().numpy() if all(held) else np.empty(0, dtype=np.int64)), split


def _largest_shard(p: Tensor) -> list[int]:
    """Return the shape of the largest part of a DTensor in any process."""
    shape = list(p.shape)
    for number, placement in enumerate(cast(Any, p).placements):
        if placement.is_shard():
            shape[placement.dim] = ceil(shape[placement.dim] / cast(Any, p).device_mesh.size(number))
    return shape
