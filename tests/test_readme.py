"""What the README shows is what happens."""

import doctest
import io
import json
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from gyroscope.cli import main

README = Path(__file__).parent.parent / "README.md"


def test_the_python_examples_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write runs
    failed, tried = doctest.testfile(str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 5
    assert failed == 0


def test_the_plan_begins_as_the_readme_shows(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    command = re.search(r"^\$ gyroscope (plan .*)$", text(), re.MULTILINE)
    shown = re.search(r"```text\n(.*?)```", text(), re.DOTALL)
    assert command
    assert shown
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(shlex.split(command[1])) == 0
    assert printed.getvalue().startswith(shown[1])


def test_the_transfer_of_the_readme_prints_at_most_ten_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    command = re.search(r"^\$ gyroscope (transfer .*)$", text(), re.MULTILINE)
    assert command
    assert main(shlex.split(command[1])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Use lr 1.73e-4 and weight decay 0.2 for hidden weights. (tau for batch × 4,")
    assert len(lines) <= 10


@pytest.mark.parametrize(
    "command", re.findall(r"^\$ gyroscope ((?:transfer|convert) .*)$", README.read_text(), re.MULTILINE)
)
def test_the_commands_of_the_readme_run(command, capsys):
    assert main(shlex.split(command)) == 0
    assert "lr" in capsys.readouterr().out


def test_the_lab_commands_exist():
    commands = [shlex.split(line) for line in re.findall(r"^\$ gyroscope (lab .*)$", text(), re.MULTILINE)]
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["lab", "list"]) == 0
    assert commands[0] == ["lab", "list"]
    assert all(id in printed.getvalue() for command in commands[1:] for id in command[2:])


def test_linked_files_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", text())
    assert "docs/balance.png" in links
    assert [link for link in links if not (README.parent / link).is_file()] == []


def test_the_sentence_below_the_picture_has_the_numbers_of_its_record():
    record = json.loads((README.parent / "results/re/fig4.json").read_text(encoding="utf-8"))
    (measured,) = [
        claim["measured"]["mean"] for claim in record["claims"] if claim["sentence"].startswith("fastest over slowest")
    ]
    prose = " ".join(text().split())
    assert f"the fastest layer rotates {measured:.2f} times as fast as the slowest" in prose
    assert record["n"] == 10
    assert "over ten seeds" in prose


def test_the_error_of_predicted_rotation_is_that_of_the_record():
    values = json.loads((README.parent / "results/beyond/network_errors.json").read_text(encoding="utf-8"))["values"]
    # By seed, network and layer: measured over predicted rotation, norm, and both after corrections.
    errors = np.abs(np.array(values["ratios"], dtype=float)[..., 0] - 1)
    invariant = np.array(values["invariant"], dtype=float) == 1
    judged = errors[invariant & np.isfinite(errors)]
    others = errors[~invariant & np.isfinite(errors)]
    assert f"**{100 * np.median(judged):.1f} % median error**" in text()
    assert f"over {judged.size} scale-invariant layers" in text()
    assert f"are harder: {100 * np.median(others):.0f} %" in " ".join(text().split()).replace("followed by a norm ", "")


def test_the_cost_of_tracking_is_below_the_number_in_every_network_of_the_record():
    networks = benchmark("tracker_overhead")["networks"]
    shares = [max(entry["share"], entry["processor"]) for entry in networks if entry["setting"] == "default"]
    bold = re.search(r"\*\*Under (\S+) % of training time\*\*", text())
    assert bold
    assert len(shares) == 2
    assert max(shares) < float(bold[1]) / 100


def test_the_error_of_an_autopsy_is_the_largest_of_the_record():
    cases = benchmark("autopsy_exactness")["cases"]
    bold = re.search(r"\*\*Exact to (\d+) parts in 100,000\*\*", text())
    assert bold
    assert int(bold[1]) == np.ceil(1e5 * max(case["largest"] for case in cases))
    assert f"for all {sum(case['neurons'] for case in cases):,} neurons of two networks with five optimizers" in text()
    assert {len({case[key] for case in cases}) for key in ("network", "optimizer")} == {2, 5}


def test_it_is_short():
    assert len(text().splitlines()) <= 150
    assert len(text().split()) <= 900


def benchmark(name: str) -> dict:
    return json.loads((README.parent / "benchmarks" / "records" / f"{name}.json").read_text(encoding="utf-8"))


def text() -> str:
    return README.read_text(encoding="utf-8")
