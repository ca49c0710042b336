"""Odd values of every option of the commands: an answer or a sentence, never a traceback or a long wait."""

import random
import shutil
import time
from typing import Any

import pytest
import torch
import typer
from torch import nn

import gyroscope as gyro
from gyroscope.cli import app, main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# A line of each command that does something, to which one odd thing is added.
USUAL = {
    "plan": ["adamw", "--lr", "1e-3", "--wd", "0.1", "--fan-in", "64", "--unit-grad-norm", "0.1", "--steps", "500"],
    "transfer": ["adamw", "--lr", "1e-3", "--wd", "0.1", "--steps", "5K", "--to", "steps=20K"],
    "convert": ["adamw", "lion", "--lr", "1e-3", "--wd", "0.1"],
    "report": ["run"],
    "autopsy": ["good.pt"],
    "export": ["run", "table.csv"],
    "train": ["--model", "mlp", "--batch-size", "8", "--steps", "2", "--out", "new"],
}
NUMBERS = ["0", "-1", "1e-30", "1e308", "1e400", "nan", "-inf", "1_000", "1,5", "0.9,0.999,0.5", "٣"]
WORDS = ["", " ", "-", "é✗", "a\nb", "%s", "{}", "\\", "x" * 300, "adamw\t", "[1]"]
PATHS = [".", "run", "good.pt", "cut.pt", "empty.pt", "missing/x.pt", "~nouser/x", "loop", "dangling", "text.txt"]
VALUES_PER_OPTION = 4
LIMIT = 30.0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with what the commands are given to read: good, damaged, empty and strange."""
    folder = tmp_path_factory.mktemp("inputs")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    with gyro.Tracker(model, optimizer, folder / "run", every=1):
        for _ in range(5):
            model.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "good.pt")
    good = (folder / "good.pt").read_bytes()
    (folder / "cut.pt").write_bytes(good[: len(good) // 2])
    (folder / "empty.pt").touch()
    (folder / "text.txt").write_text("to be or not to be\n" * 200)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    return folder


def odd_lines(name: str) -> list[list[str]]:
    """The usual line with one odd value of an option, or with an odd argument."""
    draw = random.Random(name)
    lines = [[*USUAL[name], value] for value in (*draw.sample(WORDS, 3), *draw.sample(PATHS, 3), "--nonsense")]
    for option in COMMANDS[name].params:
        flags = [flag for flag in option.opts if flag.startswith("--")]
        if flags and getattr(option, "is_flag", False):
            lines.append([*USUAL[name], flags[0]])
        elif flags:
            values = draw.sample([*NUMBERS, *WORDS, *PATHS], VALUES_PER_OPTION)
            lines += [[*USUAL[name], flags[0], value] for value in values]
    # Compiling takes half a minute.
    return [[name, *line] for line in lines if not {"--help", "--compile"} & set(line)]


@pytest.mark.parametrize("name", USUAL)
def test_an_odd_value_is_answered_or_refused_with_a_sentence(name, inputs, tmp_path, monkeypatch, capsys):
    for number, line in enumerate([[name, *USUAL[name]], *odd_lines(name)]):
        # A fresh folder for each line, because one may replace a file that another reads.
        scratch = tmp_path / str(number)
        shutil.copytree(inputs, scratch, symlinks=True)
        monkeypatch.chdir(scratch)
        monkeypatch.setenv("HOME", str(scratch))
        start = time.monotonic()
        code = main(line)
        written = "".join(capsys.readouterr())
        assert code in ((0, 1, 2) if number else (0,)), line
        assert "Traceback" not in written, line
        assert time.monotonic() - start < LIMIT, line
