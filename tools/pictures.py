"""Take the pictures of reports in docs/ again: `python -m tools.pictures [folder of make demo]`, after a page changed.

Three simulated runs, as the tests of pages have them, and the RotationalSGD run of `make demo`. The panels are of two
runs of the gallery on handwritten digits: AdamW, and Adam with L2.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from gyroscope.render.run_page import page
from gyroscope.report import gather
from tests.render import make
from tests.render.browser import launch
from tools import gallery

DOCS = Path(__file__).parent.parent / "docs"
LAST = "Which layers?"  # the panel with which a picture ends
LAYER = "3.weight"  # the layer that the picture of an opened layer shows
PANELS = ("verdict", "equilibrium", "layers", "balance", "plane", "stability", "table")
STORIES = {"healthy": make.healthy, "imbalanced": make.imbalanced, "fell_out": make.fell_out}


def take(browser_page: Page, runs: list[Path], folder: Path, name: str) -> None:
    """Write the page of some runs, open it, and take its picture down to the map of layers."""
    html = folder / f"{name}.html"
    html.write_text(page(gather(runs)), encoding="utf-8")
    browser_page.goto(html.as_uri())
    browser_page.wait_for_selector("body[data-ready]")
    panel = browser_page.locator("section", has=browser_page.get_by_role("heading", name=LAST, exact=True)).first
    box = panel.bounding_box()
    assert box is not None, f"the page of {name} has no panel {LAST!r}"
    clip = {"x": 0, "y": 0, "width": 1200, "height": box["y"] + box["height"] + 8}
    browser_page.screenshot(path=DOCS / f"{name}.png", full_page=True, clip=clip)


def open_run(browser_page: Page, run: Path, folder: Path) -> None:
    """Open the page of a run in a window of a width at which pictures are legible on a phone."""
    html = folder / f"{run.name}.html"
    html.write_text(page(gather([run])), encoding="utf-8")
    browser_page.set_viewport_size({"width": 760, "height": 900})
    browser_page.goto(html.as_uri())
    browser_page.wait_for_selector("body[data-ready]")


def take_panels(browser_page: Page, folder: Path) -> None:
    """Take a picture of each panel for docs/report.md."""

    def take_part(selector: str, name: str) -> None:
        browser_page.locator(selector).screenshot(path=DOCS / "panels" / f"{name}.png")

    open_run(browser_page, gallery.train(folder / "adam-l2", gallery.ADAM_L2), folder)
    take_part("header", "summary")
    for name in PANELS:
        take_part(f"section#{name}", name)
    # The state of Adam with L2 does not tell signal from noise.
    open_run(browser_page, gallery.train(folder / "adamw", gallery.ADAMW), folder)
    take_part("section#signal", "signal")
    browser_page.locator("#layer-choice").select_option(LAYER)
    browser_page.wait_for_selector("#look-figure .main-svg")
    take_part("#layer", "layer")


def main() -> None:
    """Take all pictures, or all but the demo's where its folder is not there."""
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo") / "rotational_sgd"
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        runs = [make.run_at(folder / story, STORIES[story](), seed=i) for i, story in enumerate(STORIES)]
        browser_page = launch(playwright).new_page(viewport={"width": 1200, "height": 900})
        take(browser_page, [runs[1]], folder, "report-imbalanced")
        take_panels(browser_page, folder)
        browser_page.set_viewport_size({"width": 1200, "height": 900})
        take(browser_page, [runs[2]], folder, "report-fell-out")
        take(browser_page, runs, folder, "report-three")
        if demo.exists():
            take(browser_page, [demo], folder, "report")


if __name__ == "__main__":
    main()
