"""One trial of a sweep in a process of its own: python -m gyroscope.lab.sweeps.trial FOLDER [DATA_ROOT]."""

import json
import sys
from pathlib import Path

from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import train


def run_trial(folder: str, data_root: str | None = None) -> None:
    """Begin or resume the run whose settings are in trial.json of the folder."""
    path = Path(folder)
    config = TrainConfig.from_dict(json.loads((path / "trial.json").read_text(encoding="utf-8")))
    train(config, path, resume=True, data_root=None if data_root is None else Path(data_root))


def main() -> int:
    """Run the trial; bad settings are one line in the log."""
    try:
        run_trial(*sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
