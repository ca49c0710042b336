"""The pages in a real browser: they open, can be used with mouse and keyboard, and follow a run that is written."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gyroscope.cli import main
from gyroscope.render import theme
from gyroscope.render.run_page import page
from gyroscope.report import gather
from gyroscope.store import Sample, open_run
from tests.render import make
from tests.render.browser import Tab, launch, missing
from tests.render.test_page import with_incident
from tests.report.test_run_data import diverging

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SCRIPT, UPWARDS = "<script>alert(1)</script>", "..%2f..%2fetc"  # the first is a directory in another
SHEET = 717  # pixels: A4 less the margins that browsers leave
ROTATION = "document.getElementById('rotation-figure')"
LOGGED = "document.getElementById('logged-figure')"


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


def opened(browser, folder, names, **options):
    """A tab with the page of some runs; the network is off."""
    file = folder / "-".join([*names, "page.html"])
    file.write_text(page(gather([folder / name for name in names])))
    return Tab(browser, offline=True, **options).open(file.as_uri())


@pytest.fixture(scope="module")
def fallen(browser, runs):
    """The page of a run that fell out of equilibrium, on a dark system."""
    tab = opened(browser, runs, ["fell_out"], color_scheme="dark")
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def imbalanced(browser, runs):
    tab = opened(browser, runs, ["imbalanced"])
    yield tab
    tab.close()


def test_a_page_opens_from_a_file_without_a_network(fallen):
    assert fallen.wrong == []
    assert [url for url in fallen.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert fallen.js("document.querySelectorAll('.modebar [data-title*=hare]').length") == 0  # Plotly's upload
    assert fallen.js(f"{ROTATION}.data.length") > 0
    assert "as far as predicted" in fallen.page.inner_text("#findings")


def test_the_curves_are_the_numbers_of_the_store(fallen, runs):
    drawn = fallen.js(f"{ROTATION}.data.map(one => [one.name, one.x, one.y])")
    measured = next(one for one in drawn if one[0] == "measured, median layer")
    with open_run(runs / "fell_out") as run:
        assert measured[1] == run.steps.tolist()
        rates = run.series(run.layers[0], "lr")
        last = int(np.flatnonzero(rates >= 0.01 * rates.max())[-1])
        angles = [run.series(name, "angular_update")[last] for name in run.layers]
        assert measured[2][last] == pytest.approx(sorted(angles)[2], rel=1e-4)
        # The end of the schedule would flatten all others on a logarithmic axis.
        assert set(measured[2][last + 1 :]) == {None}
    assert fallen.js(f"{ROTATION}.layout.annotations.map(one => one.text)") == ["settled"]


def test_what_training_logged_is_drawn_with_the_loss_first(browser, fallen, tmp_path):
    make.log_at(tmp_path / "first")
    make.log_at(tmp_path / "second", seed=1)
    tab = opened(browser, tmp_path, ["first", "second"])
    drawn = tab.js(f"{LOGGED}.data.map(one => [one.name, one.yaxis, one.x, one.y])")
    expected = [(f"{name}, {run}", axis) for name, axis in NAMES_AND_AXES for run in ("first", "second")]
    assert [(name, axis) for name, axis, *_ in drawn] == expected
    assert drawn[0][2] == list(range(0, 300, 2))
    assert drawn[0][3][10] == pytest.approx(make.loss_at(20), rel=1e-4)
    axes = tab.js(f"['', 2, 3].map(i => {LOGGED}._fullLayout['yaxis' + i]).map(axis => [axis.type, axis.domain])")
    assert [kind for kind, _ in axes] == ["log", "linear", "linear"]
    assert axes[0][1][0] > axes[1][1][1] > axes[2][1][1]
    assert tab.wrong == []
    tab.close()
    assert not fallen.page.is_visible("#logged-figure")


NAMES_AND_AXES = (("loss", "y"), ("accuracy", "y2"), ("tokens", "y3"))


def test_long_names_of_logged_values_are_whole_and_do_not_touch(browser, tmp_path):
    names = ["held_out_accuracy_top_five", "held_out_loss", "validation_perplexity_of_code"]
    with make.writer(tmp_path / "run", make.healthy(**make.SMALL)) as new:
        for step, layers in make.samples(make.healthy(**make.SMALL)):
            new.put(Sample(step, 1.7e9 + step, dict(enumerate(layers))))
        new.put_scalars([(step, dict.fromkeys(names, 1 + 1 / (1 + step))) for step in range(0, 300, 10)])
    tab = opened(browser, tmp_path, ["run"])
    shown = tab.page.locator("#logged-figure .annotation-text")
    places = {text: shown.nth(i).bounding_box() for i, text in enumerate(shown.all_text_contents())}
    titles = tab.page.locator("#logged-figure .infolayer text[class*=title]")
    boxes = [places[name] for name in names] + [titles.nth(i).bounding_box() for i in range(titles.count())]
    assert len(boxes) == 4  # with the title of the steps
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            beside = one["x"] >= other["x"] + other["width"] or other["x"] >= one["x"] + one["width"]
            assert beside or one["y"] >= other["y"] + other["height"] or other["y"] >= one["y"] + one["height"]
    tab.close()


def test_dark_by_the_system_light_by_the_button_and_on_paper(fallen):
    ink, figure = "getComputedStyle(document.body).color", f"{ROTATION}.layout.font.color"
    dark, drawn = fallen.js(ink), fallen.js(figure)
    assert drawn == "#e6e9ec"
    fallen.page.click("button.theme")
    fallen.until(f"{figure} === '#1b1f24'")
    assert fallen.js(ink) != dark
    fallen.page.click("button.theme")
    assert fallen.js(ink) == dark
    widths = "document.querySelector('#rotation-figure .main-svg').clientWidth"
    drawn = fallen.js(widths)
    fallen.js("dispatchEvent(new Event('beforeprint'))")
    assert fallen.js(ink) != dark
    assert fallen.js(widths) < SHEET
    fallen.js("dispatchEvent(new Event('afterprint'))")
    assert fallen.js(ink) == dark
    assert fallen.js(widths) == drawn
    assert fallen.wrong == []


def test_clicking_a_layer_in_the_map_opens_it(imbalanced, runs):
    tab = imbalanced
    assert not tab.page.is_visible("#layer")
    row = tab.page.locator("#layers-table tbody tr").first  # the worst
    # The map is a gradient in the colours of the page.
    assert "var(--fast)" in row.locator(".strip").get_attribute("style")
    row.locator("td.map").click()
    tab.page.wait_for_selector("#layer:visible")
    assert tab.page.inner_text("#layer-name") == "block.0.conv1.weight"
    for name in ("norm", "rotation", "cosine", "decay", "alignment"):
        assert tab.js(f"document.getElementById('layer-{name}').data.length") > 0
    said = tab.page.inner_text("#look-extremes")
    with open_run(runs / "imbalanced") as run:
        slowest, fastest = run.extremes("block.0.conv1.weight", "angular_update")
    assert f"Slowest: neuron {slowest}," in said
    assert f"Fastest: neuron {fastest}," in said
    assert tab.wrong == []


def test_a_layer_can_be_opened_and_its_steps_walked_with_the_keyboard(imbalanced):
    tab = imbalanced
    tab.page.focus("#layers-table .name[title='stem.weight']")
    tab.page.keyboard.press("Enter")
    tab.until("document.getElementById('layer-name').textContent === 'stem.weight'")
    assert tab.page.inner_text("#look-at") == "step 990"
    tab.page.focus("#look-step")
    tab.page.keyboard.press("Home")
    assert tab.page.inner_text("#look-at") == "step 0"
    tab.page.select_option("#look-quantity", "norm")
    assert "Smallest: neuron" in tab.page.inner_text("#look-extremes")
    assert tab.wrong == []


def test_a_finding_opens_its_layers(imbalanced):
    tab = imbalanced
    tab.page.click("#findings li:has-text('times as fast') button.chip")
    tab.until("document.getElementById('layer-name').textContent === 'block.0.conv1.weight'")
    assert tab.wrong == []


def test_findings_after_the_third_are_folded(imbalanced):
    tab = imbalanced
    tab.js(
        "(() => { const run = Gyroscope.state.report.runs[0]; "
        "run.findings = [0, 0, 0, 0, 0].map(i => run.findings[i]); "
        "drawFindings(); })()"
    )
    assert tab.page.inner_text("#findings-title") == "Findings (5)"
    assert tab.page.locator("#findings-body > ul > li").count() == 3
    assert tab.page.inner_text("#findings-body summary") == "2 more"
    assert tab.wrong == []


def test_an_incident_is_marked_on_every_time_axis_and_the_page_opens_at_its_step(browser, tmp_path):
    target = tmp_path / "report.html"
    target.write_text(page(gather([with_incident(tmp_path / "run")], at=200)))
    tab = Tab(browser, offline=True).open(target.as_uri())
    tab.js(f"openLayer({make.NAMES[0]!r})")
    tab.until("document.getElementById('look-at').textContent === 'step 200'")
    axes = tab.js(
        "[...document.querySelectorAll('.js-plotly-plot')].filter(f => f.layout.xaxis.title?.text === 'step')"
        ".map(f => [f.id, f.layout.shapes.some(s => s.x0 === 200 && s.x1 === 200), ...f.layout.xaxis.range])"
    )
    assert {name for name, *_ in axes} >= {"rotation-figure", "layer-norm"}
    assert all(marked and 0 < low < 200 < high < 300 for _, marked, low, high in axes), axes
    assert tab.wrong == []
    tab.close()


def test_the_table_sorts_and_filters(imbalanced):
    tab = imbalanced

    def column(key):
        return [float(cell) for cell in tab.page.locator(f"#layers-table td[data-key='{key}']").all_inner_texts()]

    assert column(2)[0] > 3  # worst first: rotation over that of the forecast
    tab.page.click("#layers-table [data-sort='2']")
    assert column(2) == sorted(column(2), reverse=True)
    tab.page.keyboard.press("Enter")  # the heading still has the focus: the other way round
    assert column(2) == sorted(column(2))
    assert tab.page.locator("th[aria-sort=ascending]").count() == 1
    tab.page.fill("#filter", "CONV2")
    names = tab.page.locator("#layers-table td:first-child").all_inner_texts()
    assert len(names) == 2
    assert all("conv2" in name for name in names)
    assert tab.page.inner_text("#layers-count") == "(2 of 5)"
    assert tab.wrong == []


def test_a_long_layer_name_stays_on_one_line_of_the_table(browser, tmp_path):
    kinds = ("transformer.h.{}.attn.c_proj.weight", "encoder.layers.{}.self_attn.out_proj.weight")
    names = [kind.format(block) for kind in kinds for block in (9, 10, 11)]
    # Labels leave out what most names share, which is nothing here.
    make.run_at(tmp_path / "gpt", make.healthy(**{**make.SMALL, "names": ("embedding", *names)}))
    tab = opened(browser, tmp_path, ["gpt"], viewport={"width": 760, "height": 900})
    for family in tab.page.locator("#layers-table .family").all():
        family.click()
    # The number of members that follows a family's name may begin a line.
    lines = """[...document.querySelectorAll("#layers-table td:first-child button")].map(({ firstChild }) => {
        const name = firstChild.data.split(" ")[0], text = document.createRange();
        text.setStart(firstChild, 0);
        text.setEnd(firstChild, name.length);
        return [name, new Set([...text.getClientRects()].map(box => Math.round(box.top))).size];
    })"""
    drawn = dict(tab.js(lines))
    assert {*names, *(kind.format("*") for kind in kinds)} < set(drawn)
    assert [name for name, count in drawn.items() if count > 1] == []
    tab.until("document.documentElement.scrollWidth <= 760")  # the table scrolls in its own frame
    assert tab.wrong == []
    tab.close()


def test_the_table_and_the_finding_say_that_a_layer_is_not_finite(browser, tmp_path):
    diverging(tmp_path / "lost")
    tab = opened(browser, tmp_path, ["lost"])
    assert "not finite" in tab.page.inner_text("#findings")
    rows = {row.split("\t")[0]: row for row in tab.page.locator("#layers-table tbody tr").all_inner_texts()}
    assert rows["stem"].count("not finite") == 3  # rotation, norm and state
    assert "not finite" not in rows["block.0.conv1"]
    assert tab.wrong == []
    tab.close()


def test_runs_are_compared_by_loss_in_narrow_and_wide_windows(browser, tmp_path):
    for seed, (name, story) in enumerate({"fell_out": make.fell_out, "healthy": make.healthy}.items()):
        make.log_at(tmp_path / name, story(), seed=1 - seed)
    make.log_at(tmp_path / "imbalanced", make.imbalanced(), seed=2)
    names = ["fell_out", "healthy", "imbalanced"]
    tab = opened(browser, tmp_path, names, viewport={"width": 400, "height": 900})
    assert tab.page.locator("#runs-table td:first-child").all_inner_texts() == ["healthy", "fell_out", "imbalanced"]
    # A run has the colour of its place in the command, which orders the demo's other page too.
    swatches = "[...document.querySelectorAll('#runs-table .swatch')].map(one => getComputedStyle(one).backgroundColor)"
    given = [tuple(bytes.fromhex(theme.COLOURS[place][1:])) for place in (1, 0, 2)]
    assert tab.js(swatches) == [f"rgb{colour}" for colour in given]
    lines = tab.js(
        f"{ROTATION}.data.filter(one => one.yaxis !== 'y2').map(one => [one.name, one.line.color, one.line.dash ?? ''])"
    )
    assert lines[:2] == [["healthy", "#d55e00", ""], ["healthy, forecast", "#d55e00", "dash"]]
    tab.page.select_option("#layers select.run", "2")
    assert tab.page.inner_text("#layers-table tbody .name") == "block.0.conv1"
    assert "Neurons of" in tab.page.inner_text("#findings-body")
    for width in (400, 2000):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.until(f"document.documentElement.scrollWidth <= {width}")
        for name in ("logged", "rotation"):
            drawn = f"document.querySelector('#{name}-figure .main-svg').getBoundingClientRect().width"
            tab.until(f"{drawn} > {0.7 * width / (1 if width < 700 else 2)}")
    assert tab.wrong == []
    tab.close()


@pytest.fixture(scope="module")
def window(browser):
    tab = Tab(browser)
    yield tab
    tab.close()


@pytest.fixture
def live(window):
    """A tab with the network on. All tests share it, for a new one takes seconds; it forgets what went wrong before."""
    window.page.goto("about:blank")
    window.wrong.clear()
    window.asked.clear()
    return window


def test_a_plan_has_the_same_look(live, tmp_path):
    tab = live
    main(["plan", "adamw", "--fan-in", "64", "--html", str(tmp_path / "plan.html")])
    tab.page.goto((tmp_path / "plan.html").as_uri())
    drawn = "document.querySelector('.js-plotly-plot').layout.font.color"
    tab.until(f"{drawn} === '#1b1f24'")
    tab.page.click("button.theme")
    tab.until(f"{drawn} === '#e6e9ec'")
    curve = "document.querySelector('.js-plotly-plot').data[0].line.color"
    assert tab.js(curve) == "#4aa8e0"
    tab.page.click("button.theme")
    tab.until(f"{curve} === '#0072b2'")
    assert tab.wrong == []


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A directory that is watched, and in which another process trains just now: (directory, address)."""
    folder = tmp_path_factory.mktemp("watched")
    for name in (SCRIPT, UPWARDS):
        make.run_at(folder / name, make.healthy(names=("<img src=x onerror=alert(2)>",), steps=300))
    start = [sys.executable, "-m"]
    training = subprocess.Popen([*start, "tests.render.train", str(folder / "now")], cwd=ROOT)
    server = subprocess.Popen(
        [*start, "gyroscope.cli", "watch", str(folder), "--no-browser"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    yield folder, server.stdout.readline().split(" at ")[1].split()[0]
    training.kill()
    training.wait()
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=20)
    assert server.returncode == 0


def choose(tab, address, name):
    """Open the list and from it a run; its address."""
    tab.open(address)
    tab.page.wait_for_selector(f"#runs a:text-is('{name}')")
    return address + tab.page.get_attribute(f"#runs a:text-is('{name}')", "href")


def test_names_that_are_scripts_or_paths_do_no_harm(live, watched):
    _, address = watched
    live.open(address)
    shown = live.page.inner_text("#runs")
    assert SCRIPT in shown
    assert UPWARDS in shown
    for name in (SCRIPT, UPWARDS):
        live.page.check(f"#runs tr:has(a:text-is('{name}')) input")
    live.page.click("form button")
    live.page.wait_for_selector("body[data-ready] #runs-table .swatch")
    assert SCRIPT in live.page.inner_text("h1")
    # Not click(): a live page may draw its table anew between pressing and releasing a mouse button.
    live.page.locator("#layers-table .name").first.dispatch_event("click")
    live.page.wait_for_selector("#layer:visible")
    assert live.js("document.querySelectorAll('img[src=x]').length") == 0
    assert [url for url in live.asked if not url.startswith((address, "data:", "blob:"))] == []
    assert live.wrong == []


def test_the_live_page_gains_points_and_its_last_value_is_the_database_s(live, watched):
    folder, address = watched
    live.open(choose(live, address, "now"))
    count = f"{ROTATION}.data.find(one => one.name?.startsWith('measured')).x.length"
    before = live.js(count)
    live.until(f"{count} >= {before} + 8")
    shown = "Gyroscope.state.report.runs[0]"
    live.js(f"openLayer({shown}.layers[2].name)")
    live.until("Gyroscope.state.series.length === 1")
    step, value = live.js(f"[{shown}.steps[9], Gyroscope.state.series[0]['angular_update.mean'][9]]")
    with open_run(folder / "now") as run:
        place = run.steps.tolist().index(step)
        assert value == pytest.approx(run.series(run.layers[2], "angular_update")[place], rel=1e-4)
    assert "running" in live.page.inner_text("#runs-table [data-status]")
    assert live.wrong == []


def test_a_warmup_does_not_flatten_the_rest_of_the_chart(imbalanced):
    low, high = imbalanced.js(f"{ROTATION}.layout.yaxis.range")
    slowest = imbalanced.js(f"{ROTATION}.data[0].y")  # the lower end of the band
    assert 10**low > 2 * slowest[0]  # the first step is beyond the axis
    assert 10**low < slowest[8] < 10**high


def test_everything_that_decides_is_on_the_first_screen(browser, tmp_path):
    for seed in range(4):
        make.log_at(tmp_path / f"run{seed}", make.healthy(**make.SMALL), seed=seed)
    tab = opened(browser, tmp_path, [f"run{seed}" for seed in range(4)], viewport={"width": 1200, "height": 800})
    for figure in ("logged", "rotation"):
        box = tab.page.locator(f"#{figure}-figure .main-svg").first.bounding_box()
        assert box["y"] + box["height"] <= 800
    assert tab.page.locator("#runs-table th[title='']").count() == 0
    assert tab.page.locator("#layers-table th[title='']").count() == 0
    tab.close()


def test_the_live_page_survives_a_run_that_is_deleted_and_comes_again(live, watched):
    folder, address = watched
    story = make.healthy(names=make.NAMES[:1], steps=300)
    make.run_at(folder / "brief", story)
    live.open(choose(live, address, "brief"))
    shutil.rmtree(folder / "brief")
    live.page.wait_for_selector("#message:has-text('was not found')")
    count = "Gyroscope.state.report.runs[0].steps.length"
    assert live.js(count) == 30  # what was read stays on the page
    with make.writer(folder / "brief", story) as writer:
        for step, layers in list(make.samples(story))[:20]:
            writer.put(Sample(step, time.time(), dict(enumerate(layers))))
    live.until(f"{count} === 20")
    assert live.page.inner_text("#message") == ""
