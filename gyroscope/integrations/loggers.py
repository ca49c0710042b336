"""Loggers as sinks of the tracker: one adapter for anything with `log(scalars, step)`, and four names over it."""

import os
import re
from collections.abc import Callable
from typing import Any, final

from gyroscope.integrations.extras import extra

STEP = "gyroscope/step"


def _nothing(*_: Any, **options: Any) -> None:
    """Do nothing."""


class LogSink:
    """A sink that sends measurements to a logger: `Tracker(…, sinks=[LogSink(run)])`.

    logger: an object with `log(scalars, step)`, or that function.
    close: called when the run of the tracker ends.

    >>> LogSink(lambda scalars, step: print(step, scalars))(7, {"loss": 0.5})
    7 {'loss': 0.5}
    """

    def __init__(self, logger: Any, close: Callable[[], Any] = _nothing) -> None:
        self._log = getattr(logger, "log", logger)
        self._close = close

    def __call__(self, step: int, scalars: dict[str, float]) -> None:
        """Log the numbers of one sample, or those that training logged at one step."""
        self._log(scalars, step)

    def close(self) -> None:
        """Call the function given as `close`."""
        self._close()


@final
class TensorBoard(LogSink):
    """A sink for TensorBoard: `Tracker(…, sinks=[TensorBoard("runs/tensorboard")])`.

    Takes a directory, or an existing SummaryWriter, which is left open at the end.
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
    """A sink for Weights & Biases: `Tracker(…, sinks=[WandB()])`.

    Uses the given run, or the active one, and leaves it open. Without any it starts one with `options` of `wandb.init`,
    for example mode="offline", and finishes it. Numbers have their own axis, gyroscope/step, so they do not depend on
    the steps at which the loop logs. Values passed to `tracker.log` have the same axis, under their own names.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        self.run = run if run is not None else extra("wandb", "wandb").run
        is_started_here = self.run is None
        if is_started_here:
            self.run = extra("wandb", "wandb").init(**options)
        super().__init__(self._write, self.run.finish if is_started_here else _nothing)
        # Drop-in replacements of wandb may lack it.
        self._define = getattr(self.run, "define_metric", _nothing)
        self._define(STEP)
        self._define("gyroscope/*", step_metric=STEP)
        self._defined: set[str] = set()

    def _write(self, scalars: dict[str, float], step: int) -> None:
        for name in scalars:
            if not name.startswith("gyroscope/") and name not in self._defined:
                self._defined.add(name)
                self._define(name, step_metric=STEP)
        self.run.log({**scalars, STEP: step})


@final
class Trackio(LogSink):
    """A sink for trackio: `Tracker(…, sinks=[Trackio(project="mine")])`.

    Uses the given run, or the active one, and leaves it open. Without any it starts one with `options` of
    `trackio.init`, and finishes it.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        self.run = run if run is not None else extra("trackio", "trackio").context_vars.current_run.get()
        is_started_here = self.run is None
        if is_started_here:
            trackio = extra("trackio", "trackio")
            self.run = trackio.init(**{"project": "gyroscope", **options})
            # The thread of the sink will finish it, and could not reset the variable of this thread.
            trackio.context_vars.current_run.set(None)
        super().__init__(self.run, self.run.finish if is_started_here else _nothing)


@final
class MLflow(LogSink):
    """A sink for MLflow: `Tracker(…, sinks=[MLflow()])`.

    Uses the given run, or the active one of `mlflow.start_run`, and leaves it open. Names are those of other loggers
    with dots after the first slash, gyroscope/norm.0.weight, and underscores for brackets, as MLflow's stores need it.
    """

    def __init__(self, run: Any = None) -> None:
        self._mlflow = extra("mlflow", "mlflow")
        self.run = run or self._mlflow.active_run()
        if self.run is None:
            raise ValueError("no MLflow run is active: call mlflow.start_run() first, or pass the run, MLflow(run)")
        super().__init__(self._write)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        metrics = {}
        for name, value in scalars.items():
            group, slash, rest = name.partition("/")
            # In a folder of files, a/b cannot be both a number and a group of numbers.
            metrics[re.sub(r"[^\w./: -]", "_", f"{group}{slash}{rest.replace('/', '.')}")] = value
        # By number, because MLflow's active run belongs to the thread that started it.
        self._mlflow.log_metrics(metrics, step=step, run_id=self.run.info.run_id)
