"""Take the pictures of pages in docs/ again, after a page changed: `python -m tools.pictures`.

They are the pages of the gallery, so every picture shows what a command wrote.
"""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.render.browser import launch
from tools import gallery

DOCS = Path(__file__).parent.parent / "docs"
WIDE = {"width": 1200, "height": 900}
# A width at which the picture of a panel is legible on a phone.
NARROW = {"width": 760, "height": 900}
LAYER = "3.weight"  # the layer that the picture of an opened layer shows
PANELS = ("runs", "layers", "findings")
# Name of a picture -> its page of the gallery, and the element with which the picture ends.
WHOLE_PAGES = {
    "comparison": ("comparison", "section#layers"),
    "incident": ("incident", "section#runs"),
    "sweep": ("sweep", "section#arms"),
    "autopsy": ("autopsy", "table"),
}


def open_page(browser_page: Page, path: Path, size: dict[str, int]) -> None:
    """Open a page in a window of some size, and wait until its figures are drawn."""
    browser_page.set_viewport_size(size)
    browser_page.goto(path.as_uri())
    browser_page.wait_for_selector(".main-svg")
    browser_page.wait_for_timeout(1000)  # some figures are drawn when the window has its size


def take_whole(browser_page: Page, name: str, last: str) -> None:
    """Take a picture of the open page down to the end of an element."""
    box = browser_page.locator(last).first.bounding_box()
    assert box is not None, f"the page of {name} has no {last}"
    clip = {"x": 0, "y": 0, "width": WIDE["width"], "height": box["y"] + box["height"] + 8}
    browser_page.screenshot(path=DOCS / f"{name}.png", full_page=True, clip=clip)


def take_part(browser_page: Page, selector: str, name: str) -> None:
    """Take a picture of one element of the open page, for docs/report.md."""
    browser_page.locator(selector).screenshot(path=DOCS / "panels" / f"{name}.png")


def take_panels(browser_page: Page, pages: Path) -> None:
    """Take a picture of each panel of a report."""
    open_page(browser_page, pages / "imbalanced.html", NARROW)
    for name in PANELS:
        take_part(browser_page, f"section#{name}", name)
    # The state of Adam with L2 does not tell signal from noise, so this one shows AdamW.
    open_page(browser_page, pages / "healthy.html", NARROW)
    browser_page.locator(f"#layers-table .name[title='{LAYER}']").click()
    browser_page.wait_for_selector("#look-figure .main-svg")
    take_part(browser_page, "#layer", "layer")


def main() -> None:
    """Write the pages of the gallery to a temporary folder, and take all pictures."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        pages = Path(name)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # the commands also print
            gallery.write(pages)
        browser_page = launch(playwright).new_page(viewport=WIDE)
        take_panels(browser_page, pages)
        for picture, (page, last) in WHOLE_PAGES.items():
            open_page(browser_page, pages / f"{page}.html", WIDE)
            take_whole(browser_page, picture, last)


if __name__ == "__main__":
    main()
