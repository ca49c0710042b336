"""The one encoder: every value becomes JSON that can be read back, by the same rules everywhere."""

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest

from gyroscope._json import DEEPEST, dumps


@dataclass
class Point:
    x: float
    y: object


class Colour(IntEnum):
    RED = 3


class Loud(float):
    def __repr__(self):
        return "loud"


class Broken:
    def __repr__(self):
        raise RuntimeError


class BrokenMapping(dict):
    def items(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1 + 0.2, 0.1 + 0.2),
        (math.nan, None),
        (-math.inf, None),
        (True, True),
        (np.bool_(False), False),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.int64(2**62), 2**62),
        (Loud(2.5), 2.5),
        (Colour.RED, 3),
        (Path("a") / "b", "a/b"),
        ("\udc80ü<script>", "\\udc80ü<script>"),
        (np.array([[1.5, np.inf], [np.nan, -np.inf]]), [[1.5, None], [None, None]]),
        (np.array([1, 2], dtype=np.uint8), [1, 2]),
        (np.array([True, False]), [True, False]),
        (np.array(["x"]), ["x"]),
        (np.array(7.0), 7.0),
        (np.zeros((0, 3)), []),
        (Point(1.0, (2, None)), {"x": 1.0, "y": [2, None]}),
        (OrderedDict({3: 1, None: 2, (1, 2): 3}), {"3": 1, "None": 2, "(1, 2)": 3}),
        (range(3), [0, 1, 2]),
        (b"ab", "b'ab'"),
        (int, "<class 'int'>"),
        (Broken(), "<Broken>"),
        (BrokenMapping(a=1), "<BrokenMapping>"),
        (10**5000, "<integer of 16,610 bits>"),
        ({10**5000: 1}, {"<int>": 1}),
        ({np.int64(3): 1, Path("a"): 2}, {"3": 1, "a": 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_becomes_what_json_has_for_it(value, expected):
    assert json.loads(dumps(value)) == expected
    assert json.loads(dumps([value, {"a": value}])) == [expected, {"a": expected}]


def test_numbers_that_are_not_finite_stay_where_that_is_asked_for():
    text = dumps(
        {"a": [math.nan, -math.inf], "b": np.array([math.inf, -math.inf, math.nan, 1.0])}, keep_non_finite=True
    )
    found = json.loads(text)
    assert math.isnan(found["a"][0])
    assert found["a"][1] == -math.inf
    assert found["b"][:2] == [math.inf, -math.inf]
    assert found["b"][3] == 1.0


def test_numbers_in_arrays_are_cut_to_some_digits_and_others_are_exact():
    found = json.loads(dumps({"array": np.array([1 / 3, 1e-30]), "number": 1 / 3}, array_digits=5))
    assert found == {"array": [0.33333, 1e-30], "number": 1 / 3}


def test_an_array_without_a_limit_of_digits_comes_back_bit_for_bit():
    x = np.random.default_rng(0).standard_normal(1000)
    assert json.loads(dumps(x)) == x.tolist()


def test_what_contains_itself_or_is_nested_deep_comes_to_an_end():
    circular = {}
    circular["self"] = circular
    assert len(dumps(circular)) < 10_000
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert dumps(deep).count("[") >= DEEPEST


def test_compact_text_has_no_spaces():
    assert dumps({"a": [1, 2], "b": np.array([0.5, 1.0])}, compact=True) == '{"a":[1,2],"b":[0.5,1.0]}'
