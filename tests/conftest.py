"""What every test starts from."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors are faster on one thread, and two would fight over two cores."""
    torch.set_num_threads(1)
