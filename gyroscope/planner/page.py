"""The planner's answer as one self-contained page: the verdict, the curves, the sentences with their formulas."""

from html import escape
from string import Template
from typing import Any

import numpy as np

from gyroscope.planner.answer import Answer
from gyroscope.planner.chart import RANGE
from gyroscope.planner.data import thinned
from gyroscope.planner.sentences import Sentence, layer_table

# Okabe and Ito's colours: told apart by every kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --text: #1b1f24; --ground: #fff; --soft: #59636e; --warn: #9a5b00; --good: #0a6b4a; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ec; --ground: #14181c; --soft: #9aa5b1; --warn: #f0b35a; --good: #5fd0a4; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
code { overflow-wrap: anywhere; }
p.settings, small { color: var(--soft); } li.warning { color: var(--warn); } li.good { color: var(--good); }
li.missing { color: var(--soft); } ul { padding-left: 1.2rem; } li { margin: .4rem 0; } small { display: block; }
.verdict { border-left: 4px solid currentColor; padding-left: 1rem; list-style: none; font-size: 1.05rem; }
.wide { overflow-x: auto; } th, td { text-align: right; padding: .2rem .8rem .2rem 0; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
.chart { background: #fff; border-radius: 6px; padding: 4px; overflow-x: auto; }
</style></head><body>
<h1>$title</h1><p class="settings"><code>$settings</code></p>
<ul class="verdict">$verdict</ul>
<h2>The run, foretold</h2><div class="chart">$chart</div>
<h2>What it means</h2>$table<ul>$sentences</ul>
</body></html>
""")


def page(answer: Answer) -> str:
    """The whole page as HTML, with Plotly inside: it opens from disk, without a network."""
    question = answer.question
    schedule = question.schedule
    return PAGE.substitute(
        title=escape(f"Plan: {question.rule_name}, {schedule.name} over {schedule.steps:,} steps"),
        settings=escape(repr(question.rule)),
        verdict=_items(answer.verdict),
        chart=_chart(answer),
        table=_table(answer),
        sentences=_items(answer.sentences),
    )


def _items(sentences: tuple[Sentence, ...]) -> str:
    return "".join(
        f'<li class="{sentence.level}">{escape(sentence.text)}'
        + (f"<small>{escape(sentence.formula)}</small>" if sentence.formula else "")
        + "</li>"
        for sentence in sentences
    )


def _table(answer: Answer) -> str:
    if len(answer.layers) == 1:
        return ""
    header, rows = layer_table(answer.question, answer.layers)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _chart(answer: Answer) -> str:
    told = [one for one in answer.layers if one.forecast is not None]
    if not told:
        return "<p>No curves: an input is missing, see below.</p>"
    options = {"displaylogo": False, "responsive": True}
    return str(figure(answer).to_html(include_plotlyjs=True, full_html=False, config=options))


def figure(answer: Answer) -> Any:
    """Rotation, norm and learning rate over the steps: solid what will happen, dashed the equilibrium at that rate."""
    from plotly.subplots import make_subplots  # heavy, and only pages need it

    rows = ("angular_update", "rotation<br>rad per step"), ("norm", "norm"), ("lr", "learning rate")
    chart = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.04, row_heights=[0.45, 0.35, 0.2])
    for number, one in enumerate(answer.layers):
        f = one.forecast
        if f is None:
            continue
        kept, colour = thinned(len(f.lr)), COLOURS[number % len(COLOURS)]
        style = {"x": kept, "legendgroup": one.layer.name, "mode": "lines"}
        for row, (name, _) in enumerate(rows[:2], start=1):
            label = escape(one.layer.name)
            line, dashed = {"color": colour, "width": 2}, {"color": colour, "width": 1.5, "dash": "dash"}
            solid = {"y": getattr(f, name)[kept], "name": label, "line": line, "showlegend": row == 1}
            twin = {"y": getattr(f, f"equilibrium_{name}")[kept], "name": f"{label}, equilibrium", "line": dashed}
            chart.add_scatter(**style, **solid, row=row, col=1)
            chart.add_scatter(**style, **twin, showlegend=row == 1, row=row, col=1)
        if number == 0:
            rate = {"y": f.lr[kept], "name": "learning rate", "line": {"color": "#555555"}, "showlegend": False}
            chart.add_scatter(x=kept, mode="lines", **rate, row=3, col=1)
    for row, (_, title) in enumerate(rows, start=1):
        chart.update_yaxes(title_text=title, exponentformat="power", row=row, col=1)
    for row, (name, _) in enumerate(rows[:2], start=1):
        highest = max(getattr(one.forecast, name).max() for one in answer.layers if one.forecast is not None)
        span = [np.log10(highest / RANGE), np.log10(2 * highest)]
        chart.update_yaxes(type="log", range=span, row=row, col=1)
    chart.update_xaxes(title_text="step", row=3, col=1)
    chart.update_layout(
        template="plotly_white",
        height=640,
        margin={"l": 80, "r": 20, "t": 30, "b": 50},
        legend={"orientation": "h", "y": 1.08},
    )
    return chart
