"""One dataclass of facts about a layer, one file per judgement, three lists of judgements."""

import ast
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from gyroscope import advice
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import KINDS
from gyroscope.advice.judgements.imbalance import last_speeds, layer_imbalance
from gyroscope.advice.judgements.optimizer_options import unstable_betas
from gyroscope.advice.judgements.rotation_speed import dead_vectors, fast_rotation
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.theory import AdamW

ROOM = Path(advice.__file__).parent
LISTS = ("plan_findings.py", "run_findings.py", "checkpoint_findings.py")
JUDGEMENTS = sorted(path for path in (ROOM / "judgements").glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", JUDGEMENTS, ids=lambda path: path.stem)
def test_every_judgement_is_in_a_list(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    judging = [node.name for node in public if "Finding" in ast.unparse(node.returns)]
    assert judging
    lists = "".join((ROOM / name).read_text(encoding="utf-8") for name in LISTS)
    assert [name for name in judging if f"{name}(" not in lists and f": {name}," not in lists] == []


def test_every_kind_of_finding_is_made_by_one_file():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in JUDGEMENTS}
    makers = {kind: [name for name, text in texts.items() if f'"{kind}"' in text] for kind in KINDS}
    assert [kind for kind, names in makers.items() if len(names) > 1] == []
    assert [kind for kind, names in makers.items() if not names] == ["incident"]


def layer(name="a", *, ratio=1.0, **numbers):
    """A layer that turns so many times as predicted."""
    known = {"rule": AdamW(1e-2, 0.5), "vectors": 20.0, "predicted_rotation": 0.02, "rotation_ratio": ratio}
    return LayerFacts(name, **{**known, **numbers})


@pytest.mark.parametrize(("dead", "severity"), [(0, None), (1, "warn"), (2, "warn"), (3, "bad")])
def test_dead_vectors_are_bad_beyond_their_threshold(dead, severity):
    assert limit.BAD_DEAD_SHARE == 2 / 20
    assert [finding.severity for finding in dead_vectors(Layers([layer(dead=dead)]))] == [severity] * (
        severity is not None
    )


@pytest.mark.parametrize(("ratio", "is_judged"), [(1.9, False), (2.1, True), (float("nan"), False), (0.0, False)])
def test_an_imbalance_is_a_ratio_beyond_its_threshold(ratio, is_judged):
    layers = Layers([layer("a"), layer("b", ratio=ratio)])
    found = list(layer_imbalance(layers, last_speeds(layers)))
    assert [finding.layers for finding in found] == [("b", "a")] * is_judged


def test_an_unknown_rotation_is_not_fast():
    assert list(fast_rotation(Layers([layer(predicted_rotation=float("nan"))]))) == []
    assert [finding.layers for finding in fast_rotation(Layers([layer(predicted_rotation=0.2)]))] == [("a",)]


def test_each_pair_of_betas_is_judged_once():
    facts = [layer("a", rule=AdamW(1e-2, 0.5, (0.9, 0.5))), layer("b"), layer("c", rule=AdamW(1e-2, 0.5, (0.9, 0.5)))]
    assert [(finding.layers, finding.severity) for finding in unstable_betas(Layers(facts))] == [(("a", "c"), "warn")]


@pytest.mark.parametrize(
    ("norm_ratio", "last_lr", "rotation_ratio", "state"),
    [
        (1.0, 1e-2, 1.0, "in equilibrium"),
        (1.2, 1e-2, 1.0, "in equilibrium"),
        (1.4, 1e-2, 1.0, "off equilibrium"),
        (0.7, 1e-2, 1.0, "off equilibrium"),
        # At a quarter of the peak rate the equilibrium norm is half as large, and the norm follows it.
        (0.5, 2.5e-3, 1.0, "in equilibrium"),
        (0.6, 2.5e-3, 0.8, "in equilibrium"),
        (0.9, 2.5e-3, 0.6, "falls out"),
        (0.35, 2.5e-3, 1.2, "off equilibrium"),
    ],
)
def test_a_last_norm_is_judged_between_the_equilibria_of_the_peak_and_of_the_last_rate(
    norm_ratio, last_lr, rotation_ratio, state
):
    facts = LayerFacts.of_checkpoint(
        "a",
        AdamW(last_lr, 0.5),
        steps=2000,
        peak_lr=1e-2,
        memory=200.0,
        run_length=6.0,
        norm_ratio=norm_ratio,
        rotation_ratio=rotation_ratio,
    )
    assert facts.state == state
    assert facts.is_comparable == (state == "in equilibrium")


def test_neither_a_run_nor_a_plan_nor_a_checkpoint_changes_the_facts():
    with pytest.raises(FrozenInstanceError):
        layer().state = "short"
