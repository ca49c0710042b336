"""One adapter for anything with `log(scalars, step)`: trackio and MLflow get what the tracker measured."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gyroscope.integrations.loggers import LogSink, MLflow, Trackio, WandB
from tests.forked import OWN, run_script
from tests.measure.test_sinks import tracked

REPOSITORY = Path(__file__).parent.parent.parent


class Run:
    """A run of trackio: no define_metric."""

    def __init__(self):
        self.logged, self.finished = [], False

    def log(self, scalars, step=None):
        self.logged.append((step, scalars))

    def finish(self):
        self.finished = True


@pytest.mark.parametrize("make", [LogSink, Trackio])
def test_a_run_of_ones_own_gets_the_numbers_of_every_sample_and_stays_open(make, tmp_path):
    theirs = Run()
    run = tracked(tmp_path, make(theirs))
    assert [step for step, _ in theirs.logged] == run.steps.tolist()
    assert all("gyroscope/angular_update" in scalars for _, scalars in theirs.logged)
    assert not theirs.finished


def test_a_function_is_a_logger_and_is_closed_if_the_user_says_how():
    got = []
    sink = LogSink(lambda scalars, step: got.append((step, scalars)), close=lambda: got.append("closed"))
    sink(3, {"loss": 0.5})
    sink.close()
    assert got == [(3, {"loss": 0.5}), "closed"]


def test_a_drop_in_of_wandb_without_define_metric_gets_the_step_as_a_number():
    theirs = Run()
    WandB(theirs)(3, {"loss": 0.5})
    assert theirs.logged == [(None, {"loss": 0.5, "gyroscope/step": 3})]


def test_mlflow_gets_names_that_it_allows_and_the_run_by_number(monkeypatch):
    """A stand-in with the signature of mlflow 3.17. The real library is tested below, if it is installed."""
    logged = []

    def log_metrics(metrics, step=None, synchronous=None, run_id=None):
        logged.append((metrics, step, run_id))

    module = SimpleNamespace(log_metrics=log_metrics, active_run=lambda: None)
    monkeypatch.setattr("gyroscope.integrations.loggers.extra", lambda *_: module)
    with pytest.raises(ValueError, match=r"call mlflow\.start_run\(\) first"):
        MLflow()
    module.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="7f"))
    MLflow()(3, {"gyroscope/norm/h.0.attn[q]": 0.5})
    assert logged == [({"gyroscope/norm.h.0.attn_q_": 0.5}, 3, "7f")]


def result_of(library, code, folder, **environment):
    """Run the code in a process of its own, where the library has a home of its own, and return its last JSON."""
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'gyroscope[{library}]'")
    start = f"""
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {str(REPOSITORY)!r})
from gyroscope.measure import sinks
sinks.PATIENCE = 60.0  # a busy machine is not what is tested
from tests.measure.test_sinks import tracked
"""
    ended = run_script(start + code, folder, preload=OWN, **environment)
    assert ended.code == 0, ended.written
    return json.loads([line for line in ended.written.splitlines() if line.startswith("{")][-1])


@pytest.mark.slow
def test_the_real_trackio_stores_every_sample_of_a_run_of_its_own(tmp_path):
    code = """
from gyroscope.integrations.loggers import Trackio
run = tracked("run", Trackio(project="mine", name="first", embed=False))
from trackio import context_vars
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("mine", "first")
print(json.dumps({"steps": run.steps.tolist(), "stored": [row["step"] for row in rows],
                  "names": sorted(rows[0]), "active": context_vars.current_run.get() is not None}))
"""
    found = result_of("trackio", code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert found["stored"] == found["steps"]
    assert "gyroscope/angular_update" in found["names"]
    assert not found["active"]


@pytest.mark.slow
def test_the_real_trackio_gets_the_numbers_in_the_run_of_a_loop(tmp_path):
    code = """
import trackio
from gyroscope.integrations.loggers import Trackio, WandB
theirs = trackio.init(project="mine", name="loop", embed=False)
tracked("run", Trackio())
WandB(theirs)(9, {"loss": 0.25})
trackio.log({"loss": 0.5})
trackio.finish()
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("mine", "loop")
print(json.dumps({"losses": [row["loss"] for row in rows if "loss" in row][-2:],
                  "measured": sum("gyroscope/angular_update" in row for row in rows)}))
"""
    found = result_of("trackio", code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert found["losses"] == [0.25, 0.5]
    assert found["measured"] == 5


@pytest.mark.slow
def test_the_real_trackio_gets_the_numbers_in_the_run_of_the_hugging_face_trainer(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gyroscope[transformers]'")
    code = """
from tests.integrations.test_transformers import callback, gpt2, train
train(gpt2(), "trained", steps=3, callbacks=[callback(every=1)], report_to="trackio")
from trackio.sqlite_storage import SQLiteStorage
(project,) = SQLiteStorage.get_projects()
(run,) = SQLiteStorage.get_runs(project)
rows = SQLiteStorage.get_logs(project, run)
print()
print(json.dumps({name: sorted(row["step"] for row in rows if name in row)
                  for name in ("gyroscope/angular_update", "train/loss")}))
"""
    found = result_of("trackio", code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert found["gyroscope/angular_update"] == [0, 1, 2]
    # The Trainer logs without a step, so trackio counts.
    assert len(found["train/loss"]) == 1


@pytest.mark.slow
def test_the_real_mlflow_stores_every_sample_in_the_active_run(tmp_path):
    code = """
import mlflow
from gyroscope.integrations.loggers import MLflow
mlflow.set_tracking_uri("file:" + sys.argv[1])
with mlflow.start_run() as theirs:
    run = tracked("run", MLflow(), sink_layers="^0")
client = mlflow.MlflowClient()
history = client.get_metric_history(theirs.info.run_id, "gyroscope/norm.0.weight")
values = run.series("0.weight", "norm", "rms")
print(json.dumps({"steps": run.steps.tolist(), "values": values.tolist(),
                  "stored": [[metric.step, metric.value] for metric in history]}))
"""
    # mlflow-skinny has no database. Its file store is in maintenance, and has to be asked for.
    code = code.replace("sys.argv[1]", repr(str(tmp_path / "mlruns")))
    found = result_of("mlflow", code, tmp_path, MLFLOW_ALLOW_FILE_STORE="true")
    assert found["stored"] == [
        [step, pytest.approx(value)] for step, value in zip(found["steps"], found["values"], strict=True)
    ]
