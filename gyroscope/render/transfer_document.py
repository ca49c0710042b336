"""A transfer in a terminal and as a page: the answer, two strips of rules, the axes and the table."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from html import escape
from math import floor, isfinite, log10
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gyroscope.render import theme
from gyroscope.render.html import STRIPS_STYLE, dot_figure, html_table, page_head, pictures
from gyroscope.render.rendered import Document
from gyroscope.render.terminal import filled, table
from gyroscope.report.transfer_data import SILENT, TransferCheck, TransferData
from gyroscope.report.transfer_sentences import agreement, answer, camps, checked, other_groups, row_sentences, trust
from gyroscope.theory.scaling import TransferRow

# Strips from left to right: the quantity of a row, the title of its axis and the factor of its unit.
STRIPS = {"rotation": ("rotation, mrad per step", 1e3), "run_length": ("run length, memories", 1.0)}
# Decades of an axis above which ticks at 2 and 5 would be crowded.
MANY_DECADES = 3
STYLE = f"""{STRIPS_STYLE}
td {{ white-space: nowrap; }}
.rules td {{ vertical-align: baseline; }}
.rules th:last-child, .rules td:last-child {{ text-align: left; white-space: normal; min-width: 9rem; }}
.answer {{ font-size: 1.15rem; font-weight: 600; margin: .8rem 0 .2rem; }}
"""


def transfer_document(data: TransferData) -> Document:
    """Return a transfer for people. `explain` adds the sources of the rules."""
    return Document(data.title, partial(_lines, data), partial(_body, data), STYLE)


def _lines(data: TransferData, width: int, explain: bool) -> Iterator[RenderableType]:
    yield Text(filled(answer(data), width), style="bold")
    yield from _paragraph([*trust(data), *other_groups(data)], width)
    yield Text("")
    if len(data.groups.rows) > 1:
        yield from table(*data.groups, width)
        yield Text("")
    for row in data.chosen:
        yield from _paragraph(row_sentences(data, row), width)
    yield Text("\n".join(["", *data.settings, ""]), style="dim")
    # Notes are below the table, because the numbers fill a terminal of 80 columns.
    header, rows = data.rules
    yield from table(header[:-1], [row[:-1] for row in rows if row[-1] != SILENT], width)
    for note, names in data.notes.items():
        yield Text(filled(f"{note}: {', '.join(names)}", width, hang=2), style="dim")
    yield Text("")
    for sentence in (*agreement(data), *camps(data)):
        yield Text(filled(sentence, width, hang=2))
    if data.check is not None:
        yield Text("\nMeasured", style="bold")
        yield from _paragraph(checked(data.check), width)
        yield from table(*data.check.table, width)
    if explain:
        yield Text("\nSources", style="bold")
        for row in data.transfer.rows:
            yield Text(filled(f"{row.name}: {row.source}", width, hang=2))


def _paragraph(sentences: Iterable[str], width: int) -> Iterator[RenderableType]:
    text = " ".join(sentences)
    if text:
        yield Text(filled(text, width))


def _body(data: TransferData) -> str:
    verdict, *others = [*agreement(data), *camps(data)] or ["Nothing changes, so all rules agree."]
    kept = "".join(f"<p>{escape(' '.join(row_sentences(data, row)))}</p>" for row in data.chosen)
    return f"""{page_head(data.title, (), data.settings)}
<p class="answer">{escape(answer(data))}</p><p>{escape(" ".join([*trust(data), *other_groups(data)]))}</p>
{html_table(*data.groups) if len(data.groups.rows) > 1 else ""}
{kept}
<h2>How far the rules agree</h2><p>{escape(verdict)}</p>
<div class="strips">{_strips(data)}</div>
<p class="settings">One dot for each rule. The dashed line is the tuned run. Open dots give no settings here.</p>
<ul>{_items(others)}</ul>
<h2>Which axis moves each rule</h2>{html_table(*data.axes)}
<p class="settings">Factors of the rotation. An asterisk marks an axis on which the rule is silent.</p>
{"" if data.check is None else _check(data.check)}
<h2>All rules</h2><div class="rules">{html_table(*data.rules)}</div>
<h2>Sources</h2><ul>{_items([f"{row.name}: {row.source}" for row in data.transfer.rows])}</ul>"""


def _check(check: TransferCheck) -> str:
    return f"<h2>Measured</h2><p>{escape(' '.join(checked(check)))}</p>{html_table(*check.table)}"


def _items(sentences: Sequence[str]) -> str:
    return "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)


def _strips(data: TransferData) -> str:
    figures = []
    for quantity in STRIPS:
        rows = [row for row in data.transfer.rows if not data.is_silent(row) and _has_logarithm(getattr(row, quantity))]
        if rows and _has_logarithm(getattr(data.transfer.tuned, quantity)):
            figures.append(strip(data, quantity, rows))
    return pictures(figures) or "<p>No picture: rotation depends on the gradient here.</p>"


def _has_logarithm(value: float | None) -> bool:
    return value is not None and isfinite(value) and value > 0


def strip(data: TransferData, quantity: str, rows: Sequence[TransferRow]) -> Any:
    """Return one dot for each rule on a logarithmic axis, and the tuned run as a line."""
    title, factor = STRIPS[quantity]
    drawn = dot_figure([row.name for row in rows], title)
    for is_open in (False, True):
        shown = [row for row in rows if (row.lr is None) == is_open]
        drawn.add_scatter(
            x=[factor * getattr(row, quantity) for row in shown],
            y=[row.name for row in shown],
            mode="markers",
            # One colour for all, because a second one would be read as a judgement.
            marker={
                "size": 11,
                "color": theme.COLOURS[0],
                "symbol": "circle-open" if is_open else "circle",
                "line": {"width": 2},
            },
            hovertemplate="%{y}: %{x:.3g}<extra></extra>",
        )
    tuned = factor * getattr(data.transfer.tuned, quantity)
    drawn.add_vline(x=tuned, line={"color": theme.GREY, **theme.DASHED})
    # Positions of Plotly's annotations on a logarithmic axis are logarithms.
    drawn.add_annotation(
        text="tuned run", x=log10(tuned), y=1, yref="paper", yanchor="bottom", showarrow=False, font={"size": 12}
    )
    ticks = log_ticks([tuned, *(factor * getattr(row, quantity) for row in rows)])
    drawn.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return drawn


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2 and 5 in each decade, or only 1 over many decades.

    >>> log_ticks([0.4, 3.0])
    [0.2, 0.5, 1.0, 2.0, 5.0]
    """
    low = floor(log10(min(values)))
    high = floor(log10(max(values)))
    digits = (1, 2, 5) if high - low < MANY_DECADES else (1,)
    ticks = [float(f"{digit}e{power}") for power in range(low, high + 2) for digit in digits]
    return [tick for tick in ticks if min(values) / 2.5 < tick < max(values) * 2.5]
