"""The files around the package agree with each other and with the code."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

import gyroscope
from gyroscope.cli import main

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: names for name, names in PROJECT["optional-dependencies"].items() if name != "dev"}
MODULES = {"scikit-learn": "sklearn"}
"""What a distribution is called in an import, where it is not called the same."""


def test_the_version_stands_in_one_place():
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", gyroscope.__version__)
    assert [
        name for name in ("pyproject.toml", "CITATION.cff", "README.md") if f"{gyroscope.__version__}\n" in read(name)
    ] == []


def test_the_command_line_prints_the_packages_own_version_not_the_installed_ones(monkeypatch, capsys):
    monkeypatch.setattr(gyroscope, "__version__", "9.8.7")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "gyroscope 9.8.7\n"


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_leads_to_code_that_imports_it(extra):
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "gyroscope").rglob("*.py")]
    for name in EXTRAS[extra]:
        module = MODULES.get(name, name)
        imported = re.compile(rf"^\s*(?:import|from) {module}\b|\(\"(?:torch\.utils\.)?{module}\"", re.MULTILINE)
        assert any(imported.search(source) for source in sources), f"nothing imports {module}"


def test_every_direct_dependency_is_pinned():
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", read("constraints.txt"), re.MULTILINE))
    wanted = [
        *PROJECT["dependencies"],
        *(name for names in PROJECT["optional-dependencies"].values() for name in names),
    ]
    names = {re.split(r"[<>=\[]", name)[0] for name in wanted} - {"gyroscope"}
    assert names - set(pinned) == set()
    assert set(pinned) - names == {"hatchling"}  # the one that builds


def test_the_matrix_installs_the_lower_bounds_at_one_end_and_no_bounds_at_the_other():
    matrix = runpy.run_path(str(ROOT / "tools" / "matrix"), run_name="matrix")
    oldest = dict(name.split("==") for name in matrix["requirements"]("oldest"))
    assert {f"{name}>={version.removesuffix('.*')}" for name, version in oldest.items()} == set(PROJECT["dependencies"])
    assert matrix["requirements"]("newest") == list(oldest)
    assert f">={matrix['oldest_python']().removeprefix('python')}" == PROJECT["requires-python"]


def test_workflows_call_commands_that_are_there():
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    calls = [
        line for page in (ROOT / ".github").rglob("*.yml") for line in re.findall(r"- run: (.*)", page.read_text())
    ]
    assert len(calls) >= 4
    for call in calls:
        command, *arguments = call.split()
        assert set(arguments) <= targets if command == "make" else (ROOT / command).stat().st_mode & 0o100, call


def test_every_folder_of_tests_has_a_room_of_the_same_name():
    tests = ROOT / "tests"
    rooms = {"lab": ROOT / "lab" / "gyroscope_lab"}
    for folder in sorted({path.parent for path in tests.rglob("test_*.py")} - {tests}):
        room, *inner = folder.relative_to(tests).parts
        assert rooms.get(room, ROOT / "gyroscope" / room).joinpath(*inner).is_dir(), folder


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
