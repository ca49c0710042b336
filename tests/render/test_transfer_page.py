"""The page of a transfer in a real browser: two strips with a dot for each rule, without a network."""

import pytest

from gyroscope.planner.transfer_answer import answer_transfer
from gyroscope.render.transfer_document import STRIPS
from tests.render.browser import Tab, launch, missing

SETTINGS = {
    "optimizer": "adamw",
    "lr": 6e-4,
    "weight_decay": 0.1,
    "batch": "0.5M",
    "tokens": "10B",
    "width": "768",
    "depth": "12",
    "to": "batch=2M,tokens=200B,width=2048,depth=24",
    "schedule": "cosine",
}


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    with sync_playwright() as playwright:
        one = launch(playwright)
        yield one
        one.close()


@pytest.mark.browser
def test_the_page_shows_every_rule_on_two_strips_and_asks_for_nothing(browser, tmp_path):
    answer = answer_transfer(SETTINGS)
    page = answer.html(tmp_path / "page.html")
    tab = Tab(browser, offline=True, viewport={"width": 400, "height": 900})
    tab.page.goto(page.as_uri())
    tab.page.wait_for_selector(".js-plotly-plot .point")
    strips = tab.js("[...document.querySelectorAll('.js-plotly-plot')].map(one => one.data.map(dots => dots.x.length))")
    assert strips == [[11, 4]] * len(STRIPS)
    lines = tab.js("[...document.querySelectorAll('.js-plotly-plot')].map(one => one.layout.shapes[0].x0)")
    tuned = answer.data.transfer.tuned
    assert lines == pytest.approx([1e3 * tuned.rotation, tuned.run_length])
    assert "lr 4.5e-4 and weight decay 0.0267 (tau)" in tab.page.inner_text(".answer")
    assert tab.js("document.documentElement.scrollWidth <= innerWidth")  # nothing is cut at the width of a phone
    ground = tab.js("getComputedStyle(document.body).backgroundColor")
    tab.page.click(".theme")
    assert tab.js("getComputedStyle(document.body).backgroundColor") != ground
    assert [url for url in tab.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.wrong == []
    tab.close()


def test_the_page_names_the_axes_and_marks_the_silent_ones():
    data = answer_transfer(SETTINGS).data
    rows = {name: cells for name, *cells in data.axes.rows}
    assert data.axes.header == ["rule", "batch", "tokens", "width", "depth", "model size", "all axes"]
    assert rows["tau"] == ["× 2", "× 0.224", "–*", "–*", "–", "× 0.447"]
    assert rows["mup"] == ["× 1.41*", "× 0.224*", "× 0.612", "–*", "–", "× 0.194"]


def test_a_page_where_nothing_changes_or_rotation_is_unknown_is_still_a_page():
    unchanged = answer_transfer(SETTINGS | {"to": "batch=0.5M"}).page()
    assert "Nothing changes, so all rules agree." in unchanged
    sgd = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "steps": "1K", "to": "steps=2K"}
    assert "Transfer: SGDM, samples × 2" in answer_transfer(sgd).page()
    muon = {"optimizer": "muon", "lr": 1e-8, "weight_decay": 5.0, "batch": "0.5M", "tokens": "1M", "width": "1"}
    assert "<h2>All rules</h2>" in answer_transfer(muon | {"to": "batch=2,tokens=1e12"}).page()
