"""Experiments outside the repository: a folder of files, and the page of docs about it."""

import json
import re
import sys
from pathlib import Path

import pytest

from gyroscope.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "own-experiment.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the page's experiment, with a helper beside it."""
    monkeypatch.setattr("gyroscope_lab.framework.figures._svg", lambda figure: "<svg/>")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "batch_norm_angle.py").write_text(EXAMPLES[0], encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_page_of_docs_works_as_it_says(folder, capsys):
    commands = re.findall(r"^\$ gyroscope (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        capsys.readouterr()
        assert main(command.split()) == 0
    shown = capsys.readouterr().out
    assert "angle per step in equilibrium" in shown
    assert "holds" in shown
    assert Path("results/experiments/batch_norm_angle.json").is_file()
    assert "experiments/batch_norm_angle.md" in Path("results/README.md").read_text(encoding="utf-8")
    assert "| holds |" in Path("results/experiments/batch_norm_angle.md").read_text(encoding="utf-8")


def test_a_folder_is_listed_alone_and_its_helpers_are_imported(folder, capsys):
    (folder / "_sizes.py").write_text("STEPS = 20\n")
    text = (
        EXAMPLES[0]
        .replace("steps: int = 800", "steps: int = STEPS")
        .replace("\nCOST", "\nfrom _sizes import STEPS\n\nCOST")
    )
    (folder / "short.py").write_text(text.replace("rotates by", "may rotate by"))
    assert main(["lab", "list", "--from", "experiments"]) == 0
    listed = capsys.readouterr().out
    assert "may rotate by" in " ".join(listed.split())
    assert "smd/fig4" not in listed
    assert main(["lab", "run", "experiments/short", "--seeds", "1", "--from", "experiments"]) == 0
    record = json.loads(Path("results/experiments/short.json").read_text())
    assert (record["config"]["steps"], record["n"]) == (20, 1)


@pytest.mark.parametrize(
    ("argv", "file", "words"),
    [
        ("lab show x --from experiments", "", "(`gyroscope lab list --from experiments` shows all)"),
        ("lab list --from nowhere", "", "'nowhere' has no experiments"),
        ("lab run experiments/batch_norm_angel --from experiments", "", "did you mean 'experiments/batch_norm_angle'"),
        ("lab run experiments/batch_norm_angle --size paper --from experiments", "", "has no PAPER config"),
        ("lab list --from experiments", "def broken(:", "cannot read 'experiments/extra.py' as Python"),
        ("lab list --from experiments", "x = 1", "is not an experiment: give it a docstring and COST"),
        ("lab run all --from experiments", '"""A claim."""\nCOST = {"quick": "1 s"}', "has no QUICK"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_sentence(folder, argv, file, words, capsys):
    if file:
        (folder / "extra.py").write_text(file)
    assert main(argv.split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err
