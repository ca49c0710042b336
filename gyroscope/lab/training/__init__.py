"""Training by name: a task, a network, an optimizer; resumable at any step."""

from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import train
from gyroscope.lab.training.run import Run

__all__ = ["Run", "TrainConfig", "train"]
