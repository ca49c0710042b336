"""Training by name: a task, a network, an optimizer; resumable at any step."""

from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.loop import train
from gyroscope_lab.training.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "train"]
