"""The direction of imports drawn in the design: a file imports only from its own floor or from floors below."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gyroscope"
FLOORS = [
    {"_types", "_checks", "_json", "_lazy", "_text", "_files", "_worker", "tools", "commands", "spelling"},
    {"theory"},
    {"optimizers"},
    {"geometry", "_dtensor", "advice"},
    {"model"},
    {"optim", "nn"},
    {"store"},
    {"measure", "report"},
    {"render"},
    {"live", "planner", "checkpoint"},
    {"integrations", "doctor"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> set[str]:
    """Modules, and names in them, that a file imports anywhere, also inside a function or for type checkers alone."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a file imports something from."""
    parts = [name.split(".") for name in imports(path)]
    return {name[1] for name in parts if name[0] == "gyroscope" and len(name) > 1 and name[1] in FLOOR}


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_imports_upward(path):
    above = {name for name in imported_rooms(path) if FLOOR[name] > FLOOR[room(path)]}
    assert above == set(), f"{path} imports from a floor above"


def test_every_room_has_a_floor():
    assert {room(path) for path in FILES} <= set(FLOOR)


@pytest.mark.parametrize("name", ["theory", "optimizers", "advice", "store", "render", "live"])
def test_rooms_of_numbers_and_words_never_import_torch(name):
    paths = [path for path in FILES if room(path) == name]
    assert paths
    assert [path for path in paths if any(module.split(".")[0] == "torch" for module in imports(path))] == []


def test_the_engine_of_the_optimizers_is_sealed():
    paths = [path for path in FILES if any("_engine" in name.split(".") for name in imports(path))]
    assert {room(path) for path in paths} == {"optim"}


def test_nothing_in_the_library_imports_the_lab():
    assert [path for path in FILES if any(name.split(".")[0] == "gyroscope_lab" for name in imports(path))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import gyroscope; gyroscope.theory.AdamW(1e-3, 0.1).equilibrium()",
        "import gyroscope.cli; gyroscope.cli.main(['plan', 'adamw', '--fan-in', '512'])",
        "import gyroscope.cli; gyroscope.cli.main(['--help'])",
        "import gyroscope.cli; gyroscope.cli.main('convert adamw lion --lr 1e-3 --wd 0.1'.split())",
        "from gyroscope import theory, transfer\nsize = theory.Scale(64, 1e6)\n"
        "transfer(theory.AdamW(1e-3, 0.1), base=size, to=size)",
    ],
)
def test_a_plan_and_help_run_without_torch(code):
    check = f"{code}\nimport sys\nassert 'torch' not in sys.modules and 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_a_transfer_starts_without_torch_plots_and_the_reader_of_runs():
    """Each of these would take a large part of the half second in which it answers."""
    command = "transfer adamw --lr 6e-4 --wd 0.1 --batch 0.5M --tokens 10B --width 768 --to batch=2M"
    heavy = ("torch", "plotly", "sqlite3", "gyroscope.report.run_gather", "gyroscope.planner.run_plan")
    code = f"import sys, gyroscope.cli\nassert gyroscope.cli.main('{command}'.split()) == 0\n"
    code += f"assert [name for name in {heavy} if name in sys.modules] == []"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
