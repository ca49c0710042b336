"""The example in which one line is added to an ordinary loop runs, and tells what it measured."""

import subprocess
import sys
from pathlib import Path

import pytest

from gyroscope.store import open_run

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_loop.py"


def test_one_added_line_measures_an_ordinary_loop(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'gyroscope[lab]'")
    options = {"check": True, "capture_output": True, "encoding": "utf-8", "timeout": 300}
    done = subprocess.run([sys.executable, str(EXAMPLE)], cwd=tmp_path, **options)
    (path,) = (tmp_path / "runs").iterdir()
    run = open_run(path)
    assert run.layers == ["0.weight", "3.weight", "6.weight"]
    # Later samples are further apart where they cost more than their share of the time, as on a busy machine.
    assert run.steps.tolist()[:20] == [*range(20)]
    later = run.steps.tolist()[20:]
    assert len(later) >= 10
    assert set(later) <= {*range(20, 400, 10), 399}
    assert later[-1] == 399, "the last step is stored, whether or not it was due"
    assert f"{len(run.steps)} samples of 0.weight, 3.weight, 6.weight in {path}" in done.stdout
    assert str(run.diagnose()).splitlines()[0] in done.stdout
    measured, forecast = run.series("0.weight", "norm", "rms"), run.series("0.weight", "forecast_norm")
    assert abs(measured / forecast - 1).max() < 0.2, "a layer before BatchNorm follows its forecast"


def test_the_tracker_is_one_line_of_it():
    lines = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if "Tracker" in line]
    assert lines == ["tracker = gyro.Tracker(model, optimizer)  # the added line"]
