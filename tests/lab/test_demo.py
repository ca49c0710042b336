"""The demo in small: it runs twice in the same place, its exit code and its closing sentence are true."""

import io

import numpy as np
import pytest
from gyroscope_lab import demo, demo_text
from rich.console import Console

pytestmark = pytest.mark.slow


def test_it_runs_twice_in_one_place_and_writes_both_pages(tmp_path):
    out = tmp_path / "a path with spaces"
    for _ in range(2):
        printed = io.StringIO()
        demo.demo(out, Console(file=printed, width=120), steps=10, seeds=2)
    assert "n = 2 seeds" in printed.getvalue()
    assert "rotational_sgd" in (out / "report.html").read_text(encoding="utf-8")
    assert "over learning rate" in (out / "losses.html").read_text(encoding="utf-8")


def test_both_optimizers_start_from_the_same_network():
    (plain, _), (rotational, _) = (demo.make(name, lr=0.1, seed=3) for name in demo.NAMES)
    assert all((a == b).all() for a, b in zip(plain.parameters(), rotational.parameters(), strict=True))


@pytest.mark.parametrize(("fan_in", "rotation", "fails"), [(288, 0.76, False), (288, 0.74, True), (9, 0.5, False)])
def test_a_wide_layer_that_does_not_rotate_as_predicted_fails_it(fan_in, rotation, fails):
    assert demo.LayerComparison("w", fan_in, rotation, 1.0).fails is fails


def test_a_rotation_that_was_never_measured_fails_it():
    assert demo.LayerComparison("w", 288, float("nan"), 1.0).fails


@pytest.mark.parametrize(
    ("changes", "conclusion"),
    [
        ((-0.2, -0.2), "even at the learning rate that suits SGD best"),
        ((0.0, -0.6), "if the learning rate is not tuned"),
        ((0.0, 0.0), "does not show that either of them is better"),
        ((0.2, 0.2), "does not show that either of them is better"),
    ],
)
def test_the_closing_sentence_states_what_the_intervals_support(changes, conclusion):
    noise = np.array([[-0.02, 0.0, 0.02], [0.01, -0.03, 0.02]])
    losses = {"sgd": np.array([[0.5], [1.0]]) + 0 * noise}
    losses["rotational_sgd"] = losses["sgd"] + np.array(changes)[:, None] + noise
    accuracies = {name: 1 - loss / 3 for name, loss in losses.items()}
    sentence = demo_text.closing_sentence((0.03, 0.1), losses, accuracies)
    assert conclusion in sentence
    assert "n = 3 seeds" in sentence
