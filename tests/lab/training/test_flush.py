"""What a checkpoint's run has measured is stored before the checkpoint: a kill after it loses nothing."""

from gyroscope_lab.training import checkpoint, train
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.result import ROTATION

from gyroscope.store import open_run


def test_every_loss_and_sample_until_a_checkpoint_is_stored_when_it_is_saved(tmp_path, monkeypatch):
    save = checkpoint.save
    saved = []

    def save_and_look(folder, step, state):
        # What a reader finds is what a process that is killed now leaves.
        with open_run(tmp_path / "run" / ROTATION) as run:
            assert run.scalar("loss")[0].tolist() == list(range(step))
            assert run.steps.tolist() == list(range(step))
        saved.append(step)
        return save(folder, step, state)

    monkeypatch.setattr(checkpoint, "save", save_and_look)
    config = TrainConfig(task="digits", model="mlp", optimizer="adamw", steps=12, batch_size=32, sample_every=1)
    train(config, tmp_path / "run")
    assert saved[-1] == 12
