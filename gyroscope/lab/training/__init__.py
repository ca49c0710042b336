"""Training by name: a task, a network, an optimizer; resumable at any step."""

from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import train
from gyroscope.lab.training.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "train"]
