"""What a choice of optimizer, learning rate, weight decay and schedule will do, in words, before training."""

from gyroscope.advice.question import Question
from gyroscope.planner.answer import Answer, answer
from gyroscope.planner.settings import ask, read_config
from gyroscope.theory.layers import Layer, Prediction

__all__ = ["Answer", "Layer", "Prediction", "Question", "answer", "ask", "read_config"]
