"""An autopsy in a terminal: what it means, the findings and the table of layers."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gyroscope.render.terminal import family_table, filled, findings_text, summary_text
from gyroscope.report.autopsy_data import LEGEND, AutopsyData


class AutopsyText:
    """An autopsy for people: settings, findings, layers and, of two files, how far they moved."""

    def __init__(self, autopsy: AutopsyData, explain: bool = False) -> None:
        self.autopsy = autopsy
        self.explain = explain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        autopsy = self.autopsy
        width = options.max_width
        yield from summary_text(autopsy.findings.summary, width)
        yield Text(autopsy.title, style="bold")
        for setting in autopsy.settings:
            yield Text(setting, style="dim")
        yield Text("")
        yield from findings_text(autopsy.findings, width, self.explain)
        yield Text("")
        yield family_table(autopsy.table, width)
        yield Text(filled(LEGEND, width), style="dim")
        if autopsy.drifts:
            yield Text("")
            yield family_table(autopsy.drift_table, width)
