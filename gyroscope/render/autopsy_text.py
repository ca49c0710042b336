"""An autopsy in a terminal: the findings and the table of layers."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gyroscope.render.terminal import filled, findings_text, layer_table, table
from gyroscope.report.autopsy_data import DRIFT_HEADER, HEADER, LEGEND, AutopsyData, drift_row, layer_row

# Columns of the table of layers.
COLUMNS = 9


class AutopsyText:
    """An autopsy for people: settings, findings, layers and, of two files, how far they moved."""

    def __init__(self, autopsy: AutopsyData, explain: bool = False) -> None:
        self.autopsy = autopsy
        self.explain = explain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        autopsy = self.autopsy
        yield Text(autopsy.title, style="bold")
        for setting in autopsy.settings:
            yield Text(setting, style="dim")
        yield Text("")
        yield from findings_text(autopsy.findings, options.max_width, self.explain)
        yield Text("")
        # A terminal has room for all but the last two, which the page shows.
        yield layer_table(HEADER[:COLUMNS], [layer_row(layer)[:COLUMNS] for layer in autopsy.layers])
        yield Text(filled(LEGEND, options.max_width), style="dim")
        if autopsy.drifts:
            yield Text("")
            yield table(DRIFT_HEADER, [drift_row(drift) for drift in autopsy.drifts])
