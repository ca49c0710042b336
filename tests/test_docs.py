"""What the pages name is there: files, folders, commands and links."""

import doctest
import json
import re
import sqlite3
import tomllib
from contextlib import closing
from importlib import import_module
from inspect import getdoc, signature
from pathlib import Path
from types import ModuleType

import pytest

from gyroscope.store.schema import TABLES
from tests import words
from tests.measure.test_sinks import tracked
from tests.store import make
from tools import docstring_text, site, site_links, site_reference, site_text, tutorials

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TOP = ("gyroscope", "lab", "tests", "docs", "tools", "benchmarks", "examples", "results", ".github", ".ci")
PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, TOP))})/[^`\s]*)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
REFERENCE = re.compile(r"^::: (\S+)$", re.MULTILINE)
REFERENCE_PAGES = [page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]
# Pages that run as doctests. The guide to rules runs in tests/optimizers, the one to experiments in tests/lab.
TESTED_PAGES = [
    page for page in PAGES if page.name not in ("README.md", "own-optimizer.md") and ">>> " in page.read_text("utf-8")
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_every_path_on_a_page_exists(page):
    named = paths(page.read_text(encoding="utf-8"))
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


def test_each_walk_counts_its_files():
    walks = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8").split("\n## ")[2:]
    counts = {walk.splitlines()[0]: len({name for name in paths(walk) if name.endswith(".py")}) for walk in walks}
    assert [title for title, count in counts.items() if not title.endswith(f", {count} files")] == [], counts


@every_page
def test_every_link_of_a_page_leads_to_a_file(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    written_by_the_build = {link for link in links if f"docs/{link}".startswith(site.GENERATED)}
    assert [link for link in links if link not in written_by_the_build and not (page.parent / link).exists()] == []


@every_page
def test_the_prose_of_a_page_has_no_semicolons(page):
    prose = words.paragraphs(page.read_text(encoding="utf-8"))
    assert [paragraph for paragraph in prose if ";" in paragraph] == []


def test_words_are_counted_without_code_tables_and_formulas():
    page = "# Title\n\nOne [short](a.md) sentence; two `x; y`. Another one here.\n\n| a; b |\n\n```\ncode; more\n```\n"
    reading = words.read(words.paragraphs(page))
    assert (reading.words, reading.median_sentence) == (8, 4)
    assert reading.semicolons == 1000 / 8


@pytest.mark.parametrize("page", TESTED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs_unchanged(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write runs
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 3
    assert result.failed == 0


# The full workflow runs them, with `make notebooks`.
@pytest.mark.parametrize("tutorial", sorted(path.stem for path in tutorials.FOLDER.glob("*.py")))
def test_the_page_and_the_notebook_of_a_tutorial_have_its_cells_and_outputs(tutorial):
    source = (tutorials.FOLDER / f"{tutorial}.py").read_text(encoding="utf-8")
    page = (tutorials.FOLDER / f"{tutorial}.md").read_text(encoding="utf-8")
    saved = json.loads((tutorials.FOLDER / f"{tutorial}.ipynb").read_text(encoding="utf-8"))
    cells = list(tutorials.cells(source))
    assert [cell.text for cell in cells if cell.text not in page] == []
    assert ["".join(cell["source"]) for cell in saved["cells"]] == [cell.text for cell in cells]
    assert sum(bool(cell.get("outputs")) for cell in saved["cells"]) >= 2


def test_a_tutorial_runs_cell_by_cell_and_keeps_what_is_printed():
    source = "# %% [markdown]\n# Words.\n# %%\nx = 1\n# %%\nprint(x + 1)\n"
    ran = list(tutorials.run(source))
    assert [(cell.text, printed) for cell, printed in ran] == [("Words.", ""), ("x = 1", ""), ("print(x + 1)", "2\n")]
    assert "```text\n2\n```" in tutorials.page("name", ran)
    saved = json.loads(tutorials.notebook(ran))
    assert saved["cells"][2]["outputs"][0]["text"] == ["2\n"]


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = {file for _, _, file in site.pages(config["nav"])} - set(site_reference.PAGES)  # written by the build
    staged = {name for name in site.sources() if name.endswith(".md")}
    assert listed - staged == set()
    unlisted = {name for name in staged - listed if not name.startswith(("decisions/", "results/"))}
    assert unlisted == set()


def test_links_that_leave_the_site_become_text_and_the_readme_is_the_first_page():
    page = ROOT / "docs" / "decisions" / "x.md"
    text = "[a](../theory.md#law) [b](../../examples/nanogpt.py) [c](../../README.md) [d](../../results/README.md)"
    adapted = site.adapt(text, "decisions/x.md", page, {"theory.md", "index.md", "results/README.md"})
    assert adapted == "[a](../theory.md#law) b [c](../index.md) [d](../results/README.md)"


def test_broken_and_foreign_references_of_a_built_page_are_named(tmp_path):
    (tmp_path / "a.html").write_text('<h2 id="x">x</h2><a href="https://elsewhere.org">fine</a><a href="#x">fine</a>')
    (tmp_path / "b.html").write_text('<a href="a.html#x"></a><a href="a.html#y"></a><a href="c.html"></a>')
    (tmp_path / "d.html").write_text('<script src="https://elsewhere.org/x.js"></script>')
    assert site_links.problems(tmp_path) == [
        "b.html: a.html#y leads to no heading",
        "b.html: c.html leads to no file",
        "d.html: https://elsewhere.org/x.js is fetched from another host",
    ]


def test_the_reference_has_every_command_and_every_table_of_a_run():
    commands = site_reference.commands_page()
    assert [name for name in ("plan", "report", "autopsy", "watch") if f"## gyroscope {name}\n" not in commands] == []
    tables = site_reference.run_file_page()
    assert [name for name in TABLES if f"## {name}\n" not in tables] == []
    assert all(line.replace("\\|", "").count("|") == 4 for line in tables.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_the_names_of_the_reference_have_docstrings(page):
    names = REFERENCE.findall(page.read_text(encoding="utf-8"))
    assert names
    assert [name for name in names if not (resolve(name).__doc__ or "").strip()] == []


@pytest.mark.parametrize("package", ["gyroscope", "gyroscope.optim", "gyroscope.nn", "gyroscope.theory"])
def test_every_public_function_and_class_is_in_the_reference(package):
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = {resolve(name) for name in REFERENCE.findall(pages)}
    module = import_module(package)
    public = {name: getattr(module, name) for name in module.__all__}
    missing = [name for name, value in public.items() if not isinstance(value, ModuleType) and value not in listed]
    assert missing == []


@pytest.mark.parametrize("name", sorted({name for page in REFERENCE_PAGES for name in REFERENCE.findall(page)}))
def test_a_signature_of_more_than_five_arguments_has_a_list_of_them(name):
    documented = resolve(name)
    is_error = isinstance(documented, type) and issubclass(documented, Exception)
    arguments = list(signature(documented).parameters) if callable(documented) and not is_error else []
    if len(arguments) <= 5:
        return
    text = getdoc(documented) or ""
    # `gyro.transfer` refers to `theory.transfer`, whose list is complete.
    if referred := re.search(r"other arguments are those of `([\w.]+)`", text):
        text = getdoc(resolve(referred[1])) or ""
    rendered = re.split(r"^Arg(?:ument)?s:\n", docstring_text.readable(text, set(arguments)), flags=re.MULTILINE)[-1]
    listed = re.findall(r"^ {4}\*{0,2}(\w+):", rendered, re.MULTILINE)
    # What an optimizer trains is its first argument, as in torch.
    assert [argument for argument in arguments if argument not in listed and argument not in ("params", "rule")] == []


def test_every_panel_of_a_report_is_explained_with_a_picture():
    explained = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    template = (ROOT / "gyroscope" / "render" / "assets" / "report.html").read_text(encoding="utf-8")
    # What opens by a click and what the first screen has are explained too.
    panels = [panel.split(" <")[0] for panel in re.findall(r"<h2[^>]*>(.*?)</h2>", template)]
    panels += ["The first screen", "One layer"]
    assert {"Layers", "Findings"} < set(panels)
    assert [
        panel for panel in panels if not re.search(rf"^## {re.escape(panel)}\n\n!\[", explained, re.MULTILINE)
    ] == []


def test_the_page_of_the_run_file_has_the_version_and_the_columns_of_a_file_that_the_tracker_wrote(tmp_path):
    make.run_at(tmp_path)
    page = site_reference.run_file_page()
    listed = {}
    for part in page.split("\n## ")[1:]:
        listed[part.partition("\n")[0]] = re.findall(r"^\| `(\w+)` \| ([A-Z ]+) \|", part, re.MULTILINE)
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as file:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        stored = {name: file.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
    assert f"The version of the tables is {version}," in page
    assert {table: [(name, kind.split()[0]) for name, kind in columns] for table, columns in listed.items()} == {
        table: [(name, kind) for _, name, kind, *_ in columns]
        for table, columns in stored.items()
        if not table.startswith("sqlite_")
    }


def test_the_code_that_reads_a_run_without_the_library_gives_the_series_of_the_library(tmp_path):
    run = tracked(tmp_path)
    names = {}
    exec(site_reference.READING.replace("runs/first", str(tmp_path)), names)
    names["run"].close()
    assert list(names["means"]) == run.steps.tolist()
    assert list(names["means"].values()) == run.series("0.weight", "angular_update", "mean").tolist()


def test_text_for_language_models_lists_a_page_by_its_first_sentence():
    text = (
        "# Title\n\n![picture](x.png)\n\nOne [link](a.md) here. More.\n\n::: gyroscope.plan\n    options:\n      x: 1\n"
    )
    assert site_text.first_sentence(text) == "One link here."
    assert site_text.with_docstrings(text, lambda name: f"Text of {name}.").endswith(
        "### gyroscope.plan\n\nText of gyroscope.plan.\n"
    )
    assert site_text.address("decisions/README.md") == "decisions/index.html"


def test_an_aligned_list_in_a_docstring_becomes_a_list_of_arguments():
    text = "Add.\n\na  first\nb  second,\n   in steps\n\n>>> add(1, 2)\n3"
    rewritten = "Add.\n\nArgs:\n    a: first\n    b: second, in steps\n\n```pycon\n>>> add(1, 2)\n3\n```"
    assert docstring_text.readable(text, {"a", "b"}) == rewritten
    assert docstring_text.readable("Note: this.\nAlso: that.", {"a"}) == "Note: this.\nAlso: that."
    assert docstring_text.readable("a  the only one", {"a", "b"}) == "Args:\n    a: the only one"
    assert docstring_text.readable("a: prose.", {"a", "b"}) == "a: prose."
    assert docstring_text.readable("a: this.\nb: that.", {"a", "b"}) == "Args:\n    a: this.\n    b: that."


def test_a_path_that_is_not_there_is_noticed():
    text = "`gyroscope/theory/` and `gyroscope/theory/law.py` are there, `gyroscope/track/gauge.py` is not"
    assert paths(text) == ["gyroscope/theory/", "gyroscope/theory/law.py", "gyroscope/track/gauge.py"]
    assert not list(ROOT.glob("gyroscope/track/gauge.py"))


def test_every_room_is_in_the_table_of_contributing():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = [folder.name for folder in (ROOT / "gyroscope").iterdir() if (folder / "__init__.py").exists()]
    assert [room for room in rooms if f"`{room}/`" not in table] == []


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in folder.glob("0*.md") if page.name not in listed] == []


def test_every_measured_quantity_with_a_greek_letter_is_in_the_vocabulary():
    vocabulary = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    assert [symbol for symbol in ("η_r", "η_g", "η_e", "λ_u", "λ_e", "κ", "τ", "X") if symbol not in vocabulary] == []


def resolve(dotted: str) -> object:
    """Return what a dotted name of the reference stands for."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def paths(text: str) -> list[str]:
    """What a page sets in backticks and begins like a path in this repository; globs are allowed, calls are not."""
    return [name for name in PATH.findall(text) if "(" not in name and "…" not in name]
