"""The page of an autopsy in a real browser: it opens without a network, draws its dots and follows the theme."""

import pytest
import torch
from torch import nn

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


def test_the_page_draws_a_dot_for_each_layer_and_asks_for_nothing(browser, tmp_path):
    page = gyro.autopsy(settled(60)).html(tmp_path / "page.html")
    tab = Tab(browser, offline=True)
    tab.page.goto(page.as_uri())
    tab.page.wait_for_selector(".js-plotly-plot .point")
    dots = "[...document.querySelectorAll('.js-plotly-plot')].map(figure => figure.data[0].y.length)"
    assert tab.js(dots) == [2, 2, 2, 2]
    assert tab.page.locator("table tr").count() == 3
    ground = tab.js("getComputedStyle(document.body).backgroundColor")
    tab.page.click(".theme")
    assert tab.js("getComputedStyle(document.body).backgroundColor") != ground
    assert [url for url in tab.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.wrong == []
    tab.close()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(16, 16, bias=False)
        self.up_proj = nn.Linear(16, 32, bias=False)


def checkpoint_of_blocks(count):
    """State after one step of AdamW of a model that repeats a block."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(count))})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sum(weight.square().sum() for weight in model.parameters()).backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_families_open_by_a_click_and_fit_a_phone(browser, tmp_path):
    page = gyro.autopsy(checkpoint_of_blocks(43)).html(tmp_path / "page.html")
    tab = Tab(browser, offline=True, viewport={"width": 400, "height": 900})
    tab.page.goto(page.as_uri())
    tab.page.wait_for_selector(".js-plotly-plot .point")
    assert tab.page.locator("table .family").all_inner_texts() == ["layers.*.q_proj (43)", "layers.*.up_proj (43)"]
    assert tab.page.locator("tbody tr:visible").count() == 2
    tab.page.locator(".family").first.click()
    assert tab.page.locator("tbody tr:visible").count() == 2 + 43
    assert tab.js("document.documentElement.scrollWidth <= innerWidth")
    assert tab.js("[...document.querySelectorAll('.wide')].every(part => part.scrollWidth <= part.clientWidth)")
    assert tab.wrong == []
    tab.close()
