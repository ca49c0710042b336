"""What the README shows is what happens."""

import doctest
import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from gyroscope.cli import main

README = Path(__file__).parent.parent / "README.md"


def test_the_python_examples_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write runs
    failed, tried = doctest.testfile(str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 5
    assert failed == 0


def test_the_plan_in_the_readme_is_the_plan_that_is_printed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    command = re.search(r"^\$ gyroscope (plan .*)$", text(), re.MULTILINE)
    shown = re.search(r"```text\n(.*?)```", text(), re.DOTALL)
    assert command
    assert shown
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(shlex.split(command[1])) == 0
    assert lines(printed.getvalue()) == lines(shown[1])


def test_the_lab_commands_are_there():
    commands = [shlex.split(line) for line in re.findall(r"^\$ gyroscope (lab .*)$", text(), re.MULTILINE)]
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["lab", "list"]) == 0
    assert commands[0] == ["lab", "list"]
    assert all(id in printed.getvalue() for command in commands[1:] for id in command[2:])


def test_the_files_it_leads_to_are_there():
    links = re.findall(r"\]\(([^)#:]+)\)", text())
    assert "docs/report.png" in links
    assert [link for link in links if not (README.parent / link).is_file()] == []


def test_the_outcomes_it_quotes_are_those_of_the_records():
    records = (README.parent / "results" / "README.md").read_text(encoding="utf-8")
    count = re.search(r"^Of the claims, .*$", records, re.MULTILINE)
    assert count
    assert count[0] in text()
    rows = re.findall(
        r"^\| .*\(\[(\S+)\]\(results/README.md#\w+\)\) \| .* \| (.*) \| (\d+) \| (.*) \|$", text(), re.MULTILINE
    )
    assert len(rows) > 5
    for record, measured, n, outcome in rows:
        section = records.split(f"### {record}\n")[1].split("\n### ")[0]
        assert f"· n = {n} ·" in section
        (claim,) = [line for line in section.splitlines() if f"| {measured} |" in line]
        assert claim.endswith((f"| {outcome} |", f"| **{outcome}** |"))


def text() -> str:
    return README.read_text(encoding="utf-8")


def lines(block: str) -> list[str]:
    return [line.rstrip(" ⠀") for line in block.strip().splitlines()]
