"""`gyroscope doctor`: every optimizer against its twins, in one block for an issue."""

import json

import pytest
import torch

from gyroscope import doctor
from gyroscope.cli import main
from gyroscope.optim import registry


@pytest.fixture(autouse=True)
def without_programs(monkeypatch):
    """Compiling takes seconds, and is tested elsewhere."""
    monkeypatch.setattr(doctor, "compiled_deviation", lambda make, device, eager: None)
    monkeypatch.setattr(doctor, "TIMED_STEPS", 1)
    monkeypatch.setattr(doctor, "TIMED_SHAPES", [(8, 8), (8,)])


def test_a_sound_installation_agrees_with_float64():
    done = []
    found = doctor.examine("cpu", lambda *parts: done.append(parts), seconds=0)
    assert found.passed
    assert {check.name for check in found.checks} == {*registry.names(), "rotational(adamw)"}
    assert max(check.from_float64 for check in found.checks) < 1e-4
    assert done == sorted(done)
    assert done[-1] == (len(found.checks) + 2, len(found.checks) + 2)


def test_the_text_is_a_block_that_names_versions_times_and_what_failed():
    found = doctor.InstallationCheck("cpu", {"torch": torch.__version__}, [doctor.Check("adam-s", 0.5)], 1.75)
    text = found.text()
    assert text.startswith("```\ngyroscope doctor on cpu: differ from their twins: adam-s\n")
    assert "FAILED" in text
    assert f"torch      {torch.__version__}" in text
    assert "takes 1.75 times as long as torch's fused AdamW" in text
    assert text.endswith("```")


def test_the_command_prints_json_and_returns_0(capsys):
    assert main(["doctor", "--device", "cpu", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"]
    assert printed["ratio"] > 0


def test_a_fallback_of_the_compiler_is_a_note(monkeypatch):
    monkeypatch.setitem(registry.FALLBACKS, "inductor", "compile: inductor cannot make a program")
    found = doctor.examine("cpu", seconds=0)
    assert "note: compile: inductor cannot make a program" in found.text()


@pytest.mark.parametrize("device", ["cdua", "cuda:77"])
def test_a_device_that_torch_does_not_have_is_one_sentence(device, capsys):
    assert main(["doctor", "--device", device]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gyroscope: device {device!r} cannot be used")
    assert error.count("\n") == 1
