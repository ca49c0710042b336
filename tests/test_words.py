"""The mechanical part of the rules for prose: docstrings, errors, and the help of commands."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gyroscope.cli import app, main
from tools import words

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "gyroscope", ROOT / "lab" / "gyroscope_lab")
ROOMS = sorted({package / path.relative_to(package).parts[0] for package in PACKAGES for path in package.rglob("*.py")})
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def name_of(room: Path) -> str:
    """Return a room as a parameter in the name of a test."""
    return room.relative_to(ROOT).as_posix()


def nodes(room: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield everything in the files of a room, with its place."""
    for path in sorted(room.rglob("*.py")) if room.is_dir() else [room]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node


def docstring(node: ast.AST) -> str:
    """Return a docstring, empty if there is none."""
    has_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "") if has_one else ""


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_function_docstrings_begin_with_a_verb(room):
    texts = [(place, docstring(node)) for place, node in nodes(room) if words.is_function(node)]
    assert [
        f"{place}: {text.splitlines()[0]}" for place, text in texts if text and not words.begins_with_verb(text)
    ] == []


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_docstrings_have_no_semicolons(room):
    texts = [(place, part) for place, node in nodes(room) for part in words.paragraphs(docstring(node))]
    assert [f"{place}: {part}" for place, part in texts if ";" in part] == []


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_errors_have_no_semicolons(room):
    raised = [(place, node.exc) for place, node in nodes(room) if isinstance(node, ast.Raise) and node.exc is not None]
    texts = [
        (place, part.value) for place, error in raised for part in ast.walk(error) if isinstance(part, ast.Constant)
    ]
    assert [f"{place}: {text}" for place, text in texts if isinstance(text, str) and ";" in text] == []


def help_texts(command: Any) -> Iterator[str]:
    """Yield the help of a command, of its options and of its own commands."""
    yield command.help or ""
    for option in command.params:
        yield getattr(option, "help", None) or ""
    for inner in getattr(command, "commands", {}).values():
        yield from help_texts(inner)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_no_semicolons(name):
    assert [text for text in help_texts(COMMANDS[name]) if ";" in text] == []


@pytest.mark.parametrize("group", [(), ("lab",)], ids=str)
def test_the_help_cuts_no_line_about_a_command(group, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*group, "--help"]) == 0
    commands = COMMANDS[group[0]].commands if group else COMMANDS
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == list(commands)
    assert {line.split()[0] for line in lines if line.endswith("...")} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_has_a_help_text(name):
    commands = [COMMANDS[name], *getattr(COMMANDS[name], "commands", {}).values()]
    options = [(command.name, option) for command in commands for option in command.params]
    assert [(command, option.name) for command, option in options if not getattr(option, "help", None)] == []
