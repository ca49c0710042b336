"""Every number that decides about a finding, or about a mark on a page, is in `thresholds.py` with its reason."""

import ast
import re
from pathlib import Path

import pytest

import gyroscope
from gyroscope.advice import thresholds

PACKAGE = Path(gyroscope.__file__).parent
TEXT = Path(thresholds.__file__).read_text(encoding="utf-8")
NAMES = [name for name in vars(thresholds) if name.isupper()]
FILES = [path for room in ("advice", "report") for path in sorted((PACKAGE / room).rglob("*.py"))]
FILES = [path for path in FILES if path.name != "thresholds.py"]
SCRIPTS = sorted((PACKAGE / "render" / "assets").glob("*.js"))
# Whole numbers that count or point, and the numbers without which nothing can be written.
PLAIN = {0, 1, 2, 10}
ALLOWED = {
    # The definition of a standard deviation by a median.
    "unusual_values.py": ["NORMAL = 1.4826"],
    # How labels are cut.
    "layer_families.py": ["USUAL_SHARE = 0.6"],
    # How far a picture reaches.
    # Which settings of a sweep are as good as the best: no finding, and the lab's tables read it too.
    "sweep_data.py": ["TOLERANCE = 0.02"],
}


def numbers_in(tree):
    """Yield the numbers that a comparison reads, and their lines; a number that is multiplied in it counts too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and type(part.value) in (int, float):
                    yield part.value, part.lineno


@pytest.mark.parametrize("name", NAMES)
def test_every_threshold_has_a_reason_and_is_read(name):
    before = TEXT.split(f"\n{name} = ", 1)[0]
    assert before.splitlines()[-1].startswith("# ")
    everything = [*FILES, *(PACKAGE / "checkpoint").rglob("*.py"), *(PACKAGE / "live").rglob("*.py")]
    assert any(re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")) for path in everything)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_compares_with_a_number_of_its_own(path):
    """Theory has its own file for constants; what a file compares with, `thresholds.py` names."""
    found = list(numbers_in(ast.parse(path.read_text(encoding="utf-8"))))
    assert [(number, line) for number, line in found if number not in PLAIN] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_of_findings_names_a_fraction_of_its_own(path):
    """A constant at the top of a file that is not a whole number is a threshold under another name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = [(node, node.value) for node in tree.body if isinstance(node, ast.Assign)]
    constants = [(node, value.value) for node, value in values if isinstance(value, ast.Constant)]
    fractions = [ast.unparse(node) for node, value in constants if isinstance(value, float)]
    assert fractions == ALLOWED.get(path.name, [])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_of_a_page_compares_a_measurement_with_a_fraction(path):
    """The page's data carry the limits."""
    found = re.findall(r"([\w\]]+)\)?\s*[<>]=?\s*(?:1\s*/\s*)?\d+\.\d+", path.read_text(encoding="utf-8"))
    # Decades of an axis, the darkness of a cell and the characters of a label are no measurements.
    assert [name for name in found if name not in ("0]", "span", "depth", "end")] == []
