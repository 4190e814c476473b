"""The page: whole without a network, safe with any name, and drawn by a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from purgatory.pipeline.plots import outcome_shares, sizes, wait_percentiles
from purgatory.pipeline.report import MOST_PLOTTED_RUNS, report_page
from purgatory.pipeline.rows import shown_waits
from tests.pipeline.browsing import Browser, headless_browser

Row = dict[str, Any]
EVIL = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"

# Text that reaches beyond the screen, or beyond its drawing; a wide table may, in its scroller.
CUT_OFF = """
[...document.querySelectorAll("main *")].filter(element => {
  const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  if (!own || element.closest(".scroll, script, style")) return false;
  const box = element.getBoundingClientRect();
  const drawing = element.closest("svg");
  const room = drawing ? drawing.getBoundingClientRect() : {left: 0, right: innerWidth};
  return box.width > 0 && (box.left < room.left - 1 || box.right > room.right + 1);
}).map(element => element.textContent)
"""


def _run(run_id: str, *, complete: bool = True) -> Row:
    return {
        "run_id": run_id,
        "scenario": "by-hand",
        "seed": 1,
        "complete": complete,
        "duration_us": 2_000_000,
        "bucket_width_us": 1_000_000,
        "operations": 10,
        "sends": 0,
        "reads": 0,
        "faults": [{"kind": "stall", "broker": 2, "at_ms": 500, "duration_ms": None}],
        "folder": "trace",
    }


def _waits(run_id: str) -> list[Row]:
    rows = []
    counts = {"immediate": 4, "completed": 5, "pending": 1, "all": 10}
    for purgatory, kinds in {"Fetch": ("consumer", "follower", "all"), "Produce": ("all",)}.items():
        for kind in kinds:
            for outcome, count in counts.items():
                wait_us = None if outcome == "pending" else 1234.5 * count
                rows.append(
                    {
                        "run_id": run_id,
                        "purgatory": purgatory,
                        "kind": kind,
                        "outcome": outcome,
                        "operations": count,
                        "share": count / 10,
                        "wait_mean_us": wait_us,
                        "wait_p50_us": wait_us,
                        "wait_p95_us": wait_us,
                        "wait_p99_us": wait_us,
                        "wait_max_us": wait_us,
                    }
                )
    return rows


def _occupancy(run_id: str) -> list[Row]:
    return [
        {
            "run_id": run_id,
            "purgatory": purgatory,
            "broker": broker,
            "bucket_start_us": start_us,
            "bucket_end_us": start_us + 1_000_000,
            "size_mean": 1.5,
            "size_max": 3 + start_us // 1_000_000,
        }
        for purgatory in ("Fetch", "Produce")
        for broker in (None, 0)
        for start_us in (0, 1_000_000)
    ]


def _page(*run_ids: str) -> str:
    return report_page(
        [_run(run_id, complete=run_id != EVIL) for run_id in run_ids],
        [row for run_id in run_ids for row in _waits(run_id)],
        [row for run_id in run_ids for row in _occupancy(run_id)],
    )


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(page)
    return parser.tags


def test_nothing_is_loaded_and_the_library_is_there_once() -> None:
    page = _page("run-1", "run-2")
    tags = _elements(page)
    loading = {"src", "href", "srcset", "data", "action", "poster"}
    assert not [(tag, attributes) for tag, attributes in tags if loading & attributes.keys()]
    assert "link" not in {tag for tag, _ in tags}
    policy = next(a for tag, a in tags if tag == "meta" and "http-equiv" in a)["content"]
    assert policy is not None and policy.startswith("default-src 'none';")
    assert "connect-src" not in policy
    assert len(re.findall(r"plotly\.js v\d", page)) == 1


def test_names_are_text_and_never_markup() -> None:
    page = _page(EVIL)
    plain = _page("run-1")
    assert [tag for tag, _ in _elements(page)].count("script") == [
        tag for tag, _ in _elements(plain)
    ].count("script")
    assert "img" not in {tag for tag, _ in _elements(page)}


def test_every_plot_has_a_name_and_its_figures_in_a_table() -> None:
    page = _page("run-1")
    tags = _elements(page)
    figures = [attributes for tag, attributes in tags if attributes.get("role") == "img"]
    assert len(figures) == 3
    assert all("run-1" in (attributes["aria-label"] or "") for attributes in figures)
    tables = [attributes for tag, attributes in tags if tag == "table"]
    assert len(tables) == 2
    assert all(attributes["aria-label"] for attributes in tables)
    row = re.search(r"<td>Fetch \(follower\)</td><td>completed</td>.*", page)
    assert row is not None
    assert re.findall(r'number">([^<]*)<', row[0]) == ["5", "50.00"] + ["6.173"] * 5
    assert "4.000" not in row[0]


def test_many_runs_have_their_tables_but_no_more_plots_than_a_browser_takes() -> None:
    run_ids = [f"run-{number:02}" for number in range(MOST_PLOTTED_RUNS + 2)]
    page = _page(*run_ids)
    assert page.count("Plotly.newPlot(") - _page().count("Plotly.newPlot(") == 3 * MOST_PLOTTED_RUNS
    assert page.count(f"Plots are drawn for the first {MOST_PLOTTED_RUNS} runs") == 2
    assert all(f">{run_id}</h2>" in page for run_id in run_ids)


def test_faults_are_named_and_marked_over_all_purgatories() -> None:
    page = _page("run-1")
    assert "<li>stall of broker 2 from 0.500 s</li>" in page
    figure = sizes(_occupancy("run-1"), _run("run-1")["faults"])
    (band,) = figure["layout"]["shapes"]
    assert (band["x0"], band["x1"]) == (0.5, 2.0)
    (band,) = sizes(
        _occupancy("run-1"), [{"kind": "loss", "broker": None, "at_ms": 250, "duration_ms": 500}]
    )["layout"]["shapes"]
    assert (band["x0"], band["x1"]) == (0.25, 0.75)


def test_outcomes_stand_in_the_same_order_in_every_run() -> None:
    rows = [
        {**row, "outcome": outcome}
        for row in shown_waits(_waits("run-1"))[:1]
        for outcome in ("new", "pending", "failed", "immediate", "completed", "expired")
    ]
    names = [bar["name"] for bar in outcome_shares(rows)["data"]]
    assert names == ["immediate", "completed", "expired", "failed", "pending", "new"]


def test_waits_that_nobody_knows_are_left_out_of_the_plot() -> None:
    rows = shown_waits(_waits("run-1"))
    data = wait_percentiles(rows)["data"]
    drawn = {label for trace in data for label in trace["y"]}
    assert drawn == {
        "Fetch (consumer), completed",
        "Fetch (follower), completed",
        "Produce, completed",
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with headless_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_draws_all_of_the_page_alone(
    browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    page = tmp_path / "report.html"
    page.write_text(_page(EVIL, "run-2"), encoding="utf-8")
    browser.requests.clear()
    browser.open(page, width=width, dark=dark)
    assert browser.console == []
    # A picture in the page itself is no request that leaves the machine.
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.as_uri()}
    assert browser.evaluate("document.title") == "Waits in 2 runs"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    # Six figures, each of which became a drawing with its axis title in it.
    titles = browser.evaluate("[...document.querySelectorAll('.xtitle')].map(e => e.textContent)")
    assert titles == ["operations", "wait", "time since the start of the run"] * 2
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(CUT_OFF) == []
    light_on_dark = browser.evaluate(
        "(() => { const light = c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0);"
        " return [...document.querySelectorAll('td, .xtitle, .legendtext, .annotation-text,"
        ' g[class$="tick"] text\')].map(e => { const style = getComputedStyle(e);'
        " return light(e.closest('svg') ? style.fill : style.color)"
        " > light(getComputedStyle(e.closest('section')).backgroundColor); }); })()"
    )
    assert len(light_on_dark) > 100
    assert set(light_on_dark) == {dark}


@pytest.mark.browser
def test_what_is_cut_off_is_noticed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = _page("run-1").replace("<main>", '<main><p style="width: 500px">wide</p>')
    page.write_text(text, encoding="utf-8")
    browser.open(page, width=390)
    assert browser.evaluate(CUT_OFF) == ["wide"]


@pytest.mark.browser
def test_the_page_prints(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(_page("run-1"), encoding="utf-8")
    browser.open(page, width=1280, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    ink, paper = browser.evaluate(
        "[document.body, document.body].map((e, i) =>"
        " getComputedStyle(e)[i ? 'backgroundColor' : 'color'])"
    )
    assert (ink, paper) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
    widths = "[...document.querySelectorAll('.main-svg')].map(e => e.clientWidth)"
    assert min(on_screen := browser.evaluate(widths)) > 1000
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(browser.evaluate(widths)) == {700}
    browser.call("Emulation.setEmulatedMedia", media="screen")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(widths) == on_screen
    pdf = browser.print_pdf()
    assert pdf.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 4
