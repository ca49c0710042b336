"""Names in files of other people are escaped wherever they are printed, so that no file controls a terminal."""

import json
import unicodedata

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope._json import dumps
from gyroscope._text import printable
from gyroscope.cli import main

# Clears the screen, then sets a title by C1 codes, and writes from right to left.
NAME = "fc\x1b[2J\x9d0;title\x9c\x7f\u202eok"
SHOWN = r"fc\x1b[2J\x9d0;title\x9c\x7f\u202eok"


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(NAME, nn.Linear(8, 4))

    def forward(self, x):
        return getattr(self, NAME)(x)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A run, a checkpoint and a plan whose layer has that name, in a folder."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    model = Named()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    with gyro.Tracker(model, optimizer, folder / NAME, every=1) as tracker:
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            tracker.log(**{NAME: 1.0, "loss": float("nan")})
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "ckpt.pt")
    (folder / "plan.toml").write_text(f"[[layer]]\nname = {json.dumps(SHOWN.encode().decode('unicode_escape'))}\n")
    return folder


def controls(text):
    """Characters that a terminal obeys, of those that are not lines and tabs."""
    return {c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"} | (set(text) & {"\u202e"})


PLAN = ["plan", "adamw", "--lr", "1e-3", "--wd", "0.1", "--fan-in", "64", "--steps", "100", "--config", "plan.toml"]
COMMANDS = {
    "autopsy": ["autopsy", "ckpt.pt"],
    "autopsy --json": ["autopsy", "ckpt.pt", "--json"],
    "report --text": ["report", NAME, "--text"],
    "report --json": ["report", NAME, "--json"],
    "plan": PLAN,
    "plan --json": [*PLAN, "--json"],
    "an error": ["autopsy", f"{NAME}.pt"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_control_sequences(command, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    main(COMMANDS[command])
    out, err = capsys.readouterr()
    assert "2J" in out + err
    assert controls(out + err) == set()
    if command.endswith("--json"):
        assert repr(NAME)[1:-1] in str(json.loads(out))  # only escaped, not changed


def test_no_result_prints_control_sequences(files):
    run = gyro.store.open_run(files / NAME)
    diagnosis = run.diagnose()
    autopsy = gyro.autopsy(files / "ckpt.pt")
    (layer,) = [name for name in run.layers if name.startswith("fc")]
    assert layer == f"{NAME}.weight"
    assert list(autopsy.layers) == [layer]
    for shown in (diagnosis, *diagnosis, autopsy, gyro.param_groups(Named(), weight_decay=0.1).describe()):
        assert controls(str(shown)) == set(), repr(str(shown))


def test_text_without_control_sequences_is_printed_as_it_is():
    assert printable("Größe 𝛼 – fc.weight\n\t→ 3 %") == "Größe 𝛼 – fc.weight\n\t→ 3 %"
    assert printable(NAME) == SHOWN
    assert json.loads(dumps(NAME)) == NAME
