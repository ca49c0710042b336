"""Damaged checkpoints of three formats: each is read or refused with one sentence, and none ends the process."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from tests.forked import run_program

pytestmark = pytest.mark.slow
COPIES = 35
# Prints how the reading of each copy ended. A crash leaves the rest out.
READ = """
import sys, warnings
from pathlib import Path
import gyroscope as gyro

warnings.simplefilter("ignore")
for path in sorted(Path(sys.argv[1]).iterdir()):
    ended = "read"
    try:
        gyro.autopsy(path).json()
    except ValueError as error:
        is_sentence = type(error).__mro__[1] is ValueError and "\\n" not in str(error).strip()
        ended = "refused" if is_sentence else repr(error)
    except BaseException as error:
        ended = repr(error)
    print("copy", path.name, ended, flush=True)
"""


def write_pt(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def write_trainer_folder(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors")
    torch.save(optimizer.state_dict(), path / "optimizer.pt")


def write_distributed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, state = get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": state}, checkpoint_id=path, no_dist=True)


def damage(path: Path, draw: random.Random) -> None:
    """Flip bits of a file or cut it off."""
    file = draw.choice(sorted(path.iterdir()) if path.is_dir() else [path])
    content = bytearray(file.read_bytes())
    if draw.random() < 0.3:
        file.write_bytes(content[: draw.randrange(len(content))])
        return
    # Half of the flips are near an end, where headers and indices are.
    near = draw.choice((len(content), 256))
    places = [draw.randrange(min(near, len(content))) for _ in range(draw.choice((1, 8)))]
    if draw.random() < 0.5:
        places = [len(content) - 1 - place for place in places]
    for place in places:
        content[place] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [write_pt, write_trainer_folder, write_distributed])
def test_damaged_copies_are_read_or_refused_with_one_sentence(write, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    copies = tmp_path / "copies"
    copies.mkdir()
    whole = copies / "00"
    write(whole, model, optimizer)
    draw = random.Random(0)
    for number in range(1, COPIES + 1):
        copy = copies / f"{number:02}"
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, copy)
        damage(copy, draw)
    ended = run_program(READ, tmp_path, str(copies))
    # The unpickler may write lines of its own.
    copied = [line.split(" ", maxsplit=2)[1:] for line in ended.written.splitlines() if line.startswith("copy ")]
    assert copied[0] == ["00", "read"]
    assert [name for name, _ in copied] == [path.name for path in sorted(copies.iterdir())]
    assert {how for _, how in copied} == {"read", "refused"}
    assert ended.code == 0
