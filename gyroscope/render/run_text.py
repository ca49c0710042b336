"""A report in a terminal: the table of runs, what the findings mean, and the table of layers or of groups."""

from collections.abc import Iterator, Mapping
from math import isfinite

from rich.console import RenderableType
from rich.text import Text

from gyroscope.render.rendered import TerminalText
from gyroscope.render.terminal import family_table, filled, finding_lines, summary_text, table
from gyroscope.report.group_table import GroupTable
from gyroscope.report.layer_table import known
from gyroscope.report.run_data import Report, RunData

NO_FORECAST = "* over equilibrium, because the run has no forecast."


def report_text(report: Report) -> TerminalText:
    """Return runs for a terminal. The run with the lowest loss comes first."""

    def lines(width: int) -> Iterator[RenderableType]:
        runs = report.runs
        # The summary of a single run comes first. With several runs, each summary follows the name of its run.
        if len(runs) == 1:
            yield from summary_text(runs[0].summary, width)
        else:
            yield from table(report.table.header, report.table.rows, width, [0])
            yield Text(filled(report.left_out, width) + "\n" if report.left_out else "")
        for number, run in enumerate(runs):
            if number:
                yield Text("")
            yield from _run(run, width, is_compared=len(runs) > 1)

    return TerminalText(lines)


def _run(run: RunData, width: int, is_compared: bool) -> Iterator[RenderableType]:
    last = f" up to step {int(run.steps[-1]):,}" if len(run.steps) else ""
    thin = f", every {run.stride}th of them read" if run.stride > 1 else ""
    yield Text.assemble((run.name, "bold"), f": {run.status}, {run.total:,} samples{last}{thin}")
    if is_compared:
        yield from summary_text(run.summary, width)
    yield Text(filled(str(run.head), width, hang=2))
    for rule in dict.fromkeys(group["rule"] for group in run.groups if group["layers"]):
        yield Text(rule, style="dim")
    if run.scalars:
        values = (
            f"{name} {known(series['last']) if isfinite(series['last']) else series['last']}"
            for name, series in run.scalars.items()
        )
        yield Text(filled(f"last logged: {', '.join(values)}", width, hang=2))
    yield Text("")
    said = " ".join(run.summary)
    for finding in (each for each in run.findings if each["sentence"] not in said):
        yield from finding_lines(finding["severity"], finding["sentence"], finding["remedy"], width)
    yield from (Text(filled("• " + note, width), style="dim") for note in run.notes)
    yield Text("")
    yield from family_table(run.table, width)
    if any(layer.summary["reference"] != "forecast" for layer in run.layers):
        yield Text(filled(NO_FORECAST, width), style="dim")


def groups_text(tables: Mapping[str, GroupTable]) -> TerminalText:
    """Return the table of groups of each run, by name of the run."""

    def lines(width: int) -> Iterator[RenderableType]:
        for name, groups in tables.items():
            yield Text(name, style="bold")
            yield from table(groups.header, groups.rows, width, [0])
            if groups.note:
                yield Text(filled(groups.note, width), style="dim")

    return TerminalText(lines)
