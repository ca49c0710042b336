"""Every record of another library against white noise, with the real class if it is installed.

`make stacks` installs the classes that an index has and writes `stacks.json`, from which docs/support.md is made.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import gyroscope as gyro
from gyroscope.optimizers.other_libraries import OTHERS
from tests.integrations.conftest import timm as timm
from tests.optimizers.stack_cases import CASES, REAL, STAND_INS
from tests.optimizers.white_noise import SHAPES, ratios

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
MEASURED = Path(__file__).parent / "stacks.json"
RESULTS = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
# Moments of four bits.
WIDER = {"torchao.AdamW4bit": 0.05}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_optimizer_rotates_and_settles_as_its_rule_says(case, request):
    if case.package == "timm":
        request.getfixturevalue("timm")
    if case.tested_with is None or (case.module and find_spec(case.module.partition(".")[0]) is None):
        pytest.skip(f"{case.distribution} is not installed: make stacks")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # before heavyball is imported
    for shape in SHAPES:
        seen = ratios(case.optimizer, shape, case.gradient_rms, case.steps)
        assert seen.rotation == pytest.approx(1, abs=WIDER.get(case.id, 0.03)), shape
        assert seen.norm is None or seen.norm == pytest.approx(1, abs=0.05), shape


def test_every_record_with_a_rule_has_a_case_or_is_another_spelling_of_one_that_has():
    tested = {(case.package, case.name) for case in CASES}
    predicted = {(other.package, other.name): other.row.about for other in OTHERS if other.rule is not None}
    spellings = {(package, about) for (package, name), about in predicted.items() if (package, name) in tested}
    without = {key for key, about in predicted.items() if key not in tested and (key[0], about) not in spellings}
    # Only a process group steps it. Its step is SingleDeviceMuon's.
    assert without <= {("muon", "MuonWithAuxAdam"), ("muon", "SingleDeviceMuonWithAuxAdam"), *TESTED_ELSEWHERE}


# tests/optim/test_torch_rules.py has a forecast of it.
TESTED_ELSEWHERE = {("transformers", "Adafactor"), ("timm", "Adafactor")}


def test_a_subclass_in_another_library_is_unknown_until_it_has_a_record():
    case = next(each for each in STAND_INS if each.id == "emerging_optimizers.Muon")
    muon = case.optimizer([torch.nn.Parameter(torch.ones(4, 4))])
    own = type("Muown2", (type(muon),), {"__module__": "emerging_optimizers.contrib"})
    child = own([torch.nn.Parameter(torch.ones(4, 4))])
    with pytest.raises(ValueError, match=r"Muown2 is not among .*inherits from emerging_optimizers's Muon"):
        gyro.rule_of(child.param_groups[0], child)


def test_the_file_of_results_has_every_case_within_its_bounds():
    assert set(RESULTS) == {case.id for case in CASES}
    for name, rows in RESULTS.items():
        for rotation, norm in rows["ratios"]:
            assert abs(rotation - 1) <= WIDER.get(name, 0.03)
            assert norm is None or abs(norm - 1) <= 0.05
    assert not [case for case in REAL if "stand-in" in RESULTS[case.id]["tested with"]]
