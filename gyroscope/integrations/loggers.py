"""Loggers as sinks of the tracker: one adapter for anything with `log(scalars, step)`, and four names over it."""

import os
import re
from collections.abc import Callable
from typing import Any, final

from gyroscope.integrations.extras import extra

STEP = "gyroscope/step"


class LogSink:
    """Sends what the tracker measures to a logger: `Tracker(…, sinks=[LogSink(run)])`.

    logger: an object with `log(scalars, step)`, or that function.
    close: called when the run of the tracker ends.

    >>> LogSink(lambda scalars, step: print(step, scalars))(7, {"loss": 0.5})
    7 {'loss': 0.5}
    """

    def __init__(self, logger: Any, close: Callable[[], Any] = lambda: None) -> None:
        self._log = getattr(logger, "log", logger)
        self._close = close

    def __call__(self, step: int, scalars: dict[str, float]) -> None:
        """Log the numbers of one sample, or those that training logged at one step."""
        self._log(scalars, step)

    def close(self) -> None:
        """End what was begun here."""
        self._close()


@final
class TensorBoard(LogSink):
    """Shows what the tracker measures in TensorBoard: `Tracker(…, sinks=[TensorBoard("runs/tensorboard")])`.

    Takes a directory, or the SummaryWriter of a loop that has one already, which is left open at the end.
    """

    def __init__(self, where: str | os.PathLike[str] | Any) -> None:
        is_path = isinstance(where, str | os.PathLike)
        if not is_path and not hasattr(where, "add_scalar"):
            raise ValueError(f"where={where!r} must be a directory, or a SummaryWriter with add_scalar")
        self.writer: Any = where
        if is_path:
            self.writer = extra("torch.utils.tensorboard", "tensorboard").SummaryWriter(os.fspath(where))
        super().__init__(self._write, self.writer.close if is_path else self.writer.flush)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)


@final
class WandB(LogSink):
    """Sends what the tracker measures to Weights & Biases: `Tracker(…, sinks=[WandB()])`.

    Uses the given run, or the active one, and leaves it open. Without any it starts one with `options` of `wandb.init`,
    for example mode="offline", and finishes it. Numbers have an axis of their own, gyroscope/step, so that they are
    independent of the steps at which the loop logs. Values passed to `tracker.log` have it too, under their own names.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        wandb = extra("wandb", "wandb") if run is None else None
        active = run if wandb is None else wandb.run
        self.run = active if wandb is None or active is not None else wandb.init(**options)
        # Drop-in replacements of wandb may lack it.
        self._define = getattr(self.run, "define_metric", lambda name, step_metric=None: None)
        self._define(STEP)
        self._define("gyroscope/*", step_metric=STEP)
        self._defined: set[str] = set()
        super().__init__(self._write, self.run.finish if active is None else lambda: None)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        for name in scalars:
            if not name.startswith("gyroscope/") and name not in self._defined:
                self._defined.add(name)
                self._define(name, step_metric=STEP)
        self.run.log({**scalars, STEP: step})


@final
class Trackio(LogSink):
    """Sends what the tracker measures to trackio: `Tracker(…, sinks=[Trackio(project="mine")])`.

    Uses the given run, or the active one, and leaves it open. Without any it starts one with `options` of
    `trackio.init` and finishes it.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        active = run or extra("trackio.context_vars", "trackio").current_run.get()
        self.run = active or extra("trackio", "trackio").init(**{"project": "gyroscope", **options})
        super().__init__(self.run, self.run.finish if active is None else lambda: None)


@final
class MLflow(LogSink):
    """Sends what the tracker measures to MLflow: `Tracker(…, sinks=[MLflow()])`.

    Uses the given run, or the active one, and leaves it open. Without any it starts one with `options` of
    `mlflow.start_run` and ends it. Brackets in names of layers become underscores, because MLflow refuses them.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        self._mlflow = extra("mlflow", "mlflow")
        active = run or self._mlflow.active_run()
        self.run = active or self._mlflow.start_run(**options)
        super().__init__(self._write, self._mlflow.end_run if active is None else lambda: None)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        allowed = {re.sub(r"[^\w./: -]", "_", name): value for name, value in scalars.items()}
        # By number, because MLflow's active run belongs to the thread that started it.
        self._mlflow.log_metrics(allowed, step=step, run_id=self.run.info.run_id)
