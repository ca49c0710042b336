"""What every test starts from."""

import gc
import os
from collections.abc import Generator

import pytest

# Small tensors are faster on one thread, and the threads of two processes would fight over two cores. Before torch is
# imported, so that it holds for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"


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
