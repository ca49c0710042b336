"""The numbers at the head of a run: its optimizer and settings, its length, and the loss at the end."""

from collections import Counter
from dataclasses import dataclass
from math import isfinite, nan
from typing import final

import numpy as np

from gyroscope.advice import thresholds
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.judgements.rising_loss import judged_losses
from gyroscope.advice.phrases import format_memories, format_number
from gyroscope.advice.record import group_config
from gyroscope.report.layer_table import UNKNOWN, known
from gyroscope.store import Run


@final
@dataclass(frozen=True)
class RunHead:
    """The numbers at the head of a run.

    optimizer     class name, of the group with most layers
    steps         taken so far, sampled or not
    lr            peak learning rate of that group
    weight_decay  at the peak
    run_length    Σ lr·weight decay over the steps so far, in memories
    loss_name     name under which training logged its loss, on held-out data if there is one, or empty
    loss          mean of the last values
    """

    optimizer: str
    steps: int
    lr: float
    weight_decay: float
    run_length: float
    loss_name: str
    loss: float

    @property
    def texts(self) -> tuple[str, str, str]:
        """Optimizer with its settings, the loss and the length of the run, for people."""
        numbers = {"learning rate": self.lr, "weight decay": self.weight_decay}
        settings = [f"{name} {format_number(value)}" for name, value in numbers.items() if isfinite(value)]
        length = format_memories([self.run_length]) if self.run_length >= 0 else UNKNOWN
        return ", ".join([self.optimizer, *settings]), known(self.loss, 4), length

    def __str__(self) -> str:
        settings, loss, length = self.texts
        ends = [f"final {self.loss_name} {loss}"] if self.loss_name else []
        ends += [f"run length {length}"] if length != UNKNOWN else []
        return ", ".join([settings, f"{self.steps:,} steps", *ends])


def run_head(run: Run) -> RunHead:
    """Return the head of a run, from the samples that were read."""
    groups = Counter(run.layer(name).group for name in run.layers)
    number = groups.most_common(1)[0][0] if groups else 0
    optimizer = str(group_config(run.config, number).get("optimizer", "unknown optimizer"))
    member = next((name for name in run.layers if run.layer(name).group == number), None)
    loss_name, loss = _final_loss(run)
    if member is None or len(run.steps) == 0:
        return RunHead(optimizer, run.last_step + 1, nan, nan, nan, loss_name, loss)
    history = LayerHistory(run, member)
    lr = float(history.lr[history.peak])
    return RunHead(optimizer, run.last_step + 1, lr, history.weight_decay, history.run_length, loss_name, loss)


def _final_loss(run: Run) -> tuple[str, float]:
    name = next(iter(judged_losses(run.scalars)), "")
    if not name:
        return name, nan
    values = run.scalar(name)[1]
    last = values[-max(1, round(thresholds.FINAL_LOSS_SHARE * len(values))) :]
    finite = last[np.isfinite(last)]
    return name, float(finite.mean()) if finite.size else nan
