"""The planner's answer as one self-contained page: the verdict, the curves, the sentences with their formulas."""

from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

import numpy as np

from gyroscope.advice.plan_sentences import Sentence, layer_table
from gyroscope.planner.answer import Answer
from gyroscope.render import theme
from gyroscope.render.chart import RANGE
from gyroscope.render.plan_json import thinned
from gyroscope.theory.layers import Prediction

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style></head><body>
<button class="theme" type="button">Dark</button>
<h1>$title</h1><p class="settings"><code>$settings</code></p>
<ul class="verdict">$verdict</ul>
<h2>The run, foretold</h2><div class="chart">$chart</div>
<h2>What it means</h2>$table<ul>$sentences</ul>
<script>$script
Look.listeners.push(Look.figures); Look.start();</script>
</body></html>
""")


def page(answer: Answer) -> str:
    """The whole page as HTML, with Plotly inside: it opens from disk, without a network."""
    question = answer.question
    schedule = question.schedule
    title = f"Plan: {question.rule_name}, {schedule.name} over {schedule.steps:,} steps"
    several = len(answer.layers) > 1
    table = layer_table(question, answer.layers) if several else None
    return render(title, [repr(question.rule)], answer.verdict, answer.layers, table, answer.sentences)


def render(
    title: str,
    settings: Sequence[str],
    verdict: Sequence[Sentence],
    layers: Sequence[Prediction],
    table: tuple[list[str], list[list[str]]] | None = None,
    sentences: Sequence[Sentence] = (),
) -> str:
    """The page of any plan: what was asked, what to think of it, curves, a table of layers, and what it means."""
    return PAGE.substitute(
        style=theme.style(),
        script=theme.script(),
        title=escape(title),
        settings="<br>".join(escape(setting) for setting in settings),
        verdict=_items(verdict),
        chart=_chart(layers),
        table="" if table is None else _table(*table),
        sentences=_items(sentences),
    )


def _items(sentences: Sequence[Sentence]) -> str:
    return "".join(
        f'<li class="{sentence.level}">{escape(sentence.text)}'
        + (f"<small>{escape(sentence.formula)}</small>" if sentence.formula else "")
        + "</li>"
        for sentence in sentences
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _chart(layers: Sequence[Prediction]) -> str:
    if all(one.forecast is None for one in layers):
        return "<p>No curves: an input is missing, see below.</p>"
    options = {"displaylogo": False, "responsive": True, "showSendToCloud": False}  # a page sends nothing anywhere
    return str(figure(layers).to_html(include_plotlyjs=True, full_html=False, config=options))


def figure(layers: Sequence[Prediction]) -> Any:
    """Rotation, norm and learning rate over the steps: solid what will happen, dashed the equilibrium at that rate."""
    from plotly.subplots import make_subplots  # heavy, and only pages need it

    rows = ("angular_update", "rotation<br>rad per step"), ("norm", "norm"), ("lr", "learning rate")
    chart = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.04, row_heights=[0.45, 0.35, 0.2])
    for number, one in enumerate(layers):
        f = one.forecast
        if f is None:
            continue
        kept, colour = thinned(len(f.lr)), theme.COLOURS[number % len(theme.COLOURS)]
        style = {"x": kept, "legendgroup": one.layer.name, "mode": "lines"}
        for row, (name, _) in enumerate(rows[:2], start=1):
            label = escape(one.layer.name)
            line, dashed = {"color": colour, **theme.SOLID}, {"color": colour, **theme.DASHED}
            solid = {"y": getattr(f, name)[kept], "name": label, "line": line, "showlegend": row == 1}
            twin = {"y": getattr(f, f"equilibrium_{name}")[kept], "name": f"{label}, equilibrium", "line": dashed}
            chart.add_scatter(**style, **solid, row=row, col=1)
            chart.add_scatter(**style, **twin, showlegend=row == 1, row=row, col=1)
        if number == 0:
            rate = {"y": f.lr[kept], "name": "learning rate", "line": {"color": "#888888"}, "showlegend": False}
            chart.add_scatter(x=kept, mode="lines", **rate, row=3, col=1)
    for row, (_, title) in enumerate(rows, start=1):
        chart.update_yaxes(title_text=title, exponentformat="power", row=row, col=1)
    for row, (name, _) in enumerate(rows[:2], start=1):
        highest = max(getattr(one.forecast, name).max() for one in layers if one.forecast is not None)
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
