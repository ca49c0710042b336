"""Every figure, table and theorem of the papers, with and without an experiment.

Files are parsed and not imported, so that a listing does not need torch and takes less than a second.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, final, get_args

from gyroscope.spelling import did_you_mean
from gyroscope_lab.framework.papers import DRAWINGS, IN_PART, PAPERS, SETTINGS, TO_DO

LAB = Path(__file__).parents[1]
Size = Literal["quick", "medium", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)


@final
@dataclass(frozen=True)
class CatalogueEntry:
    """A line of the list: the claim and the cost at each size, or a note if nothing can be run."""

    id: str
    claim: str
    note: str = ""
    cost: dict[str, str] = field(default_factory=dict)
    covers: tuple[str, ...] = ()
    details: str = ""
    """The docstring of the experiment without its first line."""
    module: str = ""
    """Where the experiment is imported from."""
    path: Path | None = None
    """Its file, if it is outside the lab."""

    @property
    def implemented(self) -> bool:
        """Whether there is an experiment to run."""
        return bool(self.cost)


def catalogue(source: Path | None = None) -> dict[str, CatalogueEntry]:
    """Return the entries of the papers by id, or those of a folder outside the lab, with ids `<folder>/<name>`."""
    return _papers() if source is None else {entry.id: entry for entry in _outside(source)}


@cache
def _papers() -> dict[str, CatalogueEntry]:
    """Return all entries by id, paper by paper, numbers in their order."""
    entries = [CatalogueEntry(name, claim, "a drawing") for name, claim in DRAWINGS.items()]
    entries += [CatalogueEntry(name, claim, "a list of settings") for name, claim in SETTINGS.items()]
    entries += [CatalogueEntry(name, claim, f"not implemented, data: {data}") for name, (claim, data) in TO_DO.items()]
    implemented = list(_implemented())
    for entry in implemented:
        entries += [CatalogueEntry(id, f"see {entry.id}: {entry.claim}", f"part of {entry.id}") for id in entry.covers]
    by_id = {entry.id: entry for entry in (*entries, *implemented)}
    return {name: by_id[name] for name in sorted(by_id, key=order)}


def coverage(paper: str) -> tuple[int, int, int]:
    """Return how many figures and tables of a paper are repeated whole, in part and not at all.

    Drawings and lists of settings have no claim to measure. Theorems are neither figures nor tables.

    >>> coverage("sp")
    (4, 2, 0)
    """
    wanted = [
        name
        for name in catalogue()
        if name.startswith((f"{paper}/fig", f"{paper}/table")) and name not in DRAWINGS | SETTINGS
    ]
    in_part = sum(name in IN_PART for name in wanted)
    missing = sum(name in TO_DO for name in wanted)
    return len(wanted) - in_part - missing, in_part, missing


def coverage_text(whole: int, in_part: int, missing: int) -> str:
    """Return counts of figures and tables in words.

    >>> coverage_text(33, 12, 1)
    '33 figures and tables whole, 12 in part, 1 missing'
    """
    parts = [f"{whole} figures and tables whole", f"{in_part} in part", f"{missing} missing"]
    return ", ".join(part for part in parts if not part.startswith("0 "))


def paper_heading(paper: str) -> str:
    """Return a paper's title, with its coverage if it has figures or tables."""
    counts = coverage(paper)
    return f"{PAPERS[paper]}: {coverage_text(*counts)}" if any(counts) else PAPERS[paper]


def headings(source: Path | None = None) -> dict[str, str]:
    """Return the headings of a list of experiments by the beginning of ids: the papers, or one folder."""
    if source is None:
        return {paper: paper_heading(paper) for paper in PAPERS}
    return {source.resolve().name: f"Experiments of {source}"}


def entry_of(
    name: str, source: Path | None = None, entries: Mapping[str, CatalogueEntry] | None = None
) -> CatalogueEntry:
    """Return the entry of this id, or raise a ValueError that quotes the id and names the nearest ones."""
    entries = catalogue(source) if entries is None else entries
    if name in entries:
        return entries[name]
    near = did_you_mean(name.lower().replace("_", "/", 1), entries, limit=3, cutoff=0.4, listed=3)
    place = "" if source is None else f" --from {source}"
    raise ValueError(f"there is no experiment {name!r}: {near} (`gyroscope lab list{place}` shows all)")


def implemented_entry(name: str, source: Path | None = None) -> CatalogueEntry:
    """Return the entry of this id, or raise a ValueError if it has no experiment to run."""
    entry = entry_of(name, source)
    if not entry.implemented:
        raise ValueError(f"{name!r} cannot be run: {entry.note}. `gyroscope lab list` shows what can")
    return entry


def select(names: list[str], source: Path | None = None, size: Size | None = "quick") -> list[CatalogueEntry]:
    """Return the entries of ids, of papers or folders (all their experiments), or of "all".

    A name of several experiments selects those that have this size. None selects any size.

    >>> select(["smd/theorem3"])[0].module
    'gyroscope_lab.smd.theorem3'
    """
    selected: dict[str, CatalogueEntry] = {}
    for name in names:
        if name == "all" or name in headings(source):
            prefix = "" if name == "all" else f"{name}/"
            known = catalogue(source).values()
            sized = [entry for entry in known if (size in entry.cost if size else entry.implemented)]
            entries = [entry for entry in sized if entry.id.startswith(prefix)]
        else:
            entries = [implemented_entry(name, source)]
        selected |= {entry.id: entry for entry in entries}  # named twice, run once
    return list(selected.values())


def order(name: str) -> tuple[int, int, str, int]:
    """Return a sort key: papers in their order, then figures, tables and the rest, with fig2 before fig10."""
    paper, figure = name.split("/")
    letters = figure.rstrip("0123456789")
    kind = {"fig": 0, "table": 1}.get(letters, 2)
    return [*PAPERS, paper].index(paper), kind, letters, int(figure[len(letters) :] or 0)


def _implemented() -> Iterator[CatalogueEntry]:
    for paper in PAPERS:
        for path in sorted((LAB / paper).glob("*.py")):
            if not path.name.startswith("_"):
                yield from _parse(paper, path)


def _outside(folder: Path) -> Iterator[CatalogueEntry]:
    """Yield the experiments of a folder outside the lab."""
    paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not paths:
        raise ValueError(
            f"{str(folder)!r} has no experiments: give a folder with Python files, see docs/own-experiment.md"
        )
    for path in paths:
        for entry in _parse(folder.resolve().name, path):
            yield replace(entry, module=path.stem, path=path.resolve())


def _parse(paper: str, path: Path) -> Iterator[CatalogueEntry]:
    """Yield the entries of a file from its docstring, COST, COVERS, and CLAIMS if it has several experiments."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {str(path)!r} as Python: {error}") from None
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("CLAIMS", "COST", "COVERS")
    }
    claim, _, details = (ast.get_docstring(tree) or "").partition("\n")
    if not claim or "COST" not in constants:
        raise ValueError(f"{path} is not an experiment: give it a docstring and COST, or a name that begins with _")
    claims = constants.get("CLAIMS", {path.stem: claim})
    costs = constants["COST"] if "CLAIMS" in constants else {path.stem: constants["COST"]}
    for name, sentence in claims.items():
        yield CatalogueEntry(
            f"{paper}/{name}",
            sentence,
            cost=costs[name],
            covers=constants.get("COVERS", ()),
            details=details.strip(),
            module=f"gyroscope_lab.{paper}.{path.stem}",
        )
