"""The helper that starts processes for tests: one retry if a signal kills a process, and none for a failure."""

import os
import signal
from pathlib import Path

import pytest
from torch.multiprocessing.spawn import ProcessRaisedException

from tests.processes import run_processes


def killed_once(rank: int, ports: list[int], folder: Path) -> None:
    if folder.name == "attempt-1":
        os.kill(os.getpid(), signal.SIGABRT)
    (folder / "done").touch()


def fails(rank: int, ports: list[int], folder: Path) -> None:
    (folder.parent / f"tried-{folder.name}").touch()
    raise ValueError("a defect")


def test_killed_processes_are_started_once_more_and_the_summary_says_so(tmp_path):
    with pytest.warns(UserWarning, match=r"processes were started again: killed_once: .*SIGABRT"):
        made = run_processes(killed_once, tmp_path, world=1)
    assert [path.name for path in made.iterdir()] == ["done"]
    assert made.name == "attempt-2"


def test_an_exception_in_a_process_is_a_failure_at_once(tmp_path):
    with pytest.raises(ProcessRaisedException, match="a defect"):
        run_processes(fails, tmp_path, world=1)
    assert [path.name for path in tmp_path.glob("tried-*")] == ["tried-attempt-1"]
