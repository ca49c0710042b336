"""What the pages of plans and autopsies show alike: findings, tables and Plotly's pictures."""

from collections.abc import Sequence
from html import escape
from typing import Any

from gyroscope.advice.findings import Finding

# A page sends nothing anywhere.
PLOTLY_OPTIONS = {"displaylogo": False, "responsive": True, "showSendToCloud": False}
# Draws the pictures again when a reader switches between light and dark.
FIGURES_SCRIPT = "Look.listeners.push(Look.figures); Look.start();"


def finding_items(findings: Sequence[Finding]) -> str:
    """Return findings as items of a list, with remedies and formulas."""
    items = []
    for finding in findings:
        remedy = f"<br>→ {escape(finding.remedy)}" if finding.remedy else ""
        formula = f"<small>{escape(finding.formula)}</small>" if finding.formula else ""
        items.append(f'<li class="{finding.severity}">{escape(finding.sentence)}{remedy}{formula}</li>')
    return "".join(items)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with one line for each layer, under a header."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def setting_lines(settings: Sequence[str]) -> str:
    """Return settings, one on each line."""
    return "<br>".join(escape(setting) for setting in settings)


def picture(figure: Any, *, with_script: bool = True) -> str:
    """Return a Plotly figure with its script, so that the page needs no network. A second figure needs no script."""
    return str(figure.to_html(include_plotlyjs=with_script, full_html=False, config=PLOTLY_OPTIONS))
