"""Lightning trains, and the callback measures: attached, resumed, logged, reported, and ended by an exception."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gyroscope as gyro
from gyroscope.store import open_run

pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'gyroscope[lightning]'")
import lightning.pytorch as pl

# Lightning's advice on workers, loggers and the like.
pytestmark = pytest.mark.filterwarnings("ignore")

ENTRY_POINTS = "lightning.pytorch.callbacks_factory"


def callback(*args, **options):
    from gyroscope.integrations.lightning import RotationCallback

    return RotationCallback(*args, **options)


class Net(pl.LightningModule):
    """Two layers; with `several`, two optimizers that the module steps itself."""

    def __init__(self, several=False, fails_at=None):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8, bias=False), nn.Linear(8, 3)
        self.automatic_optimization = not several
        self.fails_at = fails_at

    def training_step(self, batch, number):
        if self.global_step == self.fails_at:
            raise ArithmeticError("diverged")
        loss = self.second(torch.tanh(self.first(batch[0]))).square().mean()
        if not self.automatic_optimization:
            optimizers = self.optimizers()
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in optimizers:
                optimizer.step()
        return loss

    def configure_optimizers(self):
        if self.automatic_optimization:
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)
        sgd = torch.optim.SGD(self.first.parameters(), lr=0.1, weight_decay=1e-3)
        return sgd, torch.optim.AdamW(self.second.parameters(), lr=1e-2, weight_decay=0.1)


def fit(model, tmp_path, *callbacks, steps=6, checkpoint=None, logger=False, **options):
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(8, 6)), batch_size=2)
    trainer = pl.Trainer(
        max_steps=steps,
        max_epochs=-1,
        callbacks=list(callbacks),
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    trainer.fit(model, data, ckpt_path=checkpoint)
    return trainer


@pytest.mark.slow
def test_a_fit_is_measured_logged_and_reported(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    watch = callback(every=2)
    logger = CSVLogger(tmp_path, "logs", flush_logs_every_n_steps=1)
    fit(Net(), tmp_path, watch, logger=logger)
    run = open_run(Path(logger.log_dir, "rotation"))
    assert run.layers == ["first.weight", "second.weight"]
    assert run.steps.tolist() == [0, 2, 4]
    assert run.status == "finished"
    assert run.scalar("loss")[0].tolist() == list(range(6))
    assert str(watch.diagnosis) == str(run.diagnose())
    logger.save()
    logged = Path(logger.log_dir, "metrics.csv").read_text(encoding="utf-8")
    assert "gyroscope/angular_update" in logged
    assert "loss" not in logged.splitlines()[0].replace("gyroscope/", "").split(",")


def test_several_optimizers_of_a_module_are_one_run(tmp_path):
    fit(Net(several=True), tmp_path, callback(tmp_path / "run", every=1), steps=6)
    run = open_run(tmp_path / "run")
    assert run.config["optimizer"] == "SGD + AdamW"
    assert run.steps.tolist() == [0, 1, 2], "Lightning counts the steps of each optimizer, the run those of both"
    assert np.isfinite(run.series("first.weight", "angular_update")).all()
    assert np.isfinite(run.series("second.weight", "predicted_angular_update")).all()


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_its_run(tmp_path):
    trainer = fit(Net(), tmp_path, callback(tmp_path / "run", every=1), steps=3)
    trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")
    again = callback(tmp_path / "another", every=1)
    fit(Net(), tmp_path, again, steps=5, checkpoint=tmp_path / "checkpoint.ckpt")
    assert open_run(tmp_path / "run").steps.tolist() == [0, 1, 2, 3, 4]
    assert not (tmp_path / "another").exists()
    assert again.state_dict()["step"] == 5


@pytest.mark.slow
def test_a_fit_that_fails_leaves_a_run_that_failed(tmp_path):
    with pytest.raises(ArithmeticError, match="diverged"):
        fit(Net(fails_at=3), tmp_path, callback(tmp_path / "run", every=1))
    run = open_run(tmp_path / "run")
    assert run.status == "failed"
    assert run.steps.tolist() == [0, 1, 2]


def test_our_optimizers_and_schedules_are_lightnings_too(tmp_path):
    class Rotating(Net):
        def configure_optimizers(self):
            return gyro.optim.RotationalAdamW(self, lr=1e-2)

    class Rescaled(Net):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(gyro.param_groups(self, weight_decay=0.1), lr=1e-2)
            inner = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.25)
            schedule = gyro.optim.EquilibriumRescale(optimizer, inner, model=self)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def lr_scheduler_step(self, scheduler, metric):  # which Lightning asks for where a scheduler is not torch's
            scheduler.step()

    fit(Rotating(), tmp_path, callback(tmp_path / "turned", every=1), steps=3)
    norms = open_run(tmp_path / "turned").series("first.weight", "norm", "rms")
    assert norms == pytest.approx(norms[0])
    fit(Rescaled(), tmp_path, callback(tmp_path / "rescaled", every=1), steps=3)
    norms = open_run(tmp_path / "rescaled").series("first.weight", "norm", "rms")
    assert norms == pytest.approx(norms[0] * 0.5 ** np.arange(3), rel=0.1)


def test_the_entry_point_gives_a_callback_only_to_those_who_ask(monkeypatch, tmp_path):
    from gyroscope.integrations.lightning import VARIABLE, RotationCallback

    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"][ENTRY_POINTS].items()
    factory = EntryPoint(name, value, ENTRY_POINTS)
    monkeypatch.setattr(
        "lightning.fabric.utilities.registry.entry_points", lambda group: [factory][: group == ENTRY_POINTS]
    )

    def given() -> list[Any]:
        trainer: Any = pl.Trainer(logger=False)
        return [each for each in trainer.callbacks if isinstance(each, RotationCallback)]

    for unasked in (None, "", "0"):
        monkeypatch.delenv(VARIABLE, raising=False) if unasked is None else monkeypatch.setenv(VARIABLE, unasked)
        assert given() == []
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))
    (asked,) = given()
    assert asked.path == str(tmp_path / "run")


def test_a_checkpoint_is_saved_after_all_that_was_measured(tmp_path):
    stored = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / "fit.ckpt")

        def on_save_checkpoint(self, trainer, *_):
            with open_run(tmp_path / "run") as run:
                stored.append((run.steps.tolist(), run.scalar("loss")[0].tolist()))

    fit(Net(), tmp_path, callback(tmp_path / "run", every=1), Look(), steps=3)
    assert stored[:3] == [(list(range(n)), list(range(n))) for n in (1, 2, 3)]
