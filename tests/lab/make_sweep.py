"""A sweep in its folder, with scores that a function decides instead of trainings."""

import json

from gyroscope_lab.sweeps.plan import read_sweep

from tests.render.make import SMALL, healthy, run_at


def sweep_at(folder, plan, score, tracked=()):
    """Write a sweep with the `score(config)` of each trial: a number, a problem, or None where it has not run.

    Trials with a seed in `tracked` also have a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.toml").write_text(plan)
    for trial in read_sweep(folder / "sweep.toml").trials:
        found = score(trial.config)
        path = folder / trial.name
        path.mkdir()
        if isinstance(found, str):
            (path / "result.json").write_text(json.dumps({"scores": {}, "problem": found}))
        elif found is not None:
            (path / "result.json").write_text(json.dumps({"scores": {"validation_loss": found}}))
        if found is not None and trial.config.seed in tracked:
            run_at(path / "rotation", healthy(**SMALL), seed=trial.config.seed)
    return folder
