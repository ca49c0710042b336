"""One training of the bench: its loss, and what the findings on its run say."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import torch
from torch import nn

import gyroscope
from gyroscope.store import open_run
from gyroscope_lab.advice._situations import Settings
from gyroscope_lab.advice._store import Record, StoredLines, key_text
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.by_name import named_training
from gyroscope_lab.training.loop import StepReport
from gyroscope_lab.training.problems import make_problem
from gyroscope_lab.training.result import ROTATION

# Largest loss that counts, that of a run that diverged. It is above that of a uniform guess on byte pairs. Without a
# limit, one loss of 1e9 would dominate an interval.
LOST = 8.0
# Share of the first layer's units that never fire.
DEAD_SHARE = 1 / 3
# A bias that no activation overcomes.
DEAD_BIAS = -1000.0
# Characters of the name of a run's folder.
NAME_LENGTH = 16


def freeze_layer(model: nn.Module) -> None:
    """Freeze the layer in the middle."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    matrices[len(matrices) // 2].requires_grad_(False)


def kill_units(model: nn.Module) -> None:
    """Let a share of the units after the first norm never fire."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
    bias = next(module.bias for module in model.modules() if isinstance(module, norms))
    with torch.no_grad():
        bias[: max(1, round(DEAD_SHARE * len(bias)))] = DEAD_BIAS


PLANTS: dict[str, Callable[[nn.Module], None]] = {
    "": lambda model: None,
    "frozen layer": freeze_layer,
    "dead ReLUs": kill_units,
}


@final
@dataclass(frozen=True)
class Bench:
    """Where results and runs are kept.

    losses    of finished trainings
    findings  on their runs, by the code of `gyroscope.advice` that made them
    runs      folder of the runs, so that other words can judge them without training again
    """

    losses: StoredLines
    findings: StoredLines
    runs: Path

    @classmethod
    def at(cls, results: Path, runs: Path) -> "Bench":
        """Return the bench with its files in a folder of results."""
        names = ("losses.jsonl", "findings.jsonl")
        losses, findings = (StoredLines(results / name) for name in names)
        return cls(losses, findings, runs)

    def loss(self, settings: Settings, planted: str = "", report: Callable[[float], None] = lambda _: None) -> Record:
        """Return `loss` and `accuracy` on held-out data, 0 if the task has none. Train if they are not stored."""
        key = {"settings": settings, "planted": planted}
        return self.losses.get(key, lambda: self._train(settings, planted, report))

    def advice(self, settings: Settings, planted: str = "") -> Record:
        """Return `summary`, `changes` and `kinds` of the findings on a run. Train again if its folder is gone."""
        key = {"settings": settings, "planted": planted, "advice": advice_code()}
        return self.findings.get(key, lambda: self._diagnose(settings, planted))

    def _folder(self, settings: Settings, planted: str) -> Path:
        key = key_text({"settings": settings, "planted": planted})
        return self.runs / hashlib.sha256(key.encode()).hexdigest()[:NAME_LENGTH]

    def _train(self, settings: Settings, planted: str, report: Callable[[float], None]) -> Record:
        folder = self._folder(settings, planted)
        shutil.rmtree(folder, ignore_errors=True)
        config = TrainConfig.from_dict(settings)
        training, _ = named_training(config, make_problem(config, None, torch.device("cpu")), folder)
        PLANTS[planted](training.model)

        def on_step(done: StepReport) -> None:
            report(done.step / done.steps)

        result = training.run(False, on_step)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        scores = result.scores if result.divergence is None else {}
        loss = scores.get("validation_loss", LOST)
        # NaN is not below the limit.
        loss = loss if loss < LOST else LOST
        return {"loss": round(loss, 6), "accuracy": round(scores.get("validation_accuracy", 0.0), 6)}

    def _diagnose(self, settings: Settings, planted: str) -> Record:
        folder = self._folder(settings, planted)
        if not (folder / ROTATION).exists():
            self._train(settings, planted, lambda _: None)
        with open_run(folder / ROTATION) as run:
            found = run.diagnose()
        return {"summary": list(found.summary), "changes": found.changes, "kinds": list(found.kinds)}


@cache
def advice_code() -> str:
    """Return a short hash of the code that judges runs."""
    package = Path(gyroscope.__file__).parent / "advice"
    text = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    return hashlib.sha256(text).hexdigest()[:NAME_LENGTH]
