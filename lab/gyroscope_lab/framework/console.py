"""The output of `gyroscope lab`: the list of experiments, the claims of one, and the progress of a run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gyroscope_lab.framework.catalogue import (
    SIZES,
    CatalogueEntry,
    Size,
    coverage,
    coverage_text,
    entry_of,
    headings,
    select,
)
from gyroscope_lab.framework.claims import ClaimOutcome, count_outcomes
from gyroscope_lab.framework.papers import IN_PART, PAPERS
from gyroscope_lab.framework.results import ExperimentRecord, figure_path, with_records

# "undecided" is neither a failure nor a success.
STYLES = {ClaimOutcome.HOLDS: "green", ClaimOutcome.DOES_NOT_HOLD: "bold red", ClaimOutcome.UNDECIDED: "yellow"}


def run_experiments(
    names: list[str],
    size: Size,
    seeds: int | None,
    out: Path,
    show: Callable[[Any], None],
    source: Path | None = None,
    first_seed: int = 0,
) -> None:
    """Run the experiments that `names` selects one after the other, and show the claims of each.

    If a name selects several experiments, such as `all`, those that this code has already finished are left out.
    """
    entries = select(names, source, size)
    # Imported only now, because torch takes a second and an error in an id is reported without it.
    from gyroscope_lab.framework.runner import check_first_seed, config_of, is_finished, run

    check_first_seed(first_seed)
    # All are checked first, so that the settings of the last cannot fail after hours of the first.
    configs = {entry.id: config_of(entry.id, size, seeds, source) for entry in entries}
    if without := [entry.id for entry in select(names, source, size=None) if entry not in entries]:
        show(Text(f"{len(without)} experiments have no {size} size and are left out: {', '.join(without)}."))
    for number, entry in enumerate(entries, 1):
        if entry.id not in names and is_finished(entry.id, size, configs[entry.id], out, first_seed):
            show(Text(f"{entry.id}: already finished by this code."))
            continue
        with progress_bar(entry.id if len(entries) == 1 else f"{entry.id} ({number} of {len(entries)})") as report:
            run(entry.id, size, seeds, out, report, source, first_seed)
        show(experiment_text(entry.id, out, source))


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """Show a bar with the time left on a terminal, and after Ctrl-C a line about finished trials."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=1.0)
        try:
            yield lambda share: bar.update(task, completed=share)
        except KeyboardInterrupt:
            bar.stop()
            console.print(f"{label}: stopped. Finished trials are kept, and the same command goes on from there.")
            raise


def catalogue_text(out: Path, source: Path | None = None) -> Group:
    """Return every experiment of the papers or of a folder, with its claim, its cost and its outcome in `out`."""
    entries = with_records(out, source).values()
    parts: list[Table | Text] = []
    sizes = [size for size in SIZES if any(size in entry.cost for entry in entries)]
    for prefix, heading in headings(source).items():
        table = Table(title=heading, title_justify="left", title_style="bold", box=None, expand=True, pad_edge=False)
        table.add_column("id", no_wrap=True)
        table.add_column("claim", ratio=2)
        for size in sizes:
            table.add_column(size, no_wrap=True, justify="right")
        table.add_column("here", ratio=1)
        for entry in entries:
            if entry.id.startswith(f"{prefix}/"):
                costs = (entry.cost.get(size, "") for size in sizes)
                table.add_row(entry.id, entry.claim, *costs, _state(entry, out))
        parts += [table, Text()]
    if source is not None:
        parts.append(Text(f"{len(entries)} experiments: gyroscope lab run <id> --from {source}"))
        return Group(*parts)
    counts = map(sum, zip(*map(coverage, PAPERS), strict=True))
    ready = sum(entry.implemented for entry in entries)
    parts.append(Text(f"{coverage_text(*counts)} (drawings and lists of settings do not count)."))
    parts.append(Text(f"{ready} experiments, including theorems: gyroscope lab run <id> [--size {'|'.join(SIZES)}]"))
    return Group(*parts)


def _state(entry: CatalogueEntry, out: Path) -> Text:
    if not entry.implemented:
        return Text(entry.note, style="dim")
    record = ExperimentRecord.read(out, entry.id)
    if record is None:
        return Text("not run")
    worst = max((claim.outcome for claim in record.claims), key=list(ClaimOutcome).index, default=ClaimOutcome.HOLDS)
    part = f", {IN_PART[entry.id]}" if entry.id in IN_PART else ""
    return Text(f"{count_outcomes(record.claims)} ({record.data['size']}){part}", style=STYLES[worst])


def experiment_text(name: str, out: Path, source: Path | None = None) -> Group:
    """Return one experiment: its claims with prediction, measurement and outcome, or how to run it.

    Raise a ValueError with the nearest ids if there is no experiment of this name.
    """
    entry = entry_of(name, source, with_records(out, source))
    parts: list[Table | Text] = [Text(f"{entry.id}: {entry.claim}", style="bold")]
    if entry.details:
        parts.append(Text(" ".join(entry.details.split())))
    record = ExperimentRecord.read(out, name)
    if not entry.implemented:
        parts.append(Text(f"Cannot be run: {entry.note}."))
    elif record is None:
        cost = ", ".join(f"{size} {time}" for size, time in entry.cost.items())
        parts.append(Text(f"Not run here. gyroscope lab run {entry.id}   ({cost})"))
    if record is not None:
        figure = figure_path(out, name)
        where = f", figure {figure}" if figure else ""
        parts += [_claims_table(record), Text(_origin(record) + where, style="dim")]
    return Group(*parts)


def _claims_table(record: ExperimentRecord) -> Table:
    table = Table(box=None, expand=True, pad_edge=False)
    table.add_column("claim", ratio=3)
    table.add_column("predicted", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", ratio=1, min_width=13)
    table.add_column("tolerance", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for claim in record.claims:
        outcome = Text(claim.outcome, style=STYLES[claim.outcome])
        table.add_row(claim.sentence, f"{claim.predicted:.4g}", str(claim.measured), claim.tolerance, outcome)
    return table


def _origin(record: ExperimentRecord) -> str:
    data = record.data
    run = f"{data['size']} size, n = {data['n']}, {data['seconds']:g} s, {data['date'][:10]}"
    return f"{run}, torch {data['versions']['torch']}, {record.commit}"
