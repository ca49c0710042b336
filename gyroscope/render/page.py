"""The HTML skeleton of every page: title, style, script and body, and the files beside this one that go into it."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from html import escape

from gyroscope._json import clean_text, dumps
from gyroscope.render import theme

# Content security policy of a page in a file: it runs its own scripts and loads nothing.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
)

# Significant digits of numbers in arrays.
DIGITS = 5
# Higher levels take much longer and save only a few percent of Plotly's script.
GZIP_LEVEL = 5


def standalone(title: str, body: str, *, script: str, style: str = "", packed: Mapping[str, str] | None = None) -> str:
    """Return a page in one file that opens without a network. All but `title` is HTML, CSS or JavaScript.

    Args:
        title: plain text of the title, which is escaped here.
        body: HTML of the body.
        script: JavaScript that runs at the end of the body, after the theme's own.
        style: CSS added to the theme's own.
        packed: texts by name. Each is stored gzipped in an element `packed-<name>`, which boot.js unpacks.

    >>> print(standalone("a < b", "<h1>a</h1>", script="draw();")[:15])
    <!doctype html>
    """
    head = f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
    head += f"<style>{theme.style()}{style}</style>"
    # With the type text/plain the browser keeps the text, but neither runs nor shows it.
    data = [
        f'<script type="text/plain" id="packed-{name}">{pack(text)}</script>' for name, text in (packed or {}).items()
    ]
    return _document(title, head, "\n".join([body, *data, f"<script>{theme.script()}\n{script}</script>"]))


def linked(title: str, body: str, scripts: Sequence[str] = ()) -> str:
    """Return a page of the server. Styles and scripts are files, so its policy can forbid inline scripts."""
    tags = "".join(f'<script src="assets/{name}"></script>' for name in scripts)
    return _document(title, '<link rel="stylesheet" href="assets/style.css">', f"{body}\n{tags}")


def _document(title: str, head: str, body: str) -> str:
    # An empty icon keeps the browser from asking for /favicon.ico.
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><link rel="icon" href="data:,">
{head}</head><body>
{body}
</body></html>
"""
    # Names of layers and files may contain lone surrogates.
    return clean_text(page)


def page_json(value: object) -> str:
    """Return the data of a page as short JSON. A page has a million numbers, and five digits of each are enough."""
    return dumps(value, array_digits=DIGITS, compact=True)


def plotly() -> str:
    """Return Plotly's own script, from its Python package."""
    # Heavy, and only pages need it.
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def pack(text: str) -> str:
    """Gzip and encode as Base64. There is no time stamp, so the same text gives the same page.

    >>> pack("a") == pack("a")
    True
    """
    return base64.b64encode(gzip.compress(text.encode(), GZIP_LEVEL, mtime=0)).decode()
