"""The mechanical part of the rules for prose: docstrings, errors, and the help of commands."""

import ast
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from gyroscope.cli import app, main
from tests import words

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "gyroscope", ROOT / "lab" / "gyroscope_lab")
ROOMS = sorted({package / path.relative_to(package).parts[0] for package in PACKAGES for path in package.rglob("*.py")})
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def name_of(room: Path) -> str:
    """Return a room as a parameter in the name of a test."""
    return room.relative_to(ROOT).as_posix()


@cache
def nodes(room: Path) -> list[tuple[str, ast.AST]]:
    """Return everything in the files of a room, with its place."""
    found: list[tuple[str, ast.AST]] = []
    for path in sorted(room.rglob("*.py")) if room.is_dir() else [room]:
        walked = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node) for node in walked]
    return found


def docstring(node: ast.AST) -> str:
    """Return a docstring, empty if there is none."""
    has_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "") if has_one else ""


def test_a_verb_is_told_from_other_words():
    texts = ("Return a sum.", "The sum.", "Rotation of a layer.", "`x` of a layer.")
    assert [words.begins_with_verb(text) for text in texts] == [True, False, False, False]


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


def examples(command: Any) -> Iterator[str]:
    """Yield the examples in the help of a command and of its own commands."""
    yield from filter(None, [command.epilog])
    for inner in getattr(command, "commands", {}).values():
        yield from examples(inner)


EXAMPLES = [example for command in COMMANDS.values() for example in examples(command)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_in_the_help_fits_a_line_of_a_terminal(example):
    assert example.startswith("Example: gyroscope ")
    assert len(example) <= 78  # the help indents it by two of 80 columns


@pytest.mark.parametrize("name", ["plan", "transfer", "convert"])
def test_an_example_that_needs_no_file_runs(name, capsys):
    assert main(shlex.split(COMMANDS[name].epilog)[2:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("argv", ["convert", "convert adamw", "report", "autopsy", "export a", "lab run", "sweep"])
def test_a_missing_argument_is_answered_with_an_example(argv, capsys):
    assert main(argv.split()) == 2
    assert f"Example: gyroscope {' '.join(argv.split()[: 2 if argv == 'lab run' else 1])} " in capsys.readouterr().err


@pytest.mark.parametrize("argv", ["plan --foo", "lab list foo"])
def test_what_a_command_does_not_take_is_answered_with_its_help(argv, capsys):
    assert main(argv.split()) == 2
    assert f"`gyroscope {argv.rpartition(' ')[0]} --help`" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_has_a_help_text(name):
    commands = [COMMANDS[name], *getattr(COMMANDS[name], "commands", {}).values()]
    options = [(command.name, option) for command in commands for option in command.params]
    assert [(command, option.name) for command, option in options if not getattr(option, "help", None)] == []
