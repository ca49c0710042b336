"""The data of a sweep, its text and its pages, as the command line makes them."""

import json

import pytest

from gyroscope.cli import main
from tests.lab.make_sweep import sweep_at


def data_of(folder, capsys):
    assert main(["report", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_data_have_every_setting_the_best_one_and_the_arms(swept, capsys):
    data = data_of(swept, capsys)
    assert (data["planned"], data["ended"], data["drawn"]) == (24, 22, ["lr", "weight_decay"])
    assert len(data["settings"]) == 12
    best = data["settings"][data["best"]]
    assert best["settings"] == {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}
    assert (best["n"], best["mean"]) == (2, pytest.approx(0.505))
    assert best["interval"] == pytest.approx(12.706 * 0.005, rel=1e-4)  # t × deviation / √2
    assert [arm["name"] for arm in data["arms"]] == ["adamw", "sgd"]
    assert [data["settings"][arm["best"]]["mean"] for arm in data["arms"]] == pytest.approx([0.505, 0.555])
    (test,) = data["comparisons"]
    assert (test["first"], test["second"], test["difference"]) == (0, 1, pytest.approx(-0.05))
    assert 0 < test["p_value"] < 0.05


def test_the_text_has_the_best_settings_first_and_failures_with_their_reasons(swept, capsys):
    assert main(["report", str(swept), "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "20 of 24 trials succeeded, 2 failed, 2 not run yet" in lines[0]
    row = next(line for line in lines if line.startswith("adamw"))
    assert row.split()[:5] == ["adamw", "0.01", "0.1", "0.5050", "0.0635"]
    assert sum("<b>diverged</b> at step 7" in line for line in lines) == 2
    assert any("adamw against sgd, each at its best: -0.05 (Welch's p =" in line for line in lines)


@pytest.mark.parametrize(
    "kind", ["[grid]\nclip = [1.0, 2.0]\nlr = [1.0]\n", '[grid]\noptimizer = ["adamw", "sgd"]\n', ""]
)
def test_a_sweep_of_one_axis_or_none_has_data_too(tmp_path, capsys, kind):
    data = data_of(sweep_at(tmp_path / "x", f"[base]\nsteps = 3\n{kind}", lambda config: 1.0), capsys)
    assert data["drawn"] == (["clip"] if "clip" in kind else [])
    assert data["settings"][data["best"]]["interval"] is None  # of one seed


def test_a_sweep_is_reported_on_alone_and_a_damaged_plan_is_one_sentence(swept, tmp_path, capsys):
    assert main(["report", str(swept), str(tmp_path), "--text"]) == 2
    assert "Report on one sweep, or on runs" in capsys.readouterr().err
    (tmp_path / "sweep.toml").write_text("[grid")
    assert main(["report", str(tmp_path), "--text"]) == 2
    said = capsys.readouterr().err
    assert "is not TOML" in said
    assert said.count("\n") == 1


def test_pages_of_runs_stand_beside_the_page_and_are_written_once(swept, tmp_path):
    out = tmp_path / "deep" / "page.html"
    assert main(["report", str(swept), "-o", str(out)]) == 0
    pages = {file: file.stat().st_mtime_ns for file in (tmp_path / "deep" / "page_runs").iterdir()}
    assert len(pages) == 10  # two of twelve settings have no score
    assert main(["report", str(swept), "-o", str(out)]) == 0
    assert {file: file.stat().st_mtime_ns for file in pages} == pages
