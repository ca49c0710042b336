"""One name, one thing: no two classes, and no two files, are called the same for different things."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "gyroscope"
SAME_CLASS = {
    # A rule of theory and the optimizer that follows it: public names, told apart by `theory.` and `optim.`.
    "AdamS": {"optim/adam_s.py", "theory/rules/coupled_adam.py"},
    "AdamSRT": {"optim/adam_s.py", "theory/rules/coupled_adam.py"},
    "KAdam": {"optim/k_adam.py", "theory/rules/k_adam.py"},
    "Lion": {"optim/lion.py", "theory/rules/lion.py"},
    "SGDMRT": {"optim/sgd_mrt.py", "theory/rules/sgdm.py"},
    # The same for users of either trainer.
    "RotationCallback": {"integrations/lightning.py", "integrations/transformers.py"},
}
SAME_FILE = {"__init__.py", "adam_s.py", "adamw.py", "k_adam.py", "lion.py", "sgd_mrt.py"}
"""A rule of theory and its optimizer stand in files of one name."""


def files() -> list[Path]:
    """Every file of the package but those of a sealed room, `_engine`: no other room sees the names in there."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "_engine" not in path.parts]


def is_experiment(path: Path) -> bool:
    """Whether a file is one experiment of a paper: named after a figure or a theorem, with a `Config` of its own."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] == "lab" and len(parts) == 3


def test_no_two_classes_have_one_name():
    places = defaultdict(set)
    for path in files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not (node.name == "Config" and is_experiment(path)):
                places[node.name].add(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == SAME_CLASS


def test_no_two_files_have_one_name():
    places = defaultdict(list)
    for path in files():
        if path.name not in SAME_FILE and not is_experiment(path):
            places[path.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
