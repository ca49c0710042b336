"""What the pages name is there: files, folders, commands and links."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TOP = ("gyroscope", "tests", "docs", "tools", "benchmarks", "examples", "results", ".github", ".ci")
PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, TOP))})/[^`\s]*)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
GENERATED = ("docs/api/",)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_every_path_on_a_page_is_there(page):
    named = [name for name in paths(page.read_text(encoding="utf-8")) if name not in GENERATED]
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


@every_page
def test_every_link_of_a_page_leads_to_a_file(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_path_that_is_not_there_is_noticed():
    text = "`gyroscope/theory/` and `gyroscope/theory/law.py` are there, `gyroscope/track/gauge.py` is not"
    assert paths(text) == ["gyroscope/theory/", "gyroscope/theory/law.py", "gyroscope/track/gauge.py"]
    assert not list(ROOT.glob("gyroscope/track/gauge.py"))


def test_every_room_stands_in_the_table_of_contributing():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = [folder.name for folder in (ROOT / "gyroscope").iterdir() if (folder / "__init__.py").exists()]
    assert [room for room in rooms if f"`{room}/`" not in table] == []


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in folder.glob("0*.md") if page.name not in listed] == []


def test_every_measured_quantity_with_a_greek_letter_stands_in_the_vocabulary():
    vocabulary = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    assert [symbol for symbol in ("η_r", "η_g", "η_e", "λ_u", "λ_e", "κ", "τ", "X") if symbol not in vocabulary] == []


def paths(text: str) -> list[str]:
    """What a page sets in backticks and begins like a path in this repository; globs are allowed, calls are not."""
    return [name for name in PATH.findall(text) if "(" not in name and "…" not in name]
