"""The pages of the gallery: runs, a sweep, a plan, a transfer and an autopsy, as the commands write them.

    python -m tools.gallery FOLDER

Two runs are trained on handwritten digits, and one checkpoint is saved. The imbalanced run and the scores of the sweep
are simulated, as in the tests of these pages.
"""

import math
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from gyroscope_lab import TrainConfig
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro
from gyroscope.cli import main as run_command
from tests.lab.make_sweep import sweep_at
from tests.render import make

STEPS = 600
BATCH = 32
JUMP = range(400, 410)  # steps of the incident
PLAN = "plan adamw --lr 1e-2 --weight-decay 0.5 --betas 0.9,0.99 --fan-in 288 --steps 2000 --schedule cosine"
TRANSFER = (
    "transfer adamw --lr 6e-4 --weight-decay .1 --betas .9,.95 --batch 0.5M --tokens 10B --width 768 --depth 12 "
    "--schedule cosine --warmup 2% --to batch=2M,tokens=200B,width=2048,depth=24"
)
SWEEP = """
seeds = 3
[base]
task = "digits"
steps = 100
track = false
[grid]
optimizer = ["adamw", "nadam"]
lr = [1e-3, 3e-3, 1e-2, 3e-2]
weight_decay = [0.05, 0.1, 0.5]
"""


def train(path: Path, jump: range = range(0)) -> Path:
    """Train a small network on digits with AdamW, ten times as fast in the steps of `jump`, and save a checkpoint."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    widths = (64, 96, 96, 96)
    hidden = [
        layer
        for inputs, outputs in pairwise(widths)
        for layer in (nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU())
    ]
    model = nn.Sequential(*hidden, nn.Linear(widths[-1], 10))
    optimizer = torch.optim.AdamW(gyro.param_groups(model, weight_decay=1.0), lr=1e-2, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 if step in jump else 1.0)
    with gyro.Tracker(model, optimizer, path, every=2) as tracker:
        for _ in range(STEPS):
            batch = torch.randint(len(images), (BATCH,))
            loss = cross_entropy(model(images[batch] + 0.3 * torch.randn(BATCH, 64)), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            tracker.log(loss=loss)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path.with_suffix(".pt"))
    return path


def score(config: TrainConfig) -> float:
    """Return a simulated validation loss. It depends on lr × weight decay, and on the seed as noise."""
    distance = math.log(config.lr * config.weight_decay / 1e-3)
    optimizer = 0.01 if config.optimizer == "nadam" else 0.0
    return 0.3 + optimizer + 0.03 * distance**2 + 0.01 * (config.seed - 1)


def write(folder: Path) -> None:
    """Write every page of the gallery to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        healthy = train(runs / "healthy")
        incident = train(runs / "incident", JUMP)
        imbalanced = make.run_at(runs / "imbalanced", make.imbalanced())
        sweep = sweep_at(runs / "sweep", SWEEP, score)
        commands = {
            "healthy": ["report", str(healthy), "-o"],
            "incident": ["report", str(incident), "--at", str(JUMP.start), "-o"],
            "imbalanced": ["report", str(imbalanced), "-o"],
            "comparison": ["report", str(healthy), str(incident), "-o"],
            "sweep": ["report", str(sweep), "-o"],
            "autopsy": [
                "autopsy",
                str(healthy.with_suffix(".pt")),
                "--lr",
                "1e-2",
                "--batch-size",
                str(BATCH),
                "--html",
            ],
            "plan": [*PLAN.split(), "--html"],
            "transfer": [*TRANSFER.split(), "--html"],
        }
        for page, command in commands.items():
            if run_command([*command, str(folder / f"{page}.html")]):
                raise SystemExit(f"gyroscope {' '.join(command)} failed")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
