"""Handwritten digits in Lightning with RotationalAdamW, measured by a callback.

python examples/lightning_digits.py [steps]
"""

import sys
from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gyroscope as gyro
from gyroscope.integrations.lightning import RotationCallback


class Digits(pl.LightningModule):
    """A small MLP with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        hidden = nn.Sequential(nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU())
        self.network = nn.Sequential(hidden, nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:  # noqa: D102
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> Any:  # noqa: D102
        # The module, not its parameters: so weights turn, and biases and norms do not.
        return gyro.optim.RotationalAdamW(self, lr=1e-2, weight_decay=0.5)


pl.seed_everything(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
rotation = RotationCallback("runs/lightning", every=5)
trainer = pl.Trainer(
    max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 300,
    max_epochs=-1,
    accelerator="cpu",
    callbacks=[rotation],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Digits(), DataLoader(data, batch_size=64, shuffle=True))
print(rotation.diagnosis)  # noqa: T201
