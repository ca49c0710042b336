"""The links of a built site: each leads to a file in it, and nothing is fetched from another host."""

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches without a click. A link to another host is allowed, a picture or script from there is not.
FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
IGNORED_RELATIONS = {"canonical", "edit"}


class Links(HTMLParser):
    """The references of a page, and the names that a link may point to."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[tuple[str, str]] = []  # what kind of element, and the address
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses and the id of one element."""
        attributes = dict(attrs)
        self.names |= {attributes[key] or "" for key in ("id", "name") if key in attributes}
        for key in ("href", "src"):
            address = attributes.get(key)
            if address and attributes.get("rel") not in IGNORED_RELATIONS:
                self.references.append(("fetched" if (tag, key) in FETCHED else "link", address))


@cache
def read(page: Path) -> Links:
    """Return the links of a page."""
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def problems(site: Path) -> list[str]:
    """Return a line for every reference that is broken or foreign."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for kind, address in read(page).references:
            found += [f"{page.relative_to(site)}: {problem}" for problem in check(page, kind, address)]
    return found


def check(page: Path, kind: str, address: str) -> Iterator[str]:
    """Yield what is wrong with one reference of a page."""
    parts = urlsplit(address)
    if parts.scheme == "data" or (kind == "link" and (parts.scheme or parts.netloc)):
        return
    if parts.scheme or parts.netloc:
        yield f"{address} is fetched from another host"
        return
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        yield f"{address} leads to no file"
    elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in read(target).names:
        yield f"{address} leads to no heading"
