"""The pages of results: README.md with one row per figure of the papers, and one page per record."""

from collections.abc import Mapping
from pathlib import Path

from gyroscope_lab.framework.catalogue import CatalogueEntry, headings
from gyroscope_lab.framework.claims import Claim, ClaimOutcome, ConfidenceInterval
from gyroscope_lab.framework.evidence import HEADLINES, MISSING, ROWS, EvidenceRow, fits
from gyroscope_lab.framework.not_held import reason_of
from gyroscope_lab.framework.papers import PAPERS
from gyroscope_lab.framework.results import ExperimentRecord, figure_path, with_records

HEAD = """# What was seen of the papers

● as in the paper · ◐ in part · ○ not seen at this size · ✗ contradicts · ? not judged yet

Networks are small here, so ○ and ✗ speak of this size. Numbers are means with 95 % intervals over seeds. Each figure
links to all its claims, its picture and the command that repeats it. [Our own trials](ours.md) have their own page.
"""
METHOD = """## How to read the numbers

Every number comes from weights. A claim holds if its whole interval lies within the tolerance, and does not hold if the
whole interval lies outside. Otherwise it is undecided, and needs more seeds. If the best of several settings is judged,
seeds that are not judged choose it. Records without such seeds judge each seed with the choice of all others. Some
experiments got more seeds or longer runs because a first run left claims undecided, and the intervals do not allow for
that second look. Records that were made with `--first-seed` have seeds that no earlier run had. Why a claim does not
hold is our reading: "probably" marks what was not tested. `gyroscope lab run` writes these pages from the records.
"""
HEADER = "| figure | the paper says | here | numbers that decide | what differs |\n|---|---|---|---|---|"


def write_pages(out: Path, source: Path | None = None) -> None:
    """Write the pages of a folder of records: of the papers, or of the experiments of a folder `source`."""
    from gyroscope.tools import write_text  # with NumPy, which a list of experiments does without

    entries = with_records(out, source)
    records = {name: record for name in entries if (record := ExperimentRecord.read(out, name)) is not None}
    for name, record in records.items():
        write_text(out / f"{name}.md", record_page(record, entries[name], out))
    page = evidence_page(records) if source is None else list_page(records, source)
    write_text(out / "README.md", page)


def evidence_page(records: Mapping[str, ExperimentRecord]) -> str:
    """Return the page with a row for each figure, table and theorem of the papers."""
    lines = [HEAD, "| ten statements that readers quote | here | in short |\n|---|---|---|"]
    for headline in HEADLINES:
        links = ", ".join(f"[{name}]({name}.md)" for name in headline.records)
        own = [row for rows in ROWS.values() for row in rows if row.record in headline.records]
        known = all(row.record in records and fits(row, records[row.record].claims) for row in own)
        verdict = headline.verdict if known else "?"
        lines.append(f"| {_cell(headline.statement)} | {verdict} | {headline.answer} ({links}) |")
    for paper, rows in ROWS.items():
        lines.append(f"\n## {PAPERS[paper]}\n\n{HEADER}")
        lines += [_row(row, records.get(row.record)) for row in rows]
    lines += ["\n## What is missing\n", *(f"- {sentence}" for sentence in MISSING), f"\n{METHOD}"]
    return "\n".join(lines)


def _row(row: EvidenceRow, record: ExperimentRecord | None) -> str:
    if record is None:
        return f"| {row.figure} | {row.claim} | ? | not run: `gyroscope lab run {row.record}` | {row.differs} |"
    measured = {claim.sentence: _short(claim.measured) for claim in record.claims}
    numbers = ", ".join(number.text.format(measured.get(number.sentence, "not measured")) for number in row.numbers)
    verdict = row.verdict if fits(row, record.claims) else "?"
    size = "" if record.data["size"] != "quick" else ", quick"
    cells = (f"[{row.figure}]({row.record}.md){size}", row.claim, verdict, numbers, row.differs)
    return f"| {' | '.join(map(_cell, cells))} |"


def list_page(records: Mapping[str, ExperimentRecord], source: Path) -> str:
    """Return the page that lists the experiments of a folder, with the outcomes of their claims."""
    (heading,) = headings(source).values()
    lines = [f"# {heading}\n"]
    for name, record in records.items():
        lines.append(f"- [{name}]({name}.md): {record.data['claim']}")
        lines += [f"  - {claim.sentence}: {claim.measured}, {_marked(claim)}" for claim in record.claims]
    return "\n".join([*lines, f"\n{METHOD}"])


def record_page(record: ExperimentRecord, entry: CatalogueEntry, out: Path) -> str:
    """Return one experiment: its claims as a table, its figure, and the command that repeats it."""
    data = record.data
    lines = [f"# {record.id}\n\n{data['claim']}\n"]
    if entry.details:
        lines.append(f"{entry.details}\n")
    lines += ["| claim | predicted | measured | tolerance | outcome |", "|---|---|---|---|---|"]
    for claim in record.claims:
        sentence = claim.sentence.replace("|", "\\|")
        lines.append(
            f"| {sentence} | {claim.predicted:.4g} | {claim.measured} | {claim.tolerance} | {_marked(claim)} |"
        )
    reasons = [reason_of(record.id, claim) for claim in record.claims if claim.outcome == ClaimOutcome.DOES_NOT_HOLD]
    if any(reasons):
        lines.append("\nWhy claims do not hold:\n")
        lines += [f"- {reason}" for reason in dict.fromkeys(filter(None, reasons))]
    figure = figure_path(out, record.id)
    shown = figure is not None and figure.suffix == ".svg"
    lines.append(f"\n![{record.id}]({Path(record.id).name}.svg)\n" if shown else "")
    changes = f" --first-seed {data['seeds'][0]}" if data["seeds"][0] else ""
    command = f"`gyroscope lab run {record.id} --size {data['size']} --seeds {data['n']}{changes}`"
    lines.append(
        f"{command if entry.implemented else 'Removed'} · n = {data['n']} · {data['seconds']:g} s · "
        f"{data['date'][:10]} · torch {data['versions']['torch']} · {record.commit}\n"
    )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _short(interval: ConfidenceInterval) -> str:
    """Return a mean with its interval in three digits, or the mean alone if there is no interval to see."""
    mean, low, high = (f"{value:.3g}" for value in (interval.mean, interval.low, interval.high))
    return mean if low == high else f"{mean} [{low}, {high}]"


def _marked(claim: Claim) -> str:
    return str(claim.outcome) if claim.holds else f"**{claim.outcome}**"
