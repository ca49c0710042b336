"""The common parts of the pages of plans and autopsies: findings, tables and Plotly's pictures."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from gyroscope._json import clean_text
from gyroscope.advice.findings import Finding
from gyroscope.report.layer_table import LayerTable, heading
from gyroscope.report.plan_facts import Fact

# Figures side by side on a wide screen, one above the other on a phone.
STRIPS_STYLE = """
.strips { display: flex; flex-wrap: wrap; gap: 0 1rem; } .strips > div { flex: 1 1 26rem; min-width: 0; }
"""
# Findings that a page shows. The others are folded.
SHOWN_FINDINGS = 3
# A page sends nothing anywhere.
PLOTLY_OPTIONS = {"displaylogo": False, "responsive": True, "showSendToCloud": False}


def finding_list(findings: Sequence[Finding]) -> str:
    """Return the findings as a list, folded after the first three."""
    if not findings:
        return ""
    shown = f'<ul class="findings">{_items(findings[:SHOWN_FINDINGS])}</ul>'
    rest = findings[SHOWN_FINDINGS:]
    if not rest:
        return shown
    more = f"{len(rest)} more finding{'' if len(rest) == 1 else 's'}"
    return f'{shown}<details><summary>{more}</summary><ul class="findings">{_items(rest)}</ul></details>'


def _items(findings: Sequence[Finding]) -> str:
    """Return findings as items of a list, with remedies and formulas."""
    items = []
    for finding in findings:
        remedy = f"<br>→ {escape(finding.remedy)}" if finding.remedy else ""
        shown = f"<details><summary>Formula</summary>{escape(finding.formula)}</details>"
        formula = shown if finding.formula else ""
        items.append(f'<li class="{finding.severity}">{escape(finding.sentence)}{remedy}{formula}</li>')
    return "".join(items)


def fact_table(facts: Sequence[Fact]) -> str:
    """Return the numbers of one layer as a table. The formula of a number opens by a click."""
    rows = []
    for fact in facts:
        formula = f"<details><summary>Formula</summary>{escape(fact.formula)}</details>" if fact.formula else ""
        rows.append(f"<tr><th scope=row>{escape(fact.quantity)}</th><td>{escape(fact.value)}{formula}</td></tr>")
    return f'<table class="facts"><tbody>{"".join(rows)}</tbody></table>' if rows else ""


def family_table(layers: LayerTable) -> str:
    """Return a table with a line for each family of layers. A click on its name shows or hides its members."""
    # The worst member is named below its family, because another column of names would push numbers off the page.
    has_worst = layers.header[-1] == "worst"
    header = list(map(heading, layers.header[: -1 if has_worst else None]))
    lines = []
    for number, row in enumerate(layers.rows):
        name, *cells = row.cells[: len(header)]
        if not row.members:
            lines.append(f"<tr>{_cells([name, *cells], header)}</tr>")
            continue
        attributes = f'type="button" class="family" aria-expanded="false" data-family="{number}"'
        button = f"<button {attributes}>{escape(name)}</button>"
        worst = f"<small>worst: {escape(row.cells[-1])}</small>" if has_worst and row.cells[-1] else ""
        lines.append(f"<tr><td>{button}{worst}</td>{_cells(cells, header[1:])}</tr>")
        members = [member.cells[: len(header)] for member in row.members]
        lines += [f'<tr hidden data-member="{number}">{_cells(member, header)}</tr>' for member in members]
    titles = zip(header, layers.helps, strict=False)  # the worst member has no column here
    head = "".join(f'<th title="{escape(help)}">{escape(title)}</th>' for title, help in titles)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _cells(row: Sequence[str], header: Sequence[str]) -> str:
    """Return cells with their heading as an attribute, because a phone shows them one below the other."""
    named = zip(row, header, strict=True)
    return "".join(f'<td data-label="{escape(title)}">{escape(cell)}</td>' for cell, title in named)


def page_head(title: str, summary: Sequence[str], settings: Sequence[str]) -> str:
    """Return the beginning of a page: its title, what the findings mean, and settings, one on each line."""
    meaning = f'<p class="summary">{escape(" ".join(summary))}</p>' if summary else ""
    lines = "<br>".join(map(escape, settings))
    button = '<button class="theme" type="button">Dark</button>'
    return f'{button}<h1>{escape(title)}</h1>{meaning}<p class="settings"><code>{lines}</code></p>'


def label(name: str) -> str:
    """Return a name for a picture: Plotly reads some HTML, and its encoder refuses lone surrogates.

    >>> label("a<b>\\udcff")
    'a&lt;b&gt;\\\\udcff'
    """
    return escape(clean_text(name))


def dot_figure(rows: Sequence[str], title: str) -> Any:
    """Return an empty figure with a row for each name, the first at the top, and the title of its axis."""
    from plotly.graph_objects import Figure  # heavy, and only pages need it

    drawn = Figure()
    names = [label(row) for row in reversed(rows)]
    drawn.update_xaxes(title_text=title)
    drawn.update_yaxes(categoryorder="array", categoryarray=names, automargin=True, tickfont={"size": 12})
    drawn.update_layout(
        template="plotly_white",
        height=110 + 24 * len(rows),
        margin={"l": 10, "r": 15, "t": 30, "b": 45},
        showlegend=False,
    )
    return drawn


def picture(figure: Any, *, with_script: bool = True) -> str:
    """Return a Plotly figure with its script, so that the page needs no network. A second figure needs no script."""
    return str(figure.to_html(include_plotlyjs=with_script, full_html=False, config=PLOTLY_OPTIONS))


def pictures(figures: Iterable[Any]) -> str:
    """Return figures in one row. Plotly's script is large, and one copy is enough for a page."""
    return "".join(f"<div>{picture(each, with_script=not number)}</div>" for number, each in enumerate(figures))
