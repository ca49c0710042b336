"""Lightning: a callback that measures a fit, and continues its run when a checkpoint is resumed.

Trainer(callbacks=[RotationCallback("runs/mine")])
"""

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor

from gyroscope.advice import Findings
from gyroscope.integrations.extras import extra
from gyroscope.measure.tracker import Tracker

# A directory for the runs of every Trainer of the process, or 1 for the default one. If unset, none is measured.
VARIABLE = "GYROSCOPE_LIGHTNING"

pytorch: Any = extra("lightning", "lightning").pytorch


@final
class RotationCallback(pytorch.Callback):  # type: ignore[misc]
    """Measures how fast each weight vector rotates while Lightning trains. All optimizers of the module are one run.

    The tracker starts with training, after a checkpoint's optimizer state has been restored. Its numbers go to the
    trainer's loggers. The loss that `training_step` returns goes to the run. At the end the diagnosis is logged and
    stored in `diagnosis`. If an exception ends the fit, the run has the status "failed".

    path: directory of the run, by default rotation in the trainer's log directory.
    log: whether the loggers of the trainer get the numbers.
    options: arguments of `gyro.Tracker`, such as every, rows or sinks.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, log: bool = True, **options: Any) -> None:
        super().__init__()
        self.path = path
        self.log = log
        self.options = options
        self.tracker: Tracker | None = None
        self.diagnosis: Findings | None = None
        self._resumed: dict[str, Any] = {}
        # Samples come from a thread of the tracker, and loggers belong to the training thread.
        self._samples: deque[tuple[int, dict[str, float]]] = deque()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the optimizers, and resume the run of a checkpoint that was loaded."""
        path = self.path or Path(trainer.log_dir or trainer.default_root_dir, "rotation")
        sinks = [*self.options.get("sinks", ()), lambda step, numbers: self._samples.append((step, numbers))]
        options = {**self.options, "sinks": sinks}
        if self._resumed and Path(self._resumed["path"]).exists():
            path = self._resumed["path"]
            options |= {"resume": True, "start": self._resumed["step"]}
        self.tracker = Tracker(pl_module, trainer.optimizers, path, **options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Store the loss, and hand the samples that are ready to the loggers."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self.tracker is not None and isinstance(loss, Tensor):
            self.tracker.log(loss=loss.detach())
        self._log_samples(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Store all measurements so far, because a fit that resumes from this checkpoint needs them."""
        if self.tracker is not None:
            self.tracker.flush()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run, and log its diagnosis."""
        if self.tracker is None:
            return
        self.tracker.close("finished")
        self._log_samples(trainer)
        if trainer.is_global_zero:
            self.diagnosis = self.tracker.diagnose()
            pytorch.utilities.rank_zero_info(f"{self.tracker.path}:\n{self.diagnosis}")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run as one that failed."""
        if self.tracker is not None:
            self.tracker.close("failed")

    def state_dict(self) -> dict[str, Any]:
        """Return the path of the run and the number of its next step."""
        if self.tracker is None or not self.tracker.writes:
            return dict(self._resumed)
        return {"path": str(self.tracker.path.resolve()), "step": self.tracker.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue that run when training starts, if it still exists."""
        self._resumed = dict(state_dict)

    def _log_samples(self, trainer: Any) -> None:
        while self._samples:
            step, numbers = self._samples.popleft()
            # The module logs the loss itself, under the name that it chose.
            measured = {name: value for name, value in numbers.items() if name.startswith("gyroscope/")}
            for logger in trainer.loggers if self.log and measured else ():
                logger.log_metrics(measured, step=step)


def callbacks() -> list[Any]:
    """Return a callback for every Trainer if `VARIABLE` is set, for Lightning's entry point."""
    where = os.environ.get(VARIABLE, "")
    if where in ("", "0"):
        return []
    return [RotationCallback(None if where == "1" else where)]
