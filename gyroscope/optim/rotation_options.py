"""Options of rotational optimizers: their types, their checks, and what groups derive from them."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal, get_args

from torch import Tensor

from gyroscope._checks import check_fraction
from gyroscope.geometry import Split
from gyroscope.model.by_name import NamedTensor, splits_by_name
from gyroscope.model.parameters import clean_name
from gyroscope.optim._engine.compiled import check_compile
from gyroscope.optim._engine.steps import Group
from gyroscope.optim.formulas import Norms

# True centres updates, "weights" centres the weights after each step.
Centring = bool | Literal["weights"]
# RE's average of squared update lengths, or the one of `gyroscope.optim.update_average`.
UpdateAverage = Literal["plain", "noise"]
ROTATION_ROWS = ("radius", "update_sq")


def check_rotational(group: Group) -> None:
    """Raise ValueError for options of a rotational optimizer that contradict each other."""
    check_rotation_options(group)
    if group["weight_decay"] == 0 and rotating(group):
        raise ValueError(
            "weight_decay=0 in a group that rotates: its angular update would be 0. Give it a weight decay, "
            "for example 0.1, or granularity='none'"
        )


def rotating(group: Group) -> list[Tensor]:
    """Return the group's parameters that rotate."""
    split = Split.of(group)
    return [p for p in group["params"] if split.rotates(p.shape)]


def check_rotation_options(group: Group) -> None:
    """Raise ValueError for an invalid option of the rotation."""
    check_fraction("beta", group["beta"])
    check_compile(group["compile"])
    average = group["update_average"]
    if average not in get_args(UpdateAverage):
        raise ValueError(f"update_average={average!r} is unknown: choose 'plain' (RE's) or 'noise'")
    if group["norms"] not in get_args(Norms):
        raise ValueError(
            f"norms={group['norms']!r} is unknown: choose 'fixed' (each vector keeps its norm), 'free' (norms follow "
            "the loss) or 'settling' (they are also drawn to those of equilibrium)"
        )
    centre = group["centre"]
    if centre not in (True, False, "weights"):
        raise ValueError(
            f"centre={centre!r} is unknown: choose True (centred updates), 'weights' (weights are centred after each "
            "step) or False"
        )


def is_published_hyperball(group: Group) -> bool:
    """Return whether the group takes this step, rather than Layca's or that of an equilibrium."""
    return bool(group["mode"] == "hyperball" and not group["tangent"])


def matrix_options(group: Group) -> Group:
    """Return the split into whole matrices, for a group whose split the user did not choose.

    `param_groups` writes one vector per neuron, with names. Axes (0, 1) are those of experts: one matrix per expert.
    """
    if not any(option in group for option in asdict(Split())):
        return asdict(Split("tensor"))
    split = Split.of(group)
    if split.granularity != "neuron" or "param_names" not in group:
        return {}
    stacked = split.axis[:-1] if isinstance(split.axis, tuple) else ()
    return asdict(Split(axis=stacked[0] if len(stacked) == 1 else stacked) if stacked else Split("tensor"))


def outer_members(group: Group) -> list[int]:
    """Return the positions of the output layer and of embeddings, which Hyperball leaves to the inner step.

    `param_groups` has already sorted the embeddings. In a group without names they cannot be recognised.
    docs/theory.md, "Hyperball", has the reasons.
    """
    names = [clean_name(name) for name in group.get("param_names", ())]
    shapes = dict(zip(names, (tuple(p.shape) for p in group["params"]), strict=False))
    by_name = {} if "granularity" in group else splits_by_name(shapes)
    outer = {name for name, known in by_name.items() if known.is_embedding}
    outer |= {name for name, shape in shapes.items() if NamedTensor.of(name, shape).is_output_layer}
    return [place for place, name in enumerate(names) if name in outer]


def warn_of_zero_matrices(weights: Sequence[Tensor]) -> None:
    """Warn if weights are zero, such as projections that start at zero."""
    zeros = [tuple(p.shape) for p in weights if p.numel() and not p.is_meta and not p.detach().any()]
    if zeros:
        warnings.warn(
            f"{len(zeros)} of {len(weights)} weights are zero (the first has shape {zeros[0]}), and hyperball has no "
            "norm to keep: they take the inner optimizer's plain step until they are not zero, and keep that norm",
            stacklevel=2,
        )
