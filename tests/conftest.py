"""What every test starts from."""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without Python's garbage collector, and hide from it what tests start from.

    Modules and tests are a million objects that live to the end. Each full collection would look at all of them again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors are faster on one thread, and two would fight over two cores."""
    # Here and not above, because the process that only hands out tests needs no torch.
    import torch

    torch.set_num_threads(1)
