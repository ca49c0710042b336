"""Damaged checkpoints: each is read or refused with one sentence, in a child that may crash."""

import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import gyroscope as gyro
from outside.tally import Tally, forked, require

COPIES = 35
LIMIT = 10.0
READ, REFUSED, UNCLEAR = 0, 2, 3


def check(tally: Tally) -> None:
    """Damage copies of three formats in many ways, and read them."""
    warnings.simplefilter("ignore")
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, whole in checkpoints(folder).items():
            with tally.attempt(f"{kind}: undamaged"):
                require(forked(lambda path=whole: read(path), LIMIT).code == READ, "not read")  # type: ignore[misc]
            for number in range(COPIES):
                copy = folder / "damaged" / whole.name
                copy.parent.mkdir()
                (shutil.copytree if whole.is_dir() else shutil.copy)(whole, copy)
                what = damage(copy, draw)
                ended = forked(lambda path=copy: read(path), LIMIT)  # type: ignore[misc]
                with tally.attempt(f"{kind} {number}, {what}"):
                    last = ended.output.strip().splitlines()[-1:]
                    require(ended.code in (READ, REFUSED), f"code {ended.code} after {ended.seconds:.1f} s: {last}")
                shutil.rmtree(copy.parent)


def checkpoints(folder: Path) -> dict[str, Path]:
    """Write one small checkpoint in each format."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "whole.pt")
    parts = folder / "trainer"
    parts.mkdir()
    save_file(model.state_dict(), parts / "model.safetensors")
    torch.save(optimizer.state_dict(), parts / "optimizer.pt")
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / "dcp", no_dist=True)
    return {"pt": folder / "whole.pt", "safetensors": parts, "dcp": folder / "dcp"}


def damage(path: Path, draw: random.Random) -> str:
    """Flip bits of a file or cut it off, and return what was done."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    if draw.random() < 0.3:
        length = draw.randrange(len(content))
        file.write_bytes(content[:length])
        return f"{file.name} cut to {length} bytes"
    # Half of the flips are near an end, where headers and indices are.
    near = draw.choice((len(content), 256))
    places = [draw.randrange(min(near, len(content))) for _ in range(draw.choice((1, 8)))]
    if draw.random() < 0.5:
        places = [len(content) - 1 - place for place in places]
    for place in places:
        content[place] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return f"{file.name} with bits flipped at {places}"


def read(path: Path) -> int:
    """Read a checkpoint to the end: its numbers and its text."""
    try:
        autopsy = gyro.autopsy(path)
        autopsy.json()
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return UNCLEAR if "\n" in str(error).strip() or type(error) is not ValueError else REFUSED
    return READ
