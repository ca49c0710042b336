"""The data of a report as one self-contained page: it opens from disk, without a network."""

import base64
import gzip
from html import escape
from importlib.resources import files
from string import Template

from gyroscope._json import dumps
from gyroscope.render import theme
from gyroscope.render.run_data import Report

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
)
"""What a page in a file may do: run what it carries, and ask nobody for anything."""

LEVEL = 5
"""Of compression: more takes longer and saves little."""

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title><link rel="icon" href="data:,">
<style>$style</style></head><body>
$body
<script type="text/plain" id="packed-plotly">$plotly</script>
<script type="text/plain" id="packed-data">$data</script>
<script>$script</script>
</body></html>
""")


def page(report: Report) -> str:
    """The whole page as HTML. Plotly and the data are compressed: a page of a hundred layers stays small."""
    return PAGE.substitute(
        policy=escape(POLICY),
        title=escape(title_of(report)),
        style=style(),
        body=body(title_of(report)),
        plotly=_packed(plotly()),
        data=_packed(dumps(report)),
        script="\n".join([theme.script(), asset("report.js"), asset("boot.js")]),
    )


def title_of(report: Report) -> str:
    """What the page is called."""
    names = [run.name for run in report.runs]
    return names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"


def body(title: str) -> str:
    """The panels, empty."""
    return Template(asset("report.html")).substitute(title=escape(title))


def style() -> str:
    """The look of all pages, and what this one adds."""
    return theme.style() + asset("report.css")


def asset(name: str) -> str:
    """A file beside this one."""
    return files("gyroscope.render").joinpath(name).read_text(encoding="utf-8")


def plotly() -> str:
    """Plotly's own script, from its Python package."""
    from plotly.offline import get_plotlyjs  # heavy, and only pages need it

    return str(get_plotlyjs())


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()
