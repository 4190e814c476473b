"""Every page of results in Chromium: for all readers, on any screen, light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from purgatory.cli.main import main
from purgatory.sweeps.page import sweep_page
from tests.browser.pipeline.conftest import Compared
from tests.browser.pipeline.sweeps.test_sweep_page import HEAD, answer, heatmap
from tests.browser.pipeline.test_report_page import CUT_OFF
from tests.browser.view.chromium import chromium

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = ("analyze", "compared", "waits", "occupancy", "audit", "sweep")
WIDTHS = (390, 1_280, 2_560)
LONG = "a-name-without-any-place-to-break-it-" * 4

_UNFOLD = "document.querySelectorAll('details').forEach(one => one.open = true)"
_SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_SAID = "[...document.querySelectorAll('.said li')].map(e => e.firstElementChild.nextSibling.data)"
_LEVELS = "[...document.querySelectorAll('h1, h2, h3, h4')].map(e => +e.tagName[1])"
_IDS = "[...document.querySelectorAll('main [id]')].map(e => e.id)"
_LOST = """[...document.querySelectorAll('a[href^="#"]')].filter(
  e => !document.getElementById(e.getAttribute('href').slice(1))).map(e => e.href)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(short_runs: Path, compared: Compared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    slow = str(short_runs / "slow/1")
    _run("analyze", slow, "--out", str(folder / "analyze"))
    reports = {"analyze": folder / "analyze", "compared": compared("one/1", "slow/1")}
    for name, report in reports.items():
        (folder / f"{name}.html").symlink_to(report / "report.html")
    for job in ("waits", "occupancy", "audit"):
        page, out = folder / f"{job}.html", folder / job
        _run(job, slow, "--report", str(page), "--out", str(out))
    (folder / "sweep.html").write_text(_sweep(), encoding="utf-8")
    return folder


def _run(job: str, *arguments: str) -> None:
    assert main([job, *arguments, "--engine", "duckdb", "--no-progress"]) == 0


def _sweep() -> str:
    rows = heatmap([[0.001, 0.2, 0.3], [0.4, None, 0.5]])
    rows += heatmap([[0.1, None, 0.3]], number=1, y=None)
    failures = [{"settings": "topic.partitions = 1", "seed": 3, "error": LONG}]
    answers = [answer("400 is it."), answer(f"Of {LONG} nothing is known.", None, None)]
    return sweep_page(HEAD, rows, answers, failures, parquet="heatmaps/")


Schemes = dict[int, list[Literal["light", "dark"]]]
SOME: tuple[Schemes, ...] = ({390: ["dark"]}, {2_560: ["light"]})
ALL: Schemes = {width: ["light", "dark"] for width in WIDTHS}


@pytest.mark.parametrize(
    ("name", "schemes"),
    [
        # All pages have the same colours: by day each is looked at in one or the other scheme.
        *(pytest.param(name, SOME[at % len(SOME)], id=name) for at, name in enumerate(PAGES)),
        *(
            pytest.param(name, ALL, id=f"{name}-all", marks=pytest.mark.exhaustive)
            for name in PAGES
        ),
    ],
)
def test_page_is_accessible_on_any_screen(
    browser: Browser, pages: Path, name: str, schemes: Schemes
) -> None:
    """Axe takes up to half a minute for a page and a colour scheme, on a slow machine."""
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    try:
        page.goto((pages / f"{name}.html").as_uri())
        _leads(page)
        page.evaluate(_UNFOLD)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(_SETTLED)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate(CUT_OFF) == [], width
            for scheme in schemes.get(width, ()):
                page.emulate_media(color_scheme=scheme)
                found = Axe().run(page)
                assert found.violations_count == 0, (width, scheme, found.generate_report())
        assert wrong == []
    finally:
        context.close()


def test_report_is_below_two_megabytes(pages: Path) -> None:
    assert (pages / "analyze.html").stat().st_size < 2_000_000


def test_filter_hides_rows_and_lines_of_other_values(browser: Browser, pages: Path) -> None:
    page = browser.new_page()
    try:
        page.goto((pages / "analyze.html").as_uri())
        page.locator(".filters [name=broker]").select_option("2")
        brokers = "[...document.querySelectorAll('tr[data-broker]')]"
        shown = f"{brokers}.filter(row => !row.hidden).map(row => JSON.parse(row.dataset.broker))"
        assert page.evaluate(f"{brokers}.length") > len(page.evaluate(shown)) > 0
        assert {broker for (broker,) in page.evaluate(shown)} == {"2"}
        assert "rows are hidden" in (page.locator(".filters output").text_content() or "")
        page.locator(".filters [name=broker]").select_option("")
        assert page.evaluate(f"{brokers}.every(row => !row.hidden)")
        page.locator(".filters [name=client]").select_option("billing")
        lines = "document.getElementById('throughput-0').data"
        visible = f"{lines}.filter(line => line.visible !== false).map(line => line.meta.client)"
        assert set(page.evaluate(visible)) == {"billing"}
        assert "orders" in page.evaluate(f"{lines}.map(line => line.meta.client)")
    finally:
        page.close()


def test_link_restores_the_common_zoom_of_plots(browser: Browser, pages: Path) -> None:
    ranges = """[...document.querySelectorAll(".js-plotly-plot")]
        .filter(plot => plot.layout.xaxis.ticksuffix === " s")
        .map(plot => plot.layout.xaxis.range)"""
    names = ("from", "to")
    page = browser.new_page(viewport={"width": 1_280, "height": 900})
    page.set_default_timeout(120_000)  # all plots are drawn again
    try:
        page.goto((pages / "analyze.html").as_uri())
        page.evaluate(_UNFOLD)
        whole = page.evaluate(ranges)
        assert len(whole) >= 4
        place = page.locator("#sizes-0 .nsewdrag").first
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30, steps=5)
        page.mouse.up()
        page.wait_for_url("**?from=*")
        zoomed = page.evaluate(ranges)
        times = [float(page.locator(f".filters [name={name}]").input_value()) for name in names]
        assert zoomed == [times] * len(whole)
        end_s = whole[0][1]
        assert times == [pytest.approx(end_s * share, rel=0.03) for share in (0.25, 0.5)]
        page.locator(".filters [name=broker]").select_option("2")
        page.goto("about:blank")
        page.go_back()
        assert page.evaluate(ranges) == zoomed
        assert page.locator(".filters [name=broker]").input_value() == "2"
        page.locator(".filters [name=from]").fill("")
        page.locator(".filters [name=to]").fill("")
        page.locator(".filters [name=to]").dispatch_event("change")
        assert page.evaluate(ranges) == whole
        assert page.url.endswith("?broker=2")
    finally:
        page.close()


def _click_point(page: Page, plot: str, line: int, point: int) -> str:
    """Click where a plot has a point of one of its lines; the identifier that the page goes to."""
    place = page.locator(f"#{plot}")
    place.scroll_into_view_if_needed()
    x, y = page.evaluate(
        """([name, line, point]) => {
            const plot = document.getElementById(name), box = plot.getBoundingClientRect();
            const {data, _fullData, _fullLayout: layout} = plot, {xaxis, yaxis} = _fullData[line];
            const at = (id, letter, value) => {
              const axis = layout[(id ?? letter).replace(letter, letter + "axis")];
              return axis._offset + axis.d2p(value);
            };
            const {x, y} = data[line];
            return [box.x + at(xaxis, "x", x[point]), box.y + at(yaxis, "y", y[point])];
        }""",
        [plot, line, point],
    )
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    return str(page.evaluate("location.hash.slice(1)"))


def test_click_on_a_point_leads_to_its_row(browser: Browser, pages: Path) -> None:
    page = browser.new_page(viewport={"width": 1_280, "height": 900})
    try:
        page.goto((pages / "analyze.html").as_uri())
        worst = page.evaluate(
            """() => { const {name, y} = document.getElementById("times-0").data[2];
                       return [name, y.indexOf(Math.max(...y))]; }"""
        )
        assert worst[0] == "max"
        anchor = _click_point(page, "times-0", 2, worst[1])
        row = page.locator(f"#{anchor}")
        assert anchor.startswith("row-of-waits_over_time-0-") and row.is_visible()
        assert "Produce" in row.inner_text() and "1,50" in row.inner_text()
        assert "purgatory view " in row.inner_text() and " --at " in row.inner_text()
        assert page.evaluate("document.querySelector('tr:target').id") == anchor
        for plot, line, point, table in (
            ("waits-0-0", -1, 0, "latencies"),
            ("sizes-0", 1, 9, "occupancy"),
            ("replication-0", 2, 9, "replication"),
            ("throughput-0", 0, 9, "throughput"),
        ):
            lines = page.evaluate(f"document.getElementById('{plot}').data.length")
            anchor = _click_point(page, plot, line % lines, point)
            assert anchor.startswith(f"row-of-{table}-0-")
            assert page.locator(f"#{anchor}").is_visible()
    finally:
        page.close()


def test_each_row_linked_from_a_plot_is_in_the_page(browser: Browser, pages: Path) -> None:
    """But those of the map of expiries, whose table has the worst rows alone."""
    page = browser.new_page()
    try:
        page.goto((pages / "analyze.html").as_uri())
        lost = page.evaluate(
            """[...document.querySelectorAll(".js-plotly-plot")].flatMap(plot => plot.data)
            .filter(line => line.type !== "heatmap")
            .flatMap(line => [...(line.ids ?? []), line.meta?.row]).filter(Boolean)
            .filter(name => !document.getElementById(name))"""
        )
        assert lost == []
    finally:
        page.close()


def _leads(page: Page) -> None:
    """Sentences come first, each once; headings have their order; links lead to existing places."""
    said = page.evaluate(_SAID)
    assert said
    assert len(set(said)) == len(said)
    first = "document.querySelector('.said').compareDocumentPosition(document.querySelector"
    for later in ("table", "figure"):
        assert page.evaluate(f"{first}({json.dumps(later)}))") & 4, "DOCUMENT_POSITION_FOLLOWING"
    assert all(after <= before + 1 for before, after in pairwise(page.evaluate(_LEVELS)))
    ids = page.evaluate(_IDS)
    assert len(set(ids)) == len(ids)
    assert page.evaluate(_LOST) == []
