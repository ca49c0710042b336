"""Weight vectors: how a tensor splits into them, and dot, norm, mean, projection and angle of each.

This is the only module that defines "per neuron". Values per vector are compact (one number each, in order) and float32
or better. `broadcast` brings them back to the tensor. Tensors may be plain or DTensors, of any strides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from gyroscope._checks import check_count

Granularity = Literal["neuron", "group", "tensor", "none"]
# The dimension, or dimensions, whose indices count vectors.
Axis = int | tuple[int, ...]


@dataclass(frozen=True)
class Split:
    """How a tensor splits into weight vectors.

    neuron   one vector per index of `axis`
    group    one vector per `group_size` consecutive indices of `axis` (an attention head, a GroupNorm group)
    tensor   the whole tensor is one vector
    none     no vectors: the tensor does not rotate

    Several axes count vectors together: axis=(0, 1) of experts [experts, outputs, inputs] is one vector per expert and
    output.

    >>> Split().norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    tensor([5., 2.])
    >>> Split(axis=(0, 1)).num_vectors((8, 64, 32))
    512
    """

    granularity: Granularity = "neuron"
    axis: Axis = 0
    group_size: int = 1

    def __post_init__(self) -> None:
        if self.granularity not in get_args(Granularity):
            options = ", ".join(map(repr, get_args(Granularity)))
            raise ValueError(f"granularity={self.granularity!r} is unknown: choose one of {options}")
        axes = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        if not axes or any(isinstance(axis, bool) or not isinstance(axis, int) for axis in axes):
            raise ValueError(
                f"axis={self.axis!r} must be an integer, or a tuple of them: the dimension that counts the vectors, "
                "often 0, or (0, 1) for experts"
            )
        check_count("group_size", self.group_size, at_least=1)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Split":
        """Return the split of a parameter group, by default one vector per index of dimension 0."""
        return cls(group.get("granularity", "neuron"), group.get("axis", 0), group.get("group_size", 1))

    def rotates(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape can rotate: 2 or more dimensions, 2 or more entries per vector."""
        return self.granularity != "none" and len(shape) >= 2 and prod(shape) > 0 and self.fan_in(shape) > 1

    def num_vectors(self, shape: Sequence[int]) -> int:
        """Return the number of vectors of a tensor of this shape.

        >>> Split("group", axis=1, group_size=4).num_vectors((16, 8))
        2
        """
        if self.granularity in ("tensor", "none"):
            return int(self.granularity == "tensor")
        axes = self.axes(len(shape))
        size = shape[axes[-1]]
        if size % self._grouped:
            raise ValueError(
                f"group_size={self.group_size} does not divide dimension {axes[-1]} of a tensor of shape "
                f"{tuple(shape)}: choose a divisor of {size}"
            )
        return prod(shape[axis] for axis in axes) // self._grouped

    def values_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in which values per vector are kept: an index of neurons for each of their axes.

        Values can then be distributed over processes as the vectors are.

        >>> Split(axis=(0, 1)).values_shape((8, 64, 32))
        (8, 64)
        """
        if self.granularity != "neuron":
            return (self.num_vectors(shape),)
        return tuple(shape[axis] for axis in self.axes(len(shape)))

    def fan_in(self, shape: Sequence[int]) -> int:
        """Return the number of entries of one vector of a tensor of this shape.

        >>> Split().fan_in((64, 3, 7, 7))
        147
        """
        vectors = self.num_vectors(shape)
        return prod(shape) // vectors if vectors else 0

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of the entries of each vector."""
        return self._reduce(x.to(at_least_float32(x.dtype)))

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the entries of each vector."""
        return self.sum(x) / self.fan_in(x.shape)

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the inner product of each vector of x with that of y."""
        dtype = at_least_float32(torch.promote_types(x.dtype, y.dtype))
        return self._reduce(x.to(dtype) * y.to(dtype))

    def norm(self, x: Tensor) -> Tensor:
        """Return the Euclidean norm of each vector."""
        return self.dot(x, x).sqrt()

    def centred(self, x: Tensor) -> Tensor:
        """Return the tensor without the mean of each vector."""
        return x - self.broadcast(self.mean(x), x.shape)

    def projection(self, x: Tensor, onto: Tensor) -> Tensor:
        """Return the part of each vector of x along that of `onto`, which is 0 along a zero vector."""
        length2 = self.dot(onto, onto)
        along = torch.where(length2 > 0, self.dot(x, onto) / length2, torch.zeros_like(length2))
        return self.broadcast(along, onto.shape) * onto

    def angle(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the angle between each vector before and after, in radians.

            d = w1 - w0,  r = ⟨w0,d⟩/‖w0‖²,  angle = atan2(‖d - r·w0‖, (1+r)·‖w0‖)

        An arccos of a float32 cosine would be 0 below 3e-4 rad, where most angles of training are. A zero vector has
        angle 0.

        >>> Split().angle(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-5]]))
        tensor([1.0000e-05])
        """
        dtype = at_least_float32(torch.promote_types(before.dtype, after.dtype))
        w0 = before.to(dtype)
        w1 = after.to(dtype)
        d = w1 - w0
        length2 = self.dot(w0, w0)
        alive = (length2 > 0) & (self.dot(w1, w1) > 0)
        r = torch.where(alive, self.dot(w0, d) / length2, torch.zeros_like(length2))
        across = self.norm(d - self.broadcast(r, w0.shape) * w0)
        return torch.where(alive, torch.atan2(across, (1 + r) * length2.sqrt()), torch.zeros_like(length2))

    def broadcast(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Return one value per vector in a form that broadcasts against a tensor of this shape."""
        ones = [1] * len(shape)
        if self.granularity == "tensor":
            return values.reshape(ones)
        for axis in self.axes(len(shape)):
            ones[axis] = shape[axis]
        grouped = self._grouped
        return (values.repeat_interleave(grouped) if grouped > 1 else values).reshape(ones)

    def rows(self, *tensors: Tensor) -> list[Tensor]:
        """Return views of plain tensors of one shape, in which dimension 0 counts vectors and the rest are entries.

        Entries have the same order in all tensors. They are one dimension if all strides allow it. Several axes must be
        one in memory, as adjacent axes of a contiguous tensor are.
        """
        if tensors[0].dim() == 2 and self.axis == 0 and self.granularity == "neuron":
            return list(tensors)
        axes = self.axes(tensors[0].dim())
        if axes == tuple(range(len(axes))) and all(x.is_contiguous() for x in tensors):
            vectors = self.num_vectors(tensors[0].shape)
            # Both sizes, because a shard without rows does not determine the other.
            size = tensors[0].numel() // vectors if vectors else prod(tensors[0].shape[len(axes) :])
            return [x.view(vectors, size) for x in tensors]
        views = [self._vectors_first(x) for x in tensors]
        # In the order of memory, so channels-last weights merge into one dimension too.
        order = sorted(range(1, views[0].dim()), key=views[0].stride, reverse=True)
        views = [x.permute(0, *order) for x in views]
        try:
            return [x.view(x.shape[0], prod(x.shape[1:])) for x in views]
        except RuntimeError:  # no single dimension of entries has these strides
            return views

    def _vectors_first(self, x: Tensor) -> Tensor:
        if self.granularity == "tensor":
            return x.unsqueeze(0)
        axes = self.axes(x.dim())
        first = x.movedim(axes, tuple(range(len(axes))))
        sizes = (self.num_vectors(x.shape), self._grouped, *first.shape[len(axes) :])
        try:
            return first.view(sizes)
        except RuntimeError:
            raise ValueError(
                f"dimensions {axes} of a tensor of shape {tuple(x.shape)} and strides {x.stride()} are not one in "
                "memory: choose a single axis, or make the tensor contiguous"
            ) from None

    @property
    def _grouped(self) -> int:
        return self.group_size if self.granularity == "group" else 1

    def axes(self, dims: int) -> tuple[int, ...]:
        """Return the dimensions that count vectors, in ascending order, or none if the tensor is one vector."""
        if self.granularity == "none":
            raise ValueError("granularity='none' has no weight vectors: choose 'neuron', 'group' or 'tensor'")
        if self.granularity == "tensor":
            return ()
        chosen = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        if not all(-dims <= axis < dims for axis in chosen):
            raise ValueError(
                f"axis={self.axis} does not exist in a tensor of {dims} dimensions: choose 0 to {dims - 1}"
            )
        axes = sorted({axis % dims for axis in chosen})
        if len(axes) < len(chosen):
            raise ValueError(f"axis={self.axis} names a dimension of a tensor of {dims} dimensions twice")
        return tuple(axes)

    def vector_ids(self, shape: Sequence[int], device: torch.device | None = None) -> Tensor:
        """Return the number of the vector of each index of the axes: a tensor of the axes' sizes.

        >>> Split("group", group_size=2).vector_ids((6, 3))
        tensor([0, 0, 1, 1, 2, 2])
        """
        sizes = [shape[axis] for axis in self.axes(len(shape))]
        return torch.arange(prod(sizes), device=device).view(sizes) // self._grouped

    def _reduce(self, x: Tensor) -> Tensor:
        if self.granularity == "tensor":
            return whole(x.sum().reshape(1))
        vectors = self.num_vectors(x.shape)
        axes = self.axes(x.dim())
        entries = [dim for dim in range(x.dim()) if dim not in axes]
        per_index = x.sum(entries) if entries else x
        if len(axes) == 1 and self._grouped == 1:
            return whole(per_index) if _is_partial(per_index) else per_index
        # The shards of a DTensor may not end within a group, or within the indices of one of several axes.
        return whole(per_index).reshape(vectors, self._grouped).sum(1)


def whole(values: Tensor) -> Tensor:
    """Return a DTensor's values per vector, summed and gathered over processes. Return a plain tensor as it is."""
    if not hasattr(values, "placements"):
        return values
    # Importing torch.distributed is slow, and most programs have no DTensor.
    from torch.distributed.tensor import DTensor, Replicate

    sharded = cast(DTensor, values)
    return sharded.redistribute(placements=[Replicate()] * sharded.device_mesh.ndim)


def gathered(values: Tensor) -> Tensor:
    """Return values per vector of a DTensor as a plain tensor, the same on every process."""
    return cast(Any, values).full_tensor() if hasattr(values, "placements") else values


def _is_partial(values: Tensor) -> bool:
    return any(placement.is_partial() for placement in getattr(values, "placements", ()))


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of values per vector for weights of this dtype."""
    return torch.promote_types(dtype, torch.float32)
