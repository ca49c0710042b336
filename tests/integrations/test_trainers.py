"""Every optimizer in the usual trainers: each takes the steps of a plain loop. What docs/support.md ticks."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.optim.catalogue import CATALOGUE

# Variants of an optimizer are tested elsewhere.
ROWS = [row for row in CATALOGUE if "-" not in row.name]
STEPS = 4

# The trainers' advice on workers, loggers and the like.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def inputs():
    # One batch, whatever the order in which a trainer draws: only sums differ.
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


def loss_of(model, x):
    return (model(x) - x[:, :3]).square().mean()


def plain(row):
    model = network()
    optimizer = row.make(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, inputs()).backward()
        optimizer.step()
    return model


def same(model, row):
    return all(
        torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        for one, other in zip(model.parameters(), plain(row).parameters(), strict=True)
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_lightning_takes_the_steps_of_a_plain_loop(row, tmp_path):
    pl: Any = pytest.importorskip(
        "lightning.pytorch", reason="Lightning is not installed: pip install 'gyroscope[lightning]'"
    )

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, number):
            return loss_of(self.network, batch[0])

        def configure_optimizers(self):
            return row.make(self.network.parameters())

    module = Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_steps=STEPS,
        max_epochs=-1,
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(module, DataLoader(TensorDataset(inputs()), batch_size=8))
    assert same(module.network, row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_hugging_face_trainer_takes_the_steps_of_a_plain_loop(row, tmp_path):
    reason = "transformers is not installed: pip install 'gyroscope[transformers]'"
    transformers = pytest.importorskip("transformers", reason=reason)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return {"loss": loss_of(self.network, x)}

    model = Model()
    optimizer = row.make(model.network.parameters())
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        max_grad_norm=0.0,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{"x": x} for x in inputs()]
    transformers.Trainer(model=model, args=arguments, train_dataset=data, optimizers=(optimizer, constant)).train()
    assert same(model.network, row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_optimizer_that_accelerate_prepared_takes_the_steps_of_a_plain_loop(row):
    accelerate = pytest.importorskip(
        "accelerate", reason="Accelerate is not installed: pip install 'gyroscope[transformers]'"
    )
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    prepared, optimizer = accelerator.prepare(model, row.make(model.parameters()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(loss_of(prepared, inputs()))
        optimizer.step()
    assert same(prepared, row)
