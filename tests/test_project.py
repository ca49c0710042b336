"""The files around the package agree with each other and with the code."""

import re
import runpy
import tomllib
from contextlib import suppress
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from pathlib import Path

import gyroscope_lab
import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gyroscope
from gyroscope.cli import app, main
from tests.optimizers.stack_cases import REAL

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LAB_PROJECT = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: names for name, names in PROJECT["optional-dependencies"].items() if name not in ("dev", "docs", "lab")}
MODULES = {"scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}
"""What a distribution is called in an import, where it is not called the same."""
OWN = {"gyroscope", "gyroscope-lab"}


def requirements(project: dict) -> list[Requirement]:
    """Everything that a distribution names, extras included."""
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for line in [*project["dependencies"], *(line for lines in extras for line in lines)]]


def pins() -> dict[str, str]:
    """Version by name of constraints.txt."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", read("constraints.txt"), re.MULTILINE))


def test_the_version_is_in_one_place():
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", gyroscope.__version__)
    assert [
        name for name in ("pyproject.toml", "CITATION.cff", "README.md") if f"{gyroscope.__version__}\n" in read(name)
    ] == []


def test_both_distributions_have_the_same_version():
    assert gyroscope_lab.__version__ == gyroscope.__version__


def test_the_command_line_prints_the_packages_own_version_not_the_installed_ones(monkeypatch, capsys):
    monkeypatch.setattr(gyroscope, "__version__", "9.8.7")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "gyroscope 9.8.7\n"


def imports_of(folder: str, name: str) -> bool:
    """Whether a file below a folder imports a distribution."""
    module = MODULES.get(name, name)
    imported = re.compile(rf"^\s*(?:import|from) {module}\b|\(\"(?:torch\.utils\.)?{module}\"", re.MULTILINE)
    return any(imported.search(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_leads_to_code_that_imports_it(extra):
    if extra == "stacks":  # which tests import by their names
        tested = {case.distribution for case in REAL} - {"torch", "timm"}
        assert {Requirement(line).name for line in EXTRAS[extra]} == tested
        return
    # The kernels of compiled steps are checked by a tool of this repository.
    folder = "tools" if extra == "gpu-codegen" else "gyroscope"
    assert [line for line in EXTRAS[extra] if not imports_of(folder, Requirement(line).name)] == []


def test_the_extra_lab_is_the_distribution_beside_the_library_and_that_imports_what_it_needs():
    (lab,) = (Requirement(line) for line in PROJECT["optional-dependencies"]["lab"])
    assert (lab.name, lab.extras) == (LAB_PROJECT["name"], set(LAB_PROJECT["optional-dependencies"]))
    needed = {requirement.name for requirement in requirements(LAB_PROJECT)} - OWN
    assert [name for name in needed if not imports_of("lab", name)] == []


def test_the_lab_registers_functions_that_exist():
    registered = LAB_PROJECT["entry-points"]
    assert set(registered) == {"gyroscope.commands", "gyroscope.reports"}
    for group, points in registered.items():
        for name, value in points.items():
            assert callable(EntryPoint(name, value, group).load())


@pytest.mark.parametrize("project", [PROJECT, LAB_PROJECT], ids=["gyroscope", "gyroscope-lab"])
def test_every_requirement_has_a_lower_bound_that_the_pinned_version_meets(project):
    for requirement in requirements(project):
        if requirement.name == "gyroscope" and not requirement.specifier:
            continue  # dev names other extras of the same distribution
        assert [bound.operator for bound in requirement.specifier] == [">="], str(requirement)
        version = gyroscope.__version__ if requirement.name in OWN else pins()[requirement.name]
        assert requirement.specifier.contains(version), str(requirement)


def test_what_pinned_distributions_need_in_turn_is_pinned_too():
    """timm needs torchvision, which is left out on purpose (see the Makefile)."""
    pinned = pins()
    needed = set()
    for name in pinned:
        with suppress(PackageNotFoundError):  # hatchling is installed where it builds
            for line in distribution(name).requires or ():
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    needed.add(canonicalize_name(requirement.name))
    assert len(needed) > 40
    assert needed - set(pinned) == {"torchvision"}


def test_an_sdist_takes_files_by_their_place_and_not_by_their_name():
    """A bare README.md is every README.md below, three of which are no part of the library."""
    for file in ("pyproject.toml", "lab/pyproject.toml"):
        included = tomllib.loads(read(file))["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
        assert included
        for name in included:
            assert name.startswith("/"), name
            assert (ROOT / file).parent.joinpath(name[1:]).exists(), name


def test_the_matrix_installs_the_lower_bounds_at_one_end_and_no_bounds_at_the_other():
    matrix = runpy.run_path(str(ROOT / "tools" / "matrix"), run_name="matrix")
    oldest = dict(name.split("==") for name in matrix["requirements"]("oldest"))
    assert {f"{name}>={version.removesuffix('.*')}" for name, version in oldest.items()} == set(PROJECT["dependencies"])
    assert matrix["requirements"]("newest") == list(oldest)
    assert f">={matrix['oldest_python']().removeprefix('python')}" == PROJECT["requires-python"]


def test_workflows_call_commands_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    calls = [
        line for page in (ROOT / ".github").rglob("*.yml") for line in re.findall(r"- run: (.*)", page.read_text())
    ]
    assert len(calls) >= 4
    for call in calls:
        command, *arguments = call.split()
        assert set(arguments) <= targets if command == "make" else (ROOT / command).stat().st_mode & 0o100, call


def test_actions_are_pinned_by_the_hash_of_a_commit_and_name_its_version():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = {line for page in pages for line in re.findall(r"uses: (.*)", page)}
    assert {line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)} == set()
    names = [line.partition("@")[0] for line in used]
    assert len(names) == len(set(names)), "one action, one version"


def test_the_notes_have_a_dated_section_for_the_version_and_lines_that_a_person_reads():
    notes = read("CHANGELOG.md")
    release = runpy.run_path(str(ROOT / "tools" / "distributions"), run_name="distributions")
    assert release["check_version"](f"v{gyroscope.__version__}") == 0
    entries = [entry.split("\n\n")[0] for entry in notes.split("\n- ")[1:]]
    assert [entry for entry in entries if len(entry) > 400] == []


def test_the_check_of_distributions_runs_every_command():
    release = runpy.run_path(str(ROOT / "tools" / "distributions"), run_name="distributions")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {arguments[0] for arguments, _ in release["COMMANDS"].values()} == set(commands)


def test_every_folder_of_tests_has_a_room_of_the_same_name():
    tests = ROOT / "tests"
    rooms = {"lab": ROOT / "lab" / "gyroscope_lab"}
    for folder in sorted({path.parent for path in tests.rglob("test_*.py")} - {tests}):
        room, *inner = folder.relative_to(tests).parts
        assert rooms.get(room, ROOT / "gyroscope" / room).joinpath(*inner).is_dir(), folder


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
