"""The examples that plan, compare and accelerate run. Those of other trainers run in tests/integrations."""

import csv
from pathlib import Path

import pytest

from gyroscope.cli import main
from gyroscope.store import open_run
from tests.forked import OWN, TRAINERS, run_script

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(script, folder, *arguments, preload=OWN):
    program = f"import runpy; runpy.run_path({str(EXAMPLES / script)!r}, run_name='__main__')"
    ended = run_script(program, folder, *arguments, preload=preload)
    assert ended.code == 0, ended.written
    return ended.written


def test_the_plan_of_86_matrices_is_a_table_of_8_kinds(tmp_path):
    written = output_of("llama_plan.py", tmp_path, "2000")
    rows = [line.split()[0] for line in written.splitlines() if "_proj (12)" in line or line.startswith("lm_head ")]
    kinds = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert rows == [*(f"layers.*.{kind}" for kind in kinds), "lm_head"]
    assert "memories" in written.splitlines()[0]


def test_the_loop_of_nanogpt_is_tracked_and_its_head_says_what_weight_decay_does(tmp_path):
    written = output_of("nanogpt.py", tmp_path, "120")
    assert "so weight decay has almost no effect" in written
    (path,) = (tmp_path / "runs").iterdir()
    with open_run(path) as run:
        assert run.status == "finished"
        assert {"transformer.wte.weight", "transformer.h.3.attn.c_attn.weight[q]"} <= set(run.layers)
        rates = run.series(run.layers[0], "lr")
        assert rates[rates > 0].max() == pytest.approx(1e-3, rel=0.02)
        assert len(run.scalar("loss")[0]) == 120
        assert len(run.scalar("val_loss")[0]) == 1


def test_a_researcher_predicts_exports_and_compares_runs_of_an_own_optimizer(tmp_path, monkeypatch, capsys):
    written = output_of("researcher.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in written.splitlines()[:2]:
        measured, predicted = (float(word) for word in line.split() if word[0].isdigit())
        assert measured == pytest.approx(predicted, rel=0.1)
    with open("runs/both.csv", encoding="utf-8") as file:
        assert {row["run"] for row in csv.DictReader(file)} == {"short", "long"}
    assert main(["report", "runs/short", "runs/long", "--text"]) == 0
    assert "short" in capsys.readouterr().out


def test_accelerate_trains_and_is_measured(tmp_path):
    for library in ("accelerate", "sklearn"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install -e '.[dev]'")
    written = output_of("accelerate_digits.py", tmp_path, "40", preload=TRAINERS)
    with open_run(tmp_path / "runs" / "accelerate") as run:
        assert run.status == "finished"
        assert run.config["optimizer"] == "RotationalAdamW"
        assert str(run.diagnose()).splitlines()[0] in written
