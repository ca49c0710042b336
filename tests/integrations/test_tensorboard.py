"""TensorBoard shows what the tracker measured."""

import subprocess
import sys

import pytest

from gyroscope.integrations.loggers import TensorBoard
from tests.measure.test_sinks import tracked

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def scalars(folder):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(folder))
    read.Reload()
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


@pytest.fixture(autouse=True)
def _installed():
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'gyroscope[tensorboard]'")


def test_its_scalars_are_the_runs(tmp_path):
    run = tracked(tmp_path / "run", TensorBoard(tmp_path / "board"), sink_layers="^0")
    found = scalars(tmp_path / "board")
    expected = zip(run.steps.tolist(), run.series("0.weight", "norm", "rms").tolist(), strict=True)
    assert found["gyroscope/norm/0.weight"] == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert "gyroscope/angular_update" in found


def test_a_writer_of_ones_own_stays_open(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "board"))
    tracked(tmp_path / "run", TensorBoard(writer))
    writer.add_scalar("loss", 1.0, 7)
    writer.close()
    found = scalars(tmp_path / "board")
    assert found["loss"] == [(7, 1.0)]
    assert len(found["gyroscope/angular_update"]) == 5


def test_what_cannot_be_written_to_is_refused():
    with pytest.raises(ValueError, match="must be a directory, or a SummaryWriter"):
        TensorBoard(7)


def test_adapters_import_nothing_before_they_are_used():
    unused = {"tensorboard", "wandb", "trackio", "mlflow", "torch"}
    check = f"import gyroscope.integrations.loggers, sys; assert not {unused} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
