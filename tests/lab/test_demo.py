"""The demo in small: it runs twice in the same place, and its exit code tells the truth."""

import io

import pytest
from gyroscope_lab import demo
from rich.console import Console

pytestmark = pytest.mark.slow


def test_it_runs_twice_in_one_place_and_writes_the_page(tmp_path):
    out = tmp_path / "a path with spaces"
    for _ in range(2):
        printed = io.StringIO()
        demo.demo(out, Console(file=printed, width=120), epochs=2)
    assert "10.weight" in printed.getvalue()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "rotational_adamw" in page


@pytest.mark.parametrize(("fan_in", "rotation", "fails"), [(288, 0.86, False), (288, 0.84, True), (9, 0.5, False)])
def test_a_wide_layer_that_turns_otherwise_fails_it(fan_in, rotation, fails):
    assert demo.LayerComparison("w", fan_in, rotation, 1.0, 1.0, 1.0).fails is fails


def test_a_rotation_that_was_never_measured_fails_it():
    assert demo.LayerComparison("w", 288, float("nan"), 1.0, 1.0, 1.0).fails
