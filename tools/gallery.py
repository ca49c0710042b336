"""The pages of the gallery: runs, a sweep, a plan and an autopsy, as the commands write them.

    python -m tools.gallery FOLDER            write the pages
    python -m tools.gallery --record-sweep    train the trials of the sweep again, and keep their scores

Three runs are trained on handwritten digits, and one checkpoint is saved. The trials of the sweep take minutes, and
their scores are kept in tools/gallery_sweep.json.
"""

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gyroscope_lab import TrainConfig
from gyroscope_lab import train as train_by_config
from gyroscope_lab.sweeps.plan import read_sweep
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro
from gyroscope.cli import main as run_command
from tests.lab.make_sweep import sweep_at

STEPS = 600
BATCH = 32
JUMP = range(400, 410)  # steps of the incident
PLAN = "plan adamw --lr 1e-2 --weight-decay 0.5 --betas 0.9,0.99 --fan-in 288 --steps 2000 --schedule cosine"
SWEEP = """
seeds = 2
[base]
task = "digits"
model = "mlp"
steps = 300
evaluations = 1
track = false
[grid]
optimizer = ["adamw", "rotational-adamw"]
lr = [1e-3, 3e-3, 1e-2, 3e-2]
weight_decay = [0.1, 0.3, 1.0]
"""
SCORES = Path(__file__).parent / "gallery_sweep.json"
# Noise is added to the images, so that gradients stay noisy and layers settle.
ADAMW = {"optimizer": torch.optim.AdamW, "weight_decay": 0.5, "noise": 0.3}
# The rotation of Adam with L2 depends on the gradient of each neuron. On clean images these differ most.
ADAM_L2 = {"optimizer": torch.optim.Adam, "weight_decay": 1e-3, "noise": 0.0}


def train(path: Path, settings: dict[str, Any], jump: range = range(0)) -> Path:
    """Train a small network on digits, ten times as fast in the steps of `jump`, and save a checkpoint."""
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
    groups = gyro.param_groups(model, weight_decay=settings["weight_decay"])
    optimizer = settings["optimizer"](groups, lr=1e-2, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 if step in jump else 1.0)
    with gyro.Tracker(model, optimizer, path, every=2) as tracker:
        for step in range(STEPS):
            batch = torch.randint(len(images), (BATCH,))
            loss = cross_entropy(model(images[batch] + settings["noise"] * torch.randn(BATCH, 64)), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            tracker.log(loss=loss)
            if step % 20 == 0:
                tracker.flush()  # a page is the same on a busy machine
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path.with_suffix(".pt"))
    return path


def key(config: TrainConfig) -> str:
    """Return the name of a trial in the record of scores."""
    return f"{config.optimizer} lr={config.lr:g} weight_decay={config.weight_decay:g} seed={config.seed}"


def record_sweep() -> None:
    """Train every trial of the sweep in this process, and keep the validation losses."""
    with tempfile.TemporaryDirectory() as name:
        plan = Path(name) / "sweep.toml"
        plan.write_text(SWEEP, encoding="utf-8")
        scores = {}
        for trial in read_sweep(plan).trials:
            result = train_by_config(trial.config, Path(name) / trial.name)
            scores[key(trial.config)] = round(result.scores["validation_loss"], 5)
    SCORES.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def write(folder: Path) -> None:
    """Write every page of the gallery to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        healthy = train(runs / "healthy", ADAMW)
        incident = train(runs / "incident", ADAMW, JUMP)
        imbalanced = train(runs / "imbalanced", ADAM_L2)
        scores = json.loads(SCORES.read_text(encoding="utf-8"))
        sweep = sweep_at(runs / "sweep", SWEEP, lambda config: scores[key(config)])
        commands = {
            "healthy": ["report", str(healthy), "-o"],
            "incident": ["report", str(incident), "--at", str(JUMP.start), "-o"],
            "imbalanced": ["report", str(imbalanced), "-o"],
            "comparison": ["report", str(healthy), str(incident), "-o"],
            "sweep": ["report", str(sweep), "-o"],
            "autopsy": ["autopsy", str(healthy.with_suffix(".pt")), "--lr", "1e-2", "--html"],
            "plan": [*PLAN.split(), "--html"],
        }
        for page, command in commands.items():
            if run_command([*command, str(folder / f"{page}.html")]):
                raise SystemExit(f"gyroscope {' '.join(command)} failed")


if __name__ == "__main__":
    record_sweep() if sys.argv[1] == "--record-sweep" else write(Path(sys.argv[1]))
