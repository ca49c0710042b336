"""The direction of imports drawn in the design: a file imports only from its own floor or from floors below."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gyroscope"
FLOORS = [
    {"_types", "_checks", "_json", "_files", "_worker"},
    {"theory"},
    {"geometry", "advice"},
    {"model"},
    {"simulate", "optim", "nn"},
    {"store"},
    {"measure", "render"},
    {"live", "planner"},
    {"lab", "integrations"},
    {"cli"},
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_imports_upward(path):
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "gyroscope" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != room(path):
            assert FLOOR[parts[1]] <= FLOOR[room(path)], f"{path} imports {name} from a floor above"


def test_every_room_has_a_floor():
    assert {room(path) for path in FILES} <= set(FLOOR)


def test_rooms_that_read_and_say_never_import_torch():
    for path in FILES:
        if room(path) in ("theory", "advice", "store", "render", "live"):
            assert not any(name.split(".")[0] == "torch" for name in imports(path)), path


@pytest.mark.parametrize(
    "code",
    [
        "import gyroscope; gyroscope.theory.AdamW(1e-3, 0.1).equilibrium()",
        "import gyroscope.cli; gyroscope.cli.main(['plan', 'adamw', '--fan-in', '512'])",
        "import gyroscope.cli; gyroscope.cli.main(['--help'])",
    ],
)
def test_a_plan_and_help_run_without_torch(code):
    check = f"{code}\nimport sys\nassert 'torch' not in sys.modules and 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)
