"""Low-precision weights: noise for stochastic rounding, and a warning where rounding loses the update."""

import warnings

import torch
from torch import Tensor

from gyroscope.optim.formulas import Number

LOST_UPDATES = (
    "the angular update is below what low-precision weights resolve, so rounding loses much of it: "
    "pass stochastic_rounding=True, or keep the weights in float32"
)


class Rounding:
    """How the weights of one step are rounded."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}
        self._loses_updates = False

    def noise(self, w: Tensor, step: int, angle: Number, stochastic: bool) -> Tensor | None:
        """Uniform in [-½, ½), to round low-precision weights with; seeded by `step`: a resumed run rounds alike.

        None without `stochastic`: then an angle too small for the weights is remembered.
        """
        if not stochastic:
            # Rounding to nearest keeps a mean turn down to about 1.28 spacings of the dtype.
            self._loses_updates |= _is_known_below(angle, 1.28 * torch.finfo(w.dtype).eps)
            return None
        generator = self._generators.get(w.device)
        if generator is None:
            generator = self._generators[w.device] = torch.Generator(w.device).manual_seed(step)
        return torch.empty(w.shape, device=w.device).uniform_(-0.5, 0.5, generator=generator)

    def warn(self, warned: set[str]) -> None:
        """Warn of lost updates, once for each set of messages that were given."""
        if self._loses_updates and LOST_UPDATES not in warned:
            warned.add(LOST_UPDATES)
            warnings.warn(LOST_UPDATES, stacklevel=8)  # the user's line, behind what torch wraps around step


def _is_known_below(angle: Number, threshold: float) -> bool:
    """Whether the angle is above 0 and below the threshold, as far as that is known without asking a device."""
    return not (isinstance(angle, Tensor) and angle.device.type != "cpu") and bool(0 < angle < threshold)
