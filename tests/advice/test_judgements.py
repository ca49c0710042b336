"""One view of a layer, one file per judgement, three lists of judgements."""

import ast
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from gyroscope import advice
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import KINDS
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.judgements.fast import fast_rotation
from gyroscope.advice.judgements.imbalance import layer_imbalance
from gyroscope.advice.judgements.optimizer_options import unstable_betas
from gyroscope.advice.judgements.slow import dead_vectors
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.run_view import RunView
from gyroscope.checkpoint.checkpoint_layer import CheckpointLayer
from gyroscope.theory import AdamW

ROOM = Path(advice.__file__).parent
LISTS = ("plan_findings.py", "run_findings.py", "checkpoint_findings.py")
JUDGEMENTS = sorted(path for path in (ROOM / "judgements").glob("*.py") if path.name != "__init__.py")


def members(protocol):
    return {name for name, value in vars(protocol).items() if isinstance(value, property)}


@pytest.mark.parametrize("view", [PlanView, RunView, CheckpointLayer])
def test_plan_run_and_checkpoint_implement_one_view(view):
    has = {field.name for field in fields(view)} | set(dir(view))
    assert members(LayerView) - has == set()


@pytest.mark.parametrize("path", JUDGEMENTS, ids=lambda path: path.stem)
def test_every_judgement_is_in_a_list(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    judging = [node.name for node in public if "Finding" in ast.unparse(node.returns)]
    assert judging
    lists = "".join((ROOM / name).read_text(encoding="utf-8") for name in LISTS)
    assert [name for name in judging if f"{name}(" not in lists and f": {name}," not in lists] == []


def test_every_kind_of_finding_is_made_by_one_file():
    """But for "well" and "off_prediction", which say what a plan, a rotation and a norm come to."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in JUDGEMENTS}
    makers = {kind: [name for name, text in texts.items() if f'"{kind}"' in text] for kind in KINDS}
    several = {kind for kind, names in makers.items() if len(names) > 1}
    assert several == {"well", "off_prediction"}
    assert [kind for kind, names in makers.items() if not names] == ["incident"]


def layer(name="a", *, vectors=20, ratio=1.0, **numbers):
    """A layer of a checkpoint that turns so many times as predicted."""
    known = {"rule": AdamW(1e-2, 0.5), "predicted_rotation": 0.02, "rotations": np.full(vectors, 0.02 * ratio)}
    return CheckpointLayer(name, (vectors, 64), 0, "neuron", vectors, 64, **{**known, **numbers})


@pytest.mark.parametrize(("dead", "severity"), [(0, None), (1, "warn"), (2, "warn"), (3, "bad")])
def test_dead_vectors_are_bad_beyond_their_threshold(dead, severity):
    assert limit.BAD_DEAD_SHARE == 2 / 20
    assert [finding.severity for finding in dead_vectors(Layers([layer(dead=dead)]))] == [severity] * (
        severity is not None
    )


@pytest.mark.parametrize(("ratio", "is_judged"), [(1.9, False), (2.1, True), (float("nan"), False), (0.0, False)])
def test_an_imbalance_is_a_ratio_beyond_its_threshold(ratio, is_judged):
    views = Layers([layer("a"), layer("b", ratio=ratio)])
    found = list(layer_imbalance(views, [(view, view.rotation_ratio) for view in views]))
    assert [finding.layers for finding in found] == [("b", "a")] * is_judged


def test_an_unknown_rotation_is_not_fast():
    assert list(fast_rotation(Layers([layer(predicted_rotation=float("nan"))]))) == []
    assert [finding.layers for finding in fast_rotation(Layers([layer(predicted_rotation=0.2)]))] == [("a",)]


def test_each_pair_of_betas_is_judged_once():
    views = [layer("a", rule=AdamW(1e-2, 0.5, (0.9, 0.5))), layer("b"), layer("c", rule=AdamW(1e-2, 0.5, (0.9, 0.5)))]
    assert [(finding.layers, finding.severity) for finding in unstable_betas(Layers(views))] == [(("a", "c"), "warn")]
