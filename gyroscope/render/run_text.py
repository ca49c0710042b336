"""A report in a terminal: what it means, the findings and the table of layers."""

from collections.abc import Iterator
from math import isfinite, nan

from rich.console import RenderableType
from rich.text import Text

from gyroscope.render.rendered import TerminalText
from gyroscope.render.terminal import family_table, filled, finding_lines, summary_text
from gyroscope.report.layer_table import UNKNOWN, Column, known, layer_table
from gyroscope.report.run_data import LayerData, Report, RunData

FORECAST = "* over the forecast from the start, because the run is shorter than one memory."


def _column(title: str, name: str, is_ratio: bool = False) -> Column:
    def text(layer: LayerData, digits: int) -> str:
        if isfinite(layer.summary[name]):
            return known(layer.summary[name], digits) + "*" * (is_ratio and layer.summary["reference"] == "forecast")
        # A layer that was not measured and a layer whose numbers are not finite must not look the same.
        return "not finite" if layer.summary["diverged"] and not is_ratio else UNKNOWN

    return Column(title, lambda layer: layer.summary[name], text)


COLUMNS = (
    _column("rotation,\nrad", "rotation"),
    _column("÷ pre-\ndicted", "rotation_ratio", is_ratio=True),
    _column("norm", "norm"),
    _column("÷ pre-\ndicted", "norm_ratio", is_ratio=True),
    Column("λₑ/λ", lambda layer: layer.summary["decay_ratio"]),
    Column("spread\n÷ noise", lambda layer: layer.summary["imbalance"]),
    Column("settled\nat step", lambda layer: layer.summary["settled_at"], is_step=True),
    Column("state", lambda _: nan, lambda layer, _: layer.summary["state"]),
)


def _distance(layer: LayerData) -> float:
    ratio = layer.summary["rotation_ratio"]
    return max(ratio, 1 / ratio) if ratio > 0 else nan


def report_text(report: Report) -> TerminalText:
    """Return runs for a terminal. The run with the fewest findings comes first."""

    def lines(width: int) -> Iterator[RenderableType]:
        runs = report.runs
        # The summary of a single run comes first. With several runs, each summary follows the name of its run.
        yield from summary_text(report.summary if len(runs) > 1 else runs[0].summary, width)
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
    for finding in run.findings:
        yield from finding_lines(finding["severity"], finding["sentence"], finding["remedy"], width)
    yield from (Text(filled("• " + note, width), style="dim") for note in run.notes)
    yield Text("")
    shapes = {layer.name: layer.shape for layer in run.layers}
    yield from family_table(layer_table(run.layers, COLUMNS, _distance, shapes), width)
    if any(layer.summary["reference"] == "forecast" for layer in run.layers):
        yield Text(filled(FORECAST, width), style="dim")
