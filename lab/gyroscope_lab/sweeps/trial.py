"""One trial of a sweep in its own process: python -m gyroscope_lab.sweeps.trial FOLDER [DATA_ROOT]."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from gyroscope_lab.training import TrainConfig, train


def run_trial(folder: str, data_root: str | None = None) -> None:
    """Start or resume the run whose settings are in trial.json of the folder."""
    path = Path(folder)
    config = TrainConfig.from_dict(json.loads((path / "trial.json").read_text(encoding="utf-8")))
    train(config, path, resume=True, data_root=None if data_root is None else Path(data_root))


def stop_with_parent(parent: int) -> None:
    """Interrupt this process when the sweep that started it was killed. It then writes a checkpoint."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """Run the trial. Invalid settings are one line in the log."""
    # A shell starts background commands with interrupts ignored, and this process would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        run_trial(*sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
