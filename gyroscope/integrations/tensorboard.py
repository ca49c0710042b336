"""TensorBoard as a sink of the tracker."""

import os
from typing import Any, final

from gyroscope.integrations.extras import extra


@final
class TensorBoard:
    """Shows what the tracker measures in TensorBoard: `Tracker(…, sinks=[TensorBoard("runs/tensorboard")])`.

    Takes a directory, or the SummaryWriter of a loop that has one already, which is left open at the end.
    """

    def __init__(self, where: str | os.PathLike[str] | Any) -> None:
        self._opened_here = isinstance(where, str | os.PathLike)
        if self._opened_here:
            self.writer = extra("torch.utils.tensorboard", "tensorboard").SummaryWriter(os.fspath(where))
        elif hasattr(where, "add_scalar"):
            self.writer = where
        else:
            raise ValueError(f"where={where!r} must be a directory, or a SummaryWriter with add_scalar")

    def __call__(self, step: int, scalars: dict[str, float]) -> None:
        """Write the numbers of one sample, or those that training logged at one step."""
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered, and close a writer that was opened here."""
        self.writer.flush()
        if self._opened_here:
            self.writer.close()
