"""Training from a config. A run can be resumed at any step."""

from gyroscope_lab.training.by_name import train
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "train"]
