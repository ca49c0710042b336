"""Weight vectors that are spread over processes: DTensors of FSDP2 or tensor parallelism, cut along any dimension."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

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


def spread_like(values: Tensor, like: Tensor) -> Tensor:
    """Values that broadcast against `like`, in its shape and, of a DTensor, spread over processes as it is."""
    spread = values.expand(like.shape)
    # Left to DTensor, a dimension of size 1 would be on every process.
    return (
        cast(Any, spread).redistribute(placements=cast(Any, like).placements) if hasattr(like, "placements") else spread
    )


def across_processes(p: Tensor, split: Split) -> Across | None:
    """What vectors that no single process holds need; None for a plain tensor, and where each has whole vectors."""
    axes = split.axes(p.dim())
    dims = [placement.dim if placement.is_shard() else None for placement in getattr(p, "placements", ())]
    # A shard may begin and end within a group, or within the indices of one of several axes.
    numbered = (split.granularity == "group" or len(axes) > 1) and any(dim in axes for dim in dims)
    # Cut along the axis that counts vectors, or not at all: every process has whole vectors.
    if not numbered and all(dim is None or dim in axes for dim in dims):
        return None
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = cast(DTensor, p).device_mesh
    # Sums per vector lie along dimension 1 of what is reduced; dimension 0 counts the sums.
    parts = [Replicate() if dim is None else Shard(1) if dim in axes and not numbered else Partial() for dim in dims]
    whole = [Replicate() if part.is_partial() else part for part in parts]

    def reduced(values: Tensor) -> Tensor:
        return DTensor.from_local(values, mesh, parts, run_check=False).redistribute(mesh, whole).to_local()

    if not numbered:
        return Across(split, reduced, slice(None))
    # Each index of the axes is a piece that knows its vector.
    ids = split.vector_ids(p.shape, p.device)
    cut = [Shard(axes.index(dim)) if dim in axes else Replicate() for dim in dims]
    everywhere = DTensor.from_local(ids, mesh, [Replicate()] * len(dims), run_check=False)
    mine = everywhere.redistribute(mesh, cut).to_local().flatten()
    num_vectors = split.num_vectors(p.shape)
    return Across(
        Split("neuron", split.axis),
        lambda values: reduced(values.new_zeros(*values.shape[:-1], num_vectors).index_add_(-1, mine, values)),
        mine,
    )
