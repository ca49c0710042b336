"""Every figure, table and theorem of the papers: those that are implemented, read from their files, and those to come.

Reading is by parsing, not importing: a listing needs neither torch nor a second.
"""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gyroscope.lab.papers import ELSEWHERE, PAPERS

ROOM = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """One line of the list: an id, what is claimed, what it costs at each size, and a note where nothing can be run.

    `about` is what an experiment's docstring says beyond its first line.
    """

    id: str
    claim: str
    cost: dict[str, str]
    covers: tuple[str, ...] = ()
    note: str = ""
    about: str = ""

    @property
    def implemented(self) -> bool:
        """Whether there is something to run."""
        return bool(self.cost)

    @property
    def module(self) -> str:
        """Where the experiment is imported from."""
        return "gyroscope.lab." + self.id.replace("/", ".")


@cache
def catalogue() -> dict[str, Entry]:
    """All entries by id, paper by paper, numbers in their order."""
    here = {one.id: one for one in _implemented()}
    covered = {
        also: Entry(also, f"see {one.id}: {one.claim}", {}, note=f"part of {one.id}")
        for one in here.values()
        for also in one.covers
    }
    elsewhere = {name: Entry(name, claim, {}, note=note) for name, (claim, note) in ELSEWHERE.items()}
    entries = elsewhere | covered | here
    return {name: entries[name] for name in sorted(entries, key=_order)}


def entry(name: str) -> Entry:
    """The entry of this id; ValueError that quotes it and names the nearest where there is none."""
    entries = catalogue()
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name.lower().replace("_", "/", 1), entries, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`gyroscope lab list` shows all"
    raise ValueError(f"there is no experiment {name!r}; {hint}")


def chosen(names: list[str]) -> list[Entry]:
    """The entries meant by ids, by names of papers (all that can be run of one) and by "all".

    >>> chosen(["smd/fig4"])[0].module
    'gyroscope.lab.smd.fig4'
    """
    found: dict[str, Entry] = {}
    for name in names:
        if name == "all" or name in PAPERS:
            found |= {one.id: one for one in catalogue().values() if one.implemented and _within(one.id, name)}
        else:
            one = entry(name)
            if not one.implemented:
                raise ValueError(f"{name!r} cannot be run: {one.note}; `gyroscope lab list` shows what can")
            found[name] = one
    return list(found.values())


def _within(name: str, paper: str) -> bool:
    return paper == "all" or name.startswith(f"{paper}/")


def _order(name: str) -> tuple[int, int, str, int]:
    """Papers in their order; figures, tables, and then the rest; fig2 before fig10."""
    paper, figure = name.split("/")
    letters = figure.rstrip("0123456789")
    kind = {"fig": 0, "table": 1}.get(letters, 2)
    return list(PAPERS).index(paper), kind, letters, int(figure[len(letters) :] or 0)


def _implemented() -> Iterator[Entry]:
    for paper in PAPERS:
        for path in sorted((ROOM / paper).glob("*.py")):
            if not path.name.startswith("_"):
                yield _read(f"{paper}/{path.stem}", path)


def _read(name: str, path: Path) -> Entry:
    """An entry from the text of its file: the first line of the docstring, COST and COVERS."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    claim, _, about = (ast.get_docstring(tree) or "").partition("\n")
    constants: dict[str, Any] = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("COST", "COVERS")
    }
    if not claim or "COST" not in constants:
        raise ValueError(f"{path} is no experiment: give it a docstring and COST, or a name that begins with _")
    return Entry(name, claim, constants["COST"], tuple(constants.get("COVERS", ())), about=about.strip())
