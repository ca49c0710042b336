"""The lab imports public names of the library, and its framework imports no experiment."""

import subprocess
import sys
from pathlib import Path

import gyroscope_lab
import pytest
from gyroscope_lab.framework.papers import PAPERS

from tests.test_imports import imports

LAB = Path(gyroscope_lab.__file__).parent
FILES = sorted(LAB.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LAB)))
def test_no_private_name_of_the_library_is_imported(path):
    parts = [name.split(".") for name in imports(path)]
    private = [name for name in parts if name[0] == "gyroscope" and any(part.startswith("_") for part in name[1:])]
    assert private == []


@pytest.mark.parametrize("room", ["framework", "training", "sweeps", "tasks", "networks"])
def test_what_experiments_share_imports_no_experiment(room):
    paths = sorted((LAB / room).glob("*.py"))
    assert paths
    for path in paths:
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("gyroscope_lab.")}
        assert not rooms & set(PAPERS), path


def test_the_commands_are_registered_without_a_heavy_import():
    check = "import gyroscope.cli, sys; assert 'gyroscope_lab.cli' in sys.modules; "
    check += "assert not {'torch', 'numpy', 'scipy', 'sklearn', 'plotly', 'rich.console'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
