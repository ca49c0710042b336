"""The page of a sweep in a real browser: cells lead to runs, tables sort, a phone has room."""

from urllib.parse import unquote

import pytest

from gyroscope.cli import main
from tests.lab.make_sweep import sweep_at
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


@pytest.fixture(scope="module")
def address(swept, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(swept), "-o", str(out)]) == 0
    return out.as_uri()


def click_until_opened(page, box):
    """Click a cell of the map as a person would: again, if a busy machine has lost the click."""
    from playwright.sync_api import TimeoutError as NothingOpenedError

    start = page.url
    for is_last in (False, False, True):
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.25 * box["height"])
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.25 * box["height"])  # the upper of two, the middle
        page.wait_for_selector("#map-0 .hovertext")
        page.mouse.down()
        page.mouse.up()
        try:
            page.wait_for_url(lambda url: url != start, timeout=15_000, wait_until="commit")
            break
        except NothingOpenedError:
            if is_last:
                raise
    page.wait_for_selector("body[data-ready] #findings li", timeout=60_000)


def test_clicking_a_cell_opens_the_page_of_its_runs(browser, address):
    tab = Tab(browser, offline=True).open(address)
    assert [url for url in tab.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.js("document.getElementById('map-0').data[0].text[1][1]").startswith(
        "<b>0.5050</b> ± 0.0635 (95 %), n = 2"
    )
    texts = tab.js("document.getElementById('map-1').layout.annotations.map(one => one.text)")
    assert texts[-1] == "failed"
    assert sum("★" in text for text in texts) == 0
    assert tab.js("document.getElementById('map-0').layout.annotations.map(one => one.text)")[4] == "★ 0.5050"
    box = tab.page.locator("#map-0 .nsewdrag").first.bounding_box()
    click_until_opened(tab.page, box)
    assert "lr=0.01_weight_decay=0.1_seed=0" in unquote(tab.page.url)
    assert tab.wrong == []
    tab.close()


def test_the_table_sorts_failures_are_rows_and_a_phone_does_not_scroll_sideways(browser, address):
    tab = Tab(browser, offline=True, viewport={"width": 390, "height": 800}, color_scheme="dark").open(address)
    means = tab.page.locator("#settings-table td[data-key=mean]").all_inner_texts()
    assert means[0] == "0.5050"
    assert means[-2:] == ["–", "–"]
    tab.page.click("#settings-table [data-sort=lr]")
    column = tab.page.locator("#settings-table tbody tr td:nth-child(2)").all_inner_texts()
    assert [float(value) for value in column] == sorted(float(value) for value in column)
    rows = tab.page.locator("#failures-table tbody tr").all_inner_texts()
    assert len(rows) == 2
    assert all("<b>diverged</b> at step 7" in row for row in rows)
    assert "Welch's test gives p = " in tab.page.inner_text("#tests")
    assert "0.01: 0.0 decades" in tab.page.inner_text("#arms-table")
    assert tab.js("document.documentElement.scrollWidth") <= 390
    assert tab.wrong == []
    tab.close()


def test_one_axis_is_a_line_with_bars_and_none_is_points(browser, tmp_path):
    for name, kind in {"line": "lr = [0.001, 0.01]", "points": 'optimizer = ["adamw", "sgd"]'}.items():
        plan = f"seeds = 2\n[base]\nsteps = 3\n[grid]\n{kind}\n"
        folder = sweep_at(tmp_path / name, plan, lambda config: (config.lr or 1.0) + config.seed)
        assert main(["report", str(folder), "-o", str(tmp_path / f"{name}.html")]) == 0
        tab = Tab(browser, offline=True).open((tmp_path / f"{name}.html").as_uri())
        trace = tab.js("document.getElementById('results-figure').data[0]")
        bars = trace["error_y" if name == "line" else "error_x"]["array"]
        assert bars == pytest.approx([12.706 / 2] * 2, rel=1e-4)
        if name == "line":
            assert trace["x"] == [0.001, 0.01]
            assert trace["y"] == pytest.approx([0.501, 0.51])
        assert tab.wrong == []
        tab.close()
