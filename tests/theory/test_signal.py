"""Signal in Adam's state and in the equilibrium: planted signals, and a batch size measured twice."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from gyroscope.theory import signal


def test_the_first_step_of_adam_has_the_whole_mean_square():
    assert signal.noise_share(0.9, step=1) == pytest.approx(1.0)
    assert signal.noise_share(0.9, step=1000) == pytest.approx(signal.noise_share(0.9))


@pytest.mark.slow
def test_the_signal_ratio_is_that_of_two_batch_sizes_on_digits_within_10_percent():
    """Two batch sizes at weights that stand still: E‖g_B‖² = |G|² + tr Σ/B."""
    data = load_digits()
    inputs = torch.tensor(data.data / 16, dtype=torch.float32)
    targets = torch.tensor(data.target)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99))

    def square(batch_size: int) -> float:
        drawn = torch.randint(len(inputs), (batch_size,))
        adam.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[drawn]), targets[drawn]).backward()
        return sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None)

    for _ in range(60):
        square(16)
        adam.step()
    adam.param_groups[0]["lr"] = 0.0
    squares, first, second = [], [], []
    for step in range(3000):
        squares.append(square(16))
        adam.step()
        if step >= 500:
            states = list(adam.state.values())
            first.append(sum(float((state["exp_avg"] ** 2).sum()) for state in states))
            second.append(sum(float(state["exp_avg_sq"].sum()) for state in states))
    small, large = np.mean(squares), np.mean([square(64) for _ in range(3000)])
    noise = (small - large) / (1 / 16 - 1 / 64)
    kappa2 = signal.signal_ratio(np.mean(first), np.mean(second), 0.9)
    assert kappa2 == pytest.approx(16 * small / noise - 1, rel=0.1)
