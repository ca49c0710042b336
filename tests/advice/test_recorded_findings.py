"""The judgements on all fixtures are those that were recorded before each became one file."""

import json
import re

import pytest

from tests.advice.record import RECORD, SCENARIOS, plain

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))


def numbers(text):
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def test_every_scenario_is_recorded():
    assert list(RECORDED) == list(SCENARIOS)
    assert sum(map(len, RECORDED.values())) > 500


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_findings_of_a_fixture_stay_the_same(name, tmp_path):
    before = RECORDED[name]
    after = plain(SCENARIOS[name](tmp_path))
    for key in ("kind", "severity", "layers"):
        assert [each[key] for each in after] == [each[key] for each in before], key
    for key in ("text", "remedy"):
        words = [[NUMBER.sub("#", each[key]) for each in findings] for findings in (before, after)]
        assert words[0] == words[1]
        for old, new in zip(before, after, strict=True):
            # Sums of float32 differ in their last digits from processor to processor, and rounding may show that.
            assert numbers(new[key]) == pytest.approx(numbers(old[key]), rel=0.06, abs=1e-6)
