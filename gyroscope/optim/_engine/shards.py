"""Weight vectors that are spread over processes: DTensors of FSDP2 or tensor parallelism, cut along any dimension."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gyroscope.geometry import Split


@dataclass(frozen=True)
class Across:
    """How values per vector are exchanged: `split` cuts this process's part into pieces of vectors.

    `summed` makes of values per piece, (…, pieces), the sums of whole vectors, in one reduction; `values[..., mine]`
    makes of values per vector those of the pieces.
    """

    split: Split
    summed: Callable[[Tensor], Tensor]
    mine: Tensor | slice

    def of(self, coefficients: Sequence[Any]) -> list[Any]:
        """Coefficients of vectors, as those of the pieces; numbers for all vectors stay as they are."""
        return [c[self.mine] if isinstance(c, Tensor) and c.dim() else c for c in coefficients]


def local(x: Tensor) -> Tensor:
    """This process's part of a DTensor; a plain tensor as it is."""
    return cast(Any, x).to_local() if hasattr(x, "placements") else x


def placed_like(values: Tensor, like: Tensor) -> Tensor:
    """Values that every process knows, spread over processes as `like` is; a plain tensor goes to its device."""
    if not hasattr(like, "placements"):
        return values.to(like.device)
    from torch.distributed.tensor import DTensor, Replicate

    sharded = cast(DTensor, like)
    everywhere = [Replicate()] * sharded.device_mesh.ndim
    known = DTensor.from_local(values.to(like.device), sharded.device_mesh, everywhere, run_check=False)
    return known.redistribute(placements=sharded.placements)


def across_processes(p: Tensor, split: Split) -> Across | None:
    """What vectors that no single process holds need; None for a plain tensor, and where each has whole vectors."""
    axis = None if split.granularity == "tensor" else split.axis % p.dim()
    dims = [placement.dim if placement.is_shard() else None for placement in getattr(p, "placements", ())]
    grouped = split.granularity == "group" and axis in dims
    # Cut along the axis that counts vectors, or not at all: every process has whole vectors.
    if not grouped and all(dim in (None, axis) for dim in dims):
        return None
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = cast(DTensor, p).device_mesh
    parts = [Replicate() if dim is None else Shard(1) if dim == axis and not grouped else Partial() for dim in dims]
    whole = [Replicate() if part.is_partial() else part for part in parts]

    def reduced(values: Tensor) -> Tensor:
        return DTensor.from_local(values, mesh, parts, run_check=False).redistribute(mesh, whole).to_local()

    if not grouped:
        return Across(split, reduced, slice(None))
    # A shard may begin and end within a group: each index of the axis is a piece that knows its group.
    groups = torch.arange(p.shape[split.axis], device=p.device) // split.group_size
    cut = [Shard(0) if dim == axis else Replicate() for dim in dims]
    mine = (
        DTensor.from_local(groups, mesh, [Replicate()] * len(dims), run_check=False).redistribute(mesh, cut).to_local()
    )
    num_groups = split.num_vectors(p.shape)
    return Across(
        Split("neuron", split.axis),
        lambda values: reduced(values.new_zeros(*values.shape[:-1], num_groups).index_add_(-1, mine, values)),
        mine,
    )
