"""Training by name: a task, a network, an optimizer; resumable at any step."""

from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import TrainResult, train

__all__ = ["TrainConfig", "TrainResult", "train"]
