"""Low-precision weights: noise for stochastic rounding, and a warning where rounding loses the update."""

import torch
from torch import Tensor

from gyroscope.optim.formulas import Number

LOST_UPDATES = (
    "the angular update is below what low-precision weights resolve, so rounding loses much of it: "
    "pass stochastic_rounding=True, or keep the weights in float32"
)


def rounding_noise(w: Tensor, t: int, place: int, generators: dict[torch.device, torch.Generator]) -> Tensor:
    """Uniform in [-½, ½), to round low-precision weights with.

    Seeded by the step t, so that a resumed run rounds alike, and by the tensor's place among those of the step: what
    other processes hold of earlier tensors must not change how copies of this one are rounded.
    """
    if w.device not in generators:
        generators[w.device] = torch.Generator(w.device)
    # Python's hash of integers is the same in every process.
    generator = generators[w.device].manual_seed(hash((t, place)) % 2**63)
    return torch.empty(w.shape, device=w.device).uniform_(-0.5, 0.5, generator=generator)


def loses_updates(angle: Number, dtype: torch.dtype) -> bool:
    """Whether rounding to nearest loses much of a turn, as far as that is known without asking a device."""
    if isinstance(angle, Tensor) and angle.device.type != "cpu":
        return False
    # Rounding to nearest keeps a mean turn down to about 1.28 spacings of the dtype.
    return bool(0 < angle < 1.28 * torch.finfo(dtype).eps)
