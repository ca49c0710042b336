"""Weight vectors distributed over processes: DTensors of FSDP2 or tensor parallelism, cut along any dimension."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope.geometry import Split


@dataclass(frozen=True, eq=False)
class Across:
    """How values per vector are exchanged if no process has whole vectors.

    split        splits this process's part of the tensor into pieces of vectors
    mesh, dims   the processes, and the dimensions of their mesh along which vectors are cut
    owners       number of the vector of each piece. None if there are as many pieces as vectors, in their order
    """

    split: Split
    mesh: Any
    dims: tuple[int, ...]
    owners: Tensor | None
    num_vectors: int

    def shares(self, values: Sequence[Tensor]) -> Tensor:
        """Return this process's part of several values per vector, (values, vectors), from those per piece."""
        stacked = torch.stack(tuple(values))
        if self.owners is None:
            return stacked
        return stacked.new_zeros(len(stacked), self.num_vectors).index_add_(1, self.owners, stacked)

    def of(self, coefficients: Sequence[Any]) -> list[Any]:
        """Return the coefficients of the pieces from those of the vectors. Plain numbers stay as they are."""
        if self.owners is None:
            return list(coefficients)
        return [c[self.owners] if isinstance(c, Tensor) and c.dim() else c for c in coefficients]


def summed(shares: Sequence[Tensor], across: Sequence[Across]) -> list[Tensor]:
    """Return the shares summed over processes, with one reduction for each mesh, dimension of it and dtype."""
    together: dict[Hashable, list[int]] = {}
    for place, (share, how) in enumerate(zip(shares, across, strict=True)):
        together.setdefault((how.mesh, how.dims, share.dtype, share.device), []).append(place)
    sums = list(shares)
    for places in together.values():
        how = across[places[0]]
        packed = torch.cat([shares[place].flatten() for place in places])
        for dim in how.dims:
            dist.all_reduce(packed, group=how.mesh.get_group(dim))
        parts = torch.split(packed, [shares[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            sums[place] = part.view_as(shares[place])
    return sums


def local(x: Tensor) -> Tensor:
    """Return this process's part of a DTensor, or a plain tensor as it is."""
    return cast(Any, x).to_local() if hasattr(x, "placements") else x


def cut_like(x: Tensor, like: Tensor) -> Tensor:
    """Return a DTensor cut as the parameter is, as gradients and optimizer states usually are.

    In sequence parallelism each process has its own summand of the gradient of a norm between layers.
    """
    wanted = getattr(like, "placements", None)
    if wanted is None or not hasattr(x, "placements") or x.placements == wanted:
        return x
    return cast(Tensor, cast(Any, x).redistribute(placements=wanted))


def placed_like(values: Tensor, like: Tensor) -> Tensor:
    """Return values that every process has, distributed over processes like `like`, on its device."""
    values = values.to(like.device)
    if not hasattr(like, "placements"):
        return values
    sharded = cast(Any, like)
    return _placed(values, sharded.device_mesh, sharded.placements)


def row_like(p: Tensor, split: Split, values: Tensor) -> Tensor:
    """Return values per vector that every process has, distributed over processes like the vectors of a parameter."""
    values = values.to(p.device).reshape(split.values_shape(p.shape))
    if not hasattr(p, "placements"):
        return values
    sharded = cast(Any, p)
    return _placed(values, sharded.device_mesh, _row_placements(sharded.placements, split, p.dim()))


def across_processes(p: Tensor, split: Split) -> Across | None:
    """Return how to exchange values of vectors that are cut, or None if every process has whole vectors."""
    placements = getattr(p, "placements", ())
    axes = split.axes(p.dim())
    cuts = _cuts(placements)
    numbered = _is_numbered(placements, split, p.dim())
    # Cut along an axis that counts vectors, or not at all: every process has whole vectors.
    dims = tuple(i for i, cut in enumerate(cuts) if cut is not None and (numbered or cut not in axes))
    if not dims:
        return None
    mesh = cast(Any, p).device_mesh
    num_vectors = split.num_vectors(p.shape)
    if not numbered:
        return Across(split, mesh, dims, None, num_vectors)
    from torch.distributed.tensor import Replicate

    # Each index of the axes is a piece with the number of its vector.
    pairs = zip(placements, cuts, strict=True)
    along = [_along(part, axes.index(cut)) if cut is not None and cut in axes else Replicate() for part, cut in pairs]
    owners = local(_placed(split.vector_ids(p.shape, p.device), mesh, along)).flatten()
    return Across(Split("neuron", split.axis), mesh, dims, owners, num_vectors)


def _placed(values: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """Return a DTensor of values that every process has, without communication."""
    from torch.distributed.tensor import DTensor, Replicate

    known = DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return known.redistribute(placements=placements)


def _row_placements(placements: Sequence[Any], split: Split, num_dims: int) -> list[Any]:
    """Return where values per vector are: with whole vectors, or else on every process."""
    from torch.distributed.tensor import Replicate

    if _is_numbered(placements, split, num_dims):
        return [Replicate()] * len(placements)
    axes = split.axes(num_dims)
    pairs = zip(placements, _cuts(placements), strict=True)
    return [_along(part, axes.index(cut)) if cut is not None and cut in axes else Replicate() for part, cut in pairs]


def _is_numbered(placements: Sequence[Any], split: Split, num_dims: int) -> bool:
    """Return whether a shard may begin and end within a group."""
    return split.granularity == "group" and any(cut in split.axes(num_dims) for cut in _cuts(placements))


def _cuts(placements: Sequence[Any]) -> list[int | None]:
    """Return the dimension of the tensor that each dimension of the mesh cuts, None if it has copies."""
    # Not by class, because FSDP2 over tensor parallelism uses a placement that is not a Shard.
    return [None if part.is_replicate() or part.is_partial() else part.dim for part in placements]


def _along(part: Any, dim: int) -> Any:
    """Return the same cut along another dimension."""
    from torch.distributed.tensor import Shard

    factor = getattr(part, "split_factor", None)
    return Shard(dim) if factor is None else type(part)(dim, split_factor=factor)
