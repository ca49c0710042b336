"""What every test starts from, and the markers by which `make quick` leaves tests out."""

from fnmatch import fnmatchcase

import pytest
import torch

# Node ids by marker. They stand here, and not beside each test, so that the two-minute loop is decided in one place;
# tests/test_project.py fails for a pattern that no test matches any more. "slow" is what took more than about two
# seconds of one core when all tests were measured.
MARKED = {
    "browser": [
        "tests/live/test_browser.py::*",
        "tests/lab/test_runner.py::test_a_browser_*",
    ],
    "distributed": [
        "tests/optim/test_fsdp.py::*",
        "tests/measure/test_processes.py::*",
    ],
    "compile": [
        "tests/optim/test_compiled.py::*",
        "tests/optim/test_workspace.py::*",
        "tests/optim/test_*.py::test_*compile*",
        "tests/measure/test_tracker.py::test_a_compiled_*",
    ],
    "slow": [],
}

# Tests that need what older versions of torch do not have; tools/matrix runs them all.
NEEDED = {
    "torch.optim.Muon": (
        hasattr(torch.optim, "Muon"),
        [
            "tests/model/test_groups.py::test_muon_*",
            "tests/optim/test_schedulers.py::test_muon_*",
            "tests/optim/test_torch_rules.py::test_muon_*",
            "tests/planner/test_plan.py::test_muon_*",
            "tests/simulate/test_equilibrium.py::test_torchs_muon_*",
        ],
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by where they stand and what they are called."""
    for item in items:
        for marker, patterns in MARKED.items():
            if matches(item, patterns):
                item.add_marker(marker)
        for name, (there, patterns) in NEEDED.items():
            if not there and matches(item, patterns):
                item.add_marker(pytest.mark.skip(reason=f"torch {torch.__version__} has no {name}"))


def matches(item: pytest.Item, patterns: list[str]) -> bool:
    """Whether a test is one of those that the patterns name."""
    return any(fnmatchcase(item.nodeid, pattern) for pattern in patterns)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors are faster on one thread, and two would fight over two cores."""
    torch.set_num_threads(1)
