"""The examples of trainers run, and leave a run that was measured."""

from pathlib import Path

import numpy as np
import pytest

from gyroscope.store import open_run
from tests.forked import OWN, TRAINERS, run_script
from tests.needs import muon_for

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
# Script, libraries that it needs, where its run is, a layer of it, and its optimizers.
SCRIPTS = {
    "muon_gpt.py": ((), "runs/*", "blocks.1.down.weight", "Muon + AdamW"),
    "lightning_digits.py": (("lightning", "sklearn"), "runs/lightning", "network.0.0.weight", "RotationalAdamW"),
    "trainer_gpt2.py": (
        ("transformers", "accelerate"),
        "runs/trainer/rotation",
        "transformer.h.1.mlp.c_fc.weight",
        "RotationalAdamW",
    ),
}


@pytest.mark.parametrize("script", muon_for("muon_gpt.py", SCRIPTS))
def test_an_example_of_at_most_sixty_lines_trains_and_is_measured(script, tmp_path):
    libraries, where, layer, optimizer = SCRIPTS[script]
    for library in libraries:
        pytest.importorskip(library, reason=f"{library} is not installed: pip install -e '.[dev]'")
    assert len((EXAMPLES / script).read_text(encoding="utf-8").splitlines()) <= 60
    program = f"import runpy; runpy.run_path({str(EXAMPLES / script)!r}, run_name='__main__')"
    ended = run_script(program, tmp_path, "25", preload=TRAINERS if libraries else OWN)
    assert ended.code == 0, ended.written
    (path,) = tmp_path.glob(where)
    with open_run(path) as run:
        assert run.status == "finished"
        assert run.config["optimizer"] == optimizer
        assert layer in run.layers
        is_measured = np.isfinite(run.series(layer, "angular_update"))  # the sample at the end is of no step
        assert is_measured.any()
        assert (run.series(layer, "predicted_angular_update")[is_measured] > 0).all()
        assert len(run.scalar("loss")[0]) > 0
        assert str(run.diagnose()).splitlines()[0] in ended.written
