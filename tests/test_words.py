"""The mechanical part of the rules for prose: how docstrings begin, and what the help of a command looks like."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gyroscope.cli import app, main

PACKAGE = Path(__file__).parent.parent / "gyroscope"
# A function's docstring begins with a verb. Each of these words shows that it does not.
NO_VERB = re.compile(
    r"`?(a|all|an|as|at|by|each|every|for|from|how|in|of|on|one|the|to|what|when|where|whether|which|who|whose|why|with)\b",
    re.IGNORECASE,
)
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function reads as a noun: a property, of whatever kind."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def openings(path: Path) -> list[str]:
    """Return the first line of each docstring of a function that does not begin with a verb."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if NO_VERB.match(first):
                lines.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {first}")
    return lines


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}))
def test_function_docstrings_begin_with_a_verb(room):
    path = PACKAGE / room
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    lines = [line for file in files for line in openings(file)]
    assert lines == []


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


def test_the_help_cuts_no_line_about_a_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert {line.split()[0] for line in lines if line.endswith("...")} == set()
