"""The result of a training run: its scores, and the step at which it diverged, if it did."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from gyroscope.store import Run, open_run
from gyroscope_lab.training.config import TrainConfig

# Folder of the tracker's measurements, inside the folder of the run.
ROTATION = "rotation"


def new_folder() -> Path:
    """Return a folder below runs/ that is named after the current time."""
    return Path("runs", datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))


@dataclass(frozen=True)
class Rotation:
    """Rotation of a layer in a step, in radians. `predicted` is the angle in equilibrium, NaN if unknown."""

    step: int
    layer: str
    angle: float
    predicted: float

    def __str__(self) -> str:
        against = "" if np.isnan(self.predicted) else f", {self.angle / self.predicted:.3g} × its prediction"
        return f"at step {self.step:,} {self.layer} rotated by {self.angle:.3g} radians{against}"


@dataclass(frozen=True)
class Divergence:
    """The first step whose loss is not finite, and the fastest layer at the last measurement before it."""

    step: int
    before: Rotation | None

    def __str__(self) -> str:
        turned = f" ({self.before}, the most of all layers)" if self.before else ""
        return f"the loss is not finite from step {self.step:,} on{turned}"


@dataclass(frozen=True)
class TrainResult:
    """A training run in its folder `path`, with the history of its scores on held-out data."""

    path: Path
    config: TrainConfig
    steps: int
    history: list[dict[str, float]]
    divergence: Divergence | None

    @property
    def scores(self) -> dict[str, float]:
        """The last scores on held-out data. Empty if the run diverged before the first evaluation."""
        return {name: value for name, value in self.history[-1].items() if name != "step"} if self.history else {}

    def run(self) -> Run:
        """Open the tracked run: rotation of every layer, and loss and scores of every step."""
        return open_run(self.path / ROTATION)


def fastest_before(step: int, folder: Path) -> Rotation | None:
    """Return the layer that exceeded its predicted rotation most at the last sample before a step, or None."""
    if not folder.exists():
        return None
    with open_run(folder) as run:
        for sampled in reversed(run.steps[run.steps < step].tolist()):
            angles, predicted = run.values_at(
                sampled, [("angular_update", "rms"), ("predicted_angular_update", "mean")]
            )
            ratios = angles / predicted
            # Without weight decay there is no prediction.
            measure = ratios if np.isfinite(ratios).any() else angles
            if np.isfinite(measure).any():
                place = int(np.nanargmax(np.where(np.isfinite(measure), measure, np.nan)))
                return Rotation(sampled, run.layers[place], float(angles[place]), float(predicted[place]))
    return None
