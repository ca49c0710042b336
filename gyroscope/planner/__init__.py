"""What a choice of optimizer, learning rate, weight decay and schedule will do, in words, before training."""

from gyroscope.planner.answer import Answer, answer
from gyroscope.planner.prediction import Prediction
from gyroscope.planner.question import Layer, Question, ask, read_config

__all__ = ["Answer", "Layer", "Prediction", "Question", "answer", "ask", "read_config"]
