"""The list of experiments and one experiment's claims as a terminal shows them."""

from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gyroscope.lab.catalogue import Entry, catalogue, entry
from gyroscope.lab.claim import Claim
from gyroscope.lab.papers import PAPERS
from gyroscope.lab.record import Record, read


class ListText:
    """Every figure and table: what it claims, what it costs, and whether it has been run in `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for paper, title in PAPERS.items():
            own = [one for one in catalogue().values() if one.id.startswith(f"{paper}/")]
            table = Table(title=title, title_justify="left", title_style="bold", box=None, expand=True, pad_edge=False)
            table.add_column("id", no_wrap=True)
            table.add_column("claim", ratio=2)
            table.add_column("quick", no_wrap=True, justify="right")
            table.add_column("paper", no_wrap=True, justify="right")
            table.add_column("here", ratio=1)
            for one in own:
                table.add_row(one.id, one.claim, one.cost.get("quick", ""), one.cost.get("paper", ""), self._state(one))
            if own:
                yield table
                yield Text()
        ready = sum(one.implemented for one in catalogue().values())
        yield Text(f"{ready} of {len(catalogue())} can be run: gyroscope lab run <id> [--size quick|paper]")

    def _state(self, one: Entry) -> Text:
        if not one.implemented:
            return Text(one.note, style="dim")
        found = read(self.out, one.id)
        if found is None:
            return Text("not run")
        good = all(claim.holds for claim in found.claims)
        return Text(f"{found.verdict} ({found.data['size']})", style="green" if good else "red")


class ClaimsText:
    """The claims of an experiment, each with prediction, measurement and verdict."""

    def __init__(self, claims: list[Claim]) -> None:
        self.claims = claims

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, expand=True, pad_edge=False)
        table.add_column("claim", ratio=3)
        table.add_column("predicted", justify="right", no_wrap=True)
        table.add_column("measured", justify="right", ratio=1, min_width=13)
        table.add_column("tolerance", no_wrap=True)
        table.add_column("holds", no_wrap=True)
        for claim in self.claims:
            verdict = Text("yes", style="green") if claim.holds else Text("NO", style="bold red")
            table.add_row(claim.sentence, f"{claim.predicted:.4g}", str(claim.measured), claim.tolerance, verdict)
        yield table


class RecordText:
    """One experiment: what it claims, what was found here, and how; or how to run it."""

    def __init__(self, one: Entry, record: Record | None, figure: Path | None) -> None:
        self.entry, self.record, self.figure = one, record, figure

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.entry.id}: {self.entry.claim}", style="bold")
        if self.entry.about:
            yield Text(" ".join(self.entry.about.split()))
        if self.record is None:
            yield Text(self._how())
            return
        yield ClaimsText(self.record.claims)
        data = self.record.data
        commit = str(data["commit"] or "no commit")[:10] + (" with changes" if data["changed"] else "")
        yield Text(
            f"{data['size']} size, n = {data['n']}, {data['seconds']:g} s, {data['date'][:10]}, "
            f"torch {data['versions']['torch']}, {commit}" + (f", figure {self.figure}" if self.figure else ""),
            style="dim",
        )

    def _how(self) -> str:
        if not self.entry.implemented:
            return f"Cannot be run: {self.entry.note}."
        cost = ", ".join(f"{size} {time}" for size, time in self.entry.cost.items())
        return f"Not run here. gyroscope lab run {self.entry.id}   ({cost})"


def record_text(name: str, out: Path) -> RecordText:
    """What there is to say about an experiment; ValueError with the nearest ids where there is none."""
    figures = (out / f"{name}{suffix}" for suffix in (".svg", ".html"))
    return RecordText(entry(name), read(out, name), next((path for path in figures if path.exists()), None))
