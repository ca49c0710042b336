"""Checkpoints that libraries themselves wrote: Lightning, the Hugging Face Trainer, two processes with FSDP2."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import gyroscope as gyro
from tests.processes import run_processes

# The trainers' advice on workers, loggers and the like.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS = 12
WORLD = 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 9))


def data():
    return torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def loss_of(model, x):
    return (model(x) - x[:, :9]).square().mean()


def assert_same(file, folder, prefix=""):
    """The rotation of every neuron in the last step, from the file and from the tracker's run."""
    autopsy = gyro.autopsy(file)
    run = gyro.store.open_run(folder)
    assert len(run.layers) == len(autopsy.layers) == 2
    for name in run.layers:
        measured = np.asarray(run.raw(name, "angular_update"))[-1]
        np.testing.assert_allclose(autopsy.layers[prefix + name].rotations, measured, rtol=1e-4, err_msg=name)


def test_a_checkpoint_that_lightning_wrote(tmp_path):
    pl: Any = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()
            self.save_hyperparameters({"width": 24})

        def training_step(self, batch, number):
            return loss_of(self.network, batch[0])

        def configure_optimizers(self):
            adamw = torch.optim.AdamW(self.network.parameters(), lr=1e-2, weight_decay=0.1)
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=20)
            return {"optimizer": adamw, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}

        def on_fit_start(self):
            self.tracker = gyro.Tracker(self.network, self.optimizers(), tmp_path / "run", every=1, raw=".")

        def on_fit_end(self):
            self.tracker.close()

    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(TensorDataset(data()), batch_size=8))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert_same(tmp_path / "last.ckpt", tmp_path / "run", "network.")


def test_a_checkpoint_that_the_hugging_face_trainer_wrote(tmp_path):
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return {"loss": loss_of(self.network, x)}

    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        weight_decay=0.1,
        logging_steps=1,
        save_steps=STEPS,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=[{"x": x} for x in data()])
    trainer.create_optimizer()
    with gyro.Tracker(model.network, trainer.optimizer, tmp_path / "run", every=1, raw="."):
        trainer.train()
    assert_same(tmp_path / f"checkpoint-{STEPS}", tmp_path / "run", "network.")


def two_processes(rank: int, ports: list[int], folder: Path) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{ports[0]}", rank=rank, world_size=WORLD)
    # Three rows of nine are an uneven shard, and every neuron is on one process.
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    with gyro.Tracker(model, adamw, folder / "run", every=1, raw="."):
        for _ in range(STEPS):
            adamw.zero_grad()
            loss_of(model, data()).backward()
            adamw.step()
    weights, state = get_state_dict(model, adamw)
    save({"model": weights, "optimizer": state}, checkpoint_id=folder / "dcp")
    dist.destroy_process_group()


@pytest.mark.distributed
def test_a_checkpoint_that_two_processes_wrote_in_parts(tmp_path):
    made = run_processes(two_processes, tmp_path, world=WORLD)
    assert len(list((made / "dcp").glob("*.distcp"))) == WORLD
    assert_same(made / "dcp", made / "run")
