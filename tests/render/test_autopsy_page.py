"""The page of an autopsy in a real browser: it opens without a network, draws its bars and follows the theme."""

import pytest

import gyroscope as gyro
from tests.checkpoint.test_autopsy import settled
from tests.render.browser import Tab, launch, missing

pytestmark = pytest.mark.browser


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


def test_the_page_draws_a_bar_for_each_layer_and_asks_for_nothing(browser, tmp_path):

    page = gyro.autopsy(settled(60)).html(tmp_path / "page.html")
    tab = Tab(browser, offline=True)
    tab.page.goto(page.as_uri())
    tab.page.wait_for_selector(".js-plotly-plot .bars")
    assert tab.js("document.querySelector('.js-plotly-plot').data.map(one => one.y.length)") == [2, 2, 2, 2]
    assert tab.page.locator("table tr").count() == 3
    ground = tab.js("getComputedStyle(document.body).backgroundColor")
    tab.page.click(".theme")
    assert tab.js("getComputedStyle(document.body).backgroundColor") != ground
    assert [url for url in tab.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.wrong == []
    tab.close()
