"""Every figure, table and theorem of the papers: those with an experiment, read from its file, and all others.

Files are parsed, not imported: a listing needs neither torch nor a second.
"""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gyroscope.lab.papers import NOT_IMPLEMENTED, PAPERS

LAB = Path(__file__).parent


@dataclass(frozen=True)
class CatalogueEntry:
    """A line of the list: an id, what is claimed, what it costs at each size, and a note where nothing can be run.

    `details` is what an experiment's docstring says beyond its first line.
    """

    id: str
    claim: str
    cost: dict[str, str]
    covers: tuple[str, ...] = ()
    note: str = ""
    details: str = ""

    @property
    def implemented(self) -> bool:
        """Whether there is an experiment to run."""
        return bool(self.cost)

    @property
    def module(self) -> str:
        """Where the experiment is imported from."""
        return "gyroscope.lab." + self.id.replace("/", ".")


@cache
def catalogue() -> dict[str, CatalogueEntry]:
    """All entries by id, paper by paper, numbers in their order."""
    implemented = {entry.id: entry for entry in _implemented()}
    covered = {
        also: CatalogueEntry(also, f"see {entry.id}: {entry.claim}", {}, note=f"part of {entry.id}")
        for entry in implemented.values()
        for also in entry.covers
    }
    others = {name: CatalogueEntry(name, claim, {}, note=note) for name, (claim, note) in NOT_IMPLEMENTED.items()}
    entries = others | covered | implemented
    return {name: entries[name] for name in sorted(entries, key=_order)}


def entry_of(name: str) -> CatalogueEntry:
    """The entry of this id; ValueError that quotes it and names the nearest where there is none."""
    entries = catalogue()
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name.lower().replace("_", "/", 1), entries, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`gyroscope lab list` shows all"
    raise ValueError(f"there is no experiment {name!r}; {hint}")


def implemented_entry(name: str) -> CatalogueEntry:
    """The entry of this id; ValueError also where it has no experiment to run."""
    entry = entry_of(name)
    if not entry.implemented:
        raise ValueError(f"{name!r} cannot be run: {entry.note}; `gyroscope lab list` shows what can")
    return entry


def select(names: list[str]) -> list[CatalogueEntry]:
    """The entries meant by ids, by names of papers (all experiments of one) and by "all".

    >>> select(["smd/fig4"])[0].module
    'gyroscope.lab.smd.fig4'
    """
    selected: dict[str, CatalogueEntry] = {}
    for name in names:
        if name == "all" or name in PAPERS:
            prefix = "" if name == "all" else f"{name}/"
            entries = [entry for entry in catalogue().values() if entry.implemented and entry.id.startswith(prefix)]
        else:
            entries = [implemented_entry(name)]
        selected |= {entry.id: entry for entry in entries}  # named twice, run once
    return list(selected.values())


def _order(name: str) -> tuple[int, int, str, int]:
    """Papers in their order; figures, tables, and then the rest; fig2 before fig10."""
    paper, figure = name.split("/")
    letters = figure.rstrip("0123456789")
    kind = {"fig": 0, "table": 1}.get(letters, 2)
    return list(PAPERS).index(paper), kind, letters, int(figure[len(letters) :] or 0)


def _implemented() -> Iterator[CatalogueEntry]:
    for paper in PAPERS:
        for path in sorted((LAB / paper).glob("*.py")):
            if not path.name.startswith("_"):
                yield _parse(f"{paper}/{path.stem}", path)


def _parse(name: str, path: Path) -> CatalogueEntry:
    """An entry from the text of its file: the docstring, COST and COVERS."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    claim, _, details = (ast.get_docstring(tree) or "").partition("\n")
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("COST", "COVERS")
    }
    if not claim or "COST" not in constants:
        raise ValueError(f"{path} is no experiment: give it a docstring and COST, or a name that begins with _")
    return CatalogueEntry(name, claim, constants["COST"], constants.get("COVERS", ()), details=details.strip())
