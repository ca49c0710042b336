"""Hugging Face: a callback that measures a Trainer's run, and a factory that makes our optimizers for its model.

Trainer(…, callbacks=[RotationCallback()],
        optimizer_cls_and_kwargs=(OptimizerFactory, {"name": "rotational-adamw", "lr": 1e-3, "weight_decay": 0.1}))
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from gyroscope.advice import Findings
from gyroscope.integrations.extras import extra
from gyroscope.integrations.loggers import MLflow, TensorBoard, Trackio, WandB
from gyroscope.measure.sinks import Sink
from gyroscope.measure.tracker import Tracker
from gyroscope.optim.registry import create

transformers: Any = extra("transformers", "transformers")
extra("accelerate", "transformers")  # without which no Trainer can be made

# By their names in `report_to`. The Trainer has started their runs.
LOGGERS: dict[str, Callable[[], Sink]] = {"wandb": WandB, "trackio": Trackio, "mlflow": MLflow}


@final
class RotationCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """A callback that measures how fast each weight vector rotates while a Trainer trains.

    Accelerate's wrapper of the optimizer is unwrapped. TensorBoard, Weights & Biases, trackio and MLflow get the
    numbers if the Trainer reports to them, in the Trainer's own run. The run gets the losses that the Trainer logs. Set
    `logging_steps=1` to store every loss. It also gets the size of the batch, which `gyroscope transfer --from` reads.
    Training that resumes from a checkpoint resumes the run. At the end the diagnosis is in `diagnosis`.

    path: directory of the run. Default: rotation in the Trainer's output_dir.
    options: arguments of `gyro.Tracker`, such as every, rows or sinks.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.path = path
        self.options = options
        self.tracker: Tracker | None = None
        self.diagnosis: Findings | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        """Attach to the optimizer, when a checkpoint's state has been loaded."""
        path = Path(args.output_dir, "rotation") if self.path is None else Path(self.path)
        resume = state.global_step > 0 and path.exists()
        # Other processes measure, but only this one writes and reports.
        reported = self._sinks(args) if state.is_world_process_zero else []
        sinks = [*self.options.get("sinks", ()), *reported]
        # A transfer needs the batch, in samples of all processes. What the user gives counts instead.
        known = {
            "batch_size": (state.train_batch_size or args.train_batch_size) * args.world_size,
            "accumulate": args.gradient_accumulation_steps,
            "logging_steps": args.logging_steps,
        }
        options = {
            **self.options,
            "sinks": sinks,
            "config": known | dict(self.options.get("config") or {}),
            "resume": resume,
            "start": state.global_step if resume else None,
        }
        self.tracker = Tracker(trained["model"], trained["optimizer"], path, **options)

    def _sinks(self, args: Any) -> list[Sink]:
        makers: dict[str, Callable[[], Sink]] = {
            "tensorboard": lambda: TensorBoard(_tensorboard_folder(args)),
            **LOGGERS,
        }
        return [make() for name, make in makers.items() if name in args.report_to]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Store the losses that the Trainer logs."""
        losses = {name: value for name, value in (logs or {}).items() if name in ("loss", "eval_loss")}
        if self.tracker is not None and losses:
            self.tracker.log(**losses)
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store all measurements so far if a checkpoint follows."""
        # The Trainer has no call right before it saves. It decides at the end of a step or an epoch, then logs.
        if self.tracker is not None and control.should_save:
            self.tracker.flush()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run, and log its diagnosis."""
        if self.tracker is None:
            return
        self.tracker.close()
        if self.tracker.writes:
            self.diagnosis = self.tracker.diagnose()
            transformers.logging.get_logger(__name__).info(f"{self.tracker.path}:\n{self.diagnosis}")


def _tensorboard_folder(args: Any) -> Path:
    """Return the folder in which this process's Trainer writes, so that TensorBoard shows one run."""
    folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR", args.output_dir)).expanduser()
    files = sorted(folder.glob(f"**/events.out.tfevents.*.{os.getpid()}.*"), key=lambda file: file.stat().st_mtime)
    return files[-1].parent if files else folder / "runs" / "rotation"


@final
class OptimizerFactory:
    """A factory for a Trainer's `optimizer_cls_and_kwargs`. It gets the model, and sorts its parameters into groups.

    The keywords are the name, one of `gyro.optim.names()`, and the options of its class.
    """

    def __call__(self, model: nn.Module, *, name: str, **options: Any) -> Optimizer:
        """Return the optimizer of that name over the model's parameters."""
        return create(name, model, **options)
