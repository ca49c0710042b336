"""Weights & Biases as a sink of the tracker; offline works as online does."""

from typing import Any, final

from gyroscope.integrations.extras import extra

STEP = "gyroscope/step"


@final
class WandB:
    """Sends what the tracker measures to Weights & Biases: `Tracker(…, sinks=[WandB()])`.

    Uses the given run, or the one that is active, and leaves it open; without any it starts one with `options` of
    `wandb.init`, for example mode="offline", and finishes it. Numbers have an axis of their own, gyroscope/step, so
    that they are independent of the steps at which the loop logs. What `tracker.log` takes has it too, under its own
    name.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        self._started_here = False
        if run is None:
            wandb = extra("wandb", "wandb")
            run = wandb.run
            if run is None:
                self._started_here = True
                run = wandb.init(**options)
        self.run = run
        self.run.define_metric(STEP)
        self.run.define_metric("gyroscope/*", step_metric=STEP)
        self._logged: set[str] = set()

    def __call__(self, step: int, scalars: dict[str, float]) -> None:
        """Log the numbers of one sample, or those that training logged at one step."""
        for name in scalars:
            if not name.startswith("gyroscope/") and name not in self._logged:
                self._logged.add(name)
                self.run.define_metric(name, step_metric=STEP)
        self.run.log({**scalars, STEP: step})

    def close(self) -> None:
        """Finish the run if it was started here."""
        if self._started_here:
            self.run.finish()
