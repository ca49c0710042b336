"""The examples of trainers run, and leave a run that was measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gyroscope.store import open_run
from tests.needs import muon_for

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
# Script, libraries that it needs, where its run is, a layer of it, and its optimizers.
SCRIPTS = {
    "nanogpt.py": ((), "runs/*", "blocks.1.down.weight", "Muon + AdamW"),
    "lightning_digits.py": (("lightning", "sklearn"), "runs/lightning", "network.0.0.weight", "RotationalAdamW"),
    "trainer_gpt2.py": (
        ("transformers", "accelerate"),
        "runs/trainer/rotation",
        "transformer.h.1.mlp.c_fc.weight",
        "RotationalAdamW",
    ),
}


@pytest.mark.parametrize("script", muon_for("nanogpt.py", SCRIPTS))
def test_an_example_of_at_most_sixty_lines_trains_and_is_measured(script, tmp_path):
    libraries, where, layer, optimizer = SCRIPTS[script]
    for library in libraries:
        pytest.importorskip(library, reason=f"{library} is not installed: pip install -e '.[dev]'")
    assert len((EXAMPLES / script).read_text(encoding="utf-8").splitlines()) <= 60
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"check": True, "capture_output": True, "encoding": "utf-8", "timeout": 300}
    done = subprocess.run([sys.executable, str(EXAMPLES / script), "25"], cwd=tmp_path, env=quiet, **options)
    (path,) = tmp_path.glob(where)
    with open_run(path) as run:
        assert run.status == "finished"
        assert run.config["optimizer"] == optimizer
        assert layer in run.layers
        assert (run.series(layer, "predicted_angular_update") > 0).all()
        assert len(run.scalar("loss")[0]) > 0
        assert str(run.diagnose()).splitlines()[0] in done.stdout
