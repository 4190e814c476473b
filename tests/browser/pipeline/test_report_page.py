"""The page: whole without a network, safe with any name, and drawn by a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from plotly.graph_objects import Figure
from plotly.io import to_json

from purgatory.pipeline.jobs.audit.anomalies import EVENT
from purgatory.pipeline.jobs.registry import MOST_PLOTTED_RUNS
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.plots import expiry_map, outcome_shares, sizes, wait_percentiles
from purgatory.pipeline.report.report import report_page
from purgatory.pipeline.result_rows import label_waits
from tests.browser.pipeline.browsing import Browser, headless_browser

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
    def of_all(rows: Callable[[str], list[Row]]) -> list[Row]:
        return [row for run_id in run_ids for row in rows(run_id)]

    return report_page(
        Results(
            [_run(run_id, complete=run_id != EVIL) for run_id in run_ids],
            waits=of_all(_waits),
            occupancy=of_all(_occupancy),
            over_time=of_all(_over_time),
            distribution=of_all(_distribution),
            expiry=of_all(_expiry),
            audit=of_all(_audit),
            witnesses=of_all(_witnesses),
            throughput=of_all(_throughput),
            replication=of_all(_replication),
        )
    )


def _over_time(run_id: str) -> list[Row]:
    return [
        {
            "run_id": run_id,
            "window_start_us": start_us,
            "window_end_us": start_us + 500_000,
            "purgatory": purgatory,
            "kind": "all",
            "outcome": "all",
            "operations": 5,
            **{f"wait_{name}_us": 1000.0 * start_us for name in ("p50", "p99", "max")},
        }
        for purgatory in ("Fetch", "Produce")
        for start_us in range(0, 2_000_000, 500_000)
    ]


def _throughput(run_id: str) -> list[Row]:
    return [
        {
            "run_id": run_id,
            "window_start_us": start_us,
            "window_end_us": start_us + 500_000,
            "kind": kind,
            "group": group,
            "topic": "orders",
            "partition": 0,
            "records": 5,
            "end_offset": 5,
        }
        for kind, group in (("producer", "shop"), ("consumer", "billing"))
        for start_us in range(0, 2_000_000, 500_000)
    ]


def _replication(run_id: str) -> list[Row]:
    return [
        {
            "run_id": run_id,
            "window_start_us": start_us,
            "window_end_us": start_us + 500_000,
            "broker": broker,
            "replica_lag": broker,
            "out_of_sync": 0,
        }
        for broker in (0, 1)
        for start_us in range(0, 2_000_000, 500_000)
    ]


def _distribution(run_id: str) -> list[Row]:
    return [
        {
            "run_id": run_id,
            "purgatory": purgatory,
            "outcome": outcome,
            "low_us": 10.0**power,
            "high_us": 10.0 ** (power + 0.2),
            "operations": 3,
        }
        for purgatory in ("Fetch", "Produce")
        for outcome in ("completed", "expired")
        for power in (2, 3)
    ]


def _expiry(run_id: str, *, keyed: bool = True) -> list[Row]:
    return [
        {
            "run_id": run_id,
            "purgatory": "Produce",
            "broker": broker,
            "watch_key": key,
            "operations": 10 * (broker + 1),
            "expired": 5 * broker,
            "expiry_ratio": 0.5 * broker / (broker + 1),
            "from_us": 500_000 if broker else None,
            "until_us": 1_500_000 if broker else None,
        }
        for broker in (0, 1)
        for key in ([None, f"{run_id}-2", f"{run_id}-10"] if keyed else [None])
    ]


def _audit(run_id: str) -> list[Row]:
    found = [
        ("duplicate", run_id, "violation", "idempotence=true", 2),
        ("retry_reorder", run_id, "permitted", "max_in_flight=5", 7),
        ("key_order_violation", None, "indeterminate", "no effects in the trace", 0),
        ("lost_write", None, "none", None, 0),
    ]
    names = ("anomaly", "group", "verdict", "setting", "count")
    return [{"run_id": run_id, **dict(zip(names, row, strict=True))} for row in found]


def _event(event: str, time_us: int, **columns: Any) -> Row:
    return {**dict.fromkeys(EVENT), "event": event, "time_us": time_us, **columns}


def _witnesses(run_id: str) -> list[Row]:
    place = {"group": run_id, "topic": run_id, "partition": 3}
    events = [
        _event("send", 1000, until_us=1500, outcome="unknown", attempt=1, **place, value_id=77),
        _event("read", 1200, consumer=4, **place, offset=8, value_id=77),
        _event("send", 1600, until_us=2500, outcome="ok", attempt=2, **place, value_id=77),
        _event("effect", 1700, consumer=4, **place, offset=8, key=5, version=2),
        _event("commit", 1800, **place, offset=9),
    ]
    none = dict.fromkeys(("consumer", "key", "sequence", "offset", "setting"))
    return [
        {
            "run_id": run_id,
            "anomaly": anomaly,
            "rank": rank,
            "verdict": verdict,
            **none,
            **place,
            "producer": 1,
            "value_id": 77,
            "count": 1,
            "time_us": 1000,
            "events": events * longer,
        }
        for anomaly, verdict, rank, longer in (
            ("retry_reorder", "permitted", 1, 1),
            ("duplicate", "violation", 1, 1),
            ("duplicate", "violation", 2, 9),
        )
    ]


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


def test_page_loads_nothing_and_has_the_library_once() -> None:
    page = _page("run-1", "run-2")
    tags = _elements(page)
    loading = {"src", "href", "srcset", "data", "action", "poster"}
    links = [attributes["href"] or "" for tag, attributes in tags if tag == "a"]
    assert links and all(link.startswith(("#", "data:text/csv;base64,")) for link in links)
    assert not [
        (tag, attributes) for tag, attributes in tags if loading & attributes.keys() and tag != "a"
    ]
    assert "link" not in {tag for tag, _ in tags}
    policy = next(a for tag, a in tags if tag == "meta" and "http-equiv" in a)["content"]
    assert policy is not None and policy.startswith("default-src 'none';")
    assert "connect-src" not in policy
    assert len(re.findall(r"plotly\.js \(cartesian - minified\) v\d", page)) == 1


def test_plotly_accepts_every_plot_without_changes() -> None:
    page = _page("run-1")
    drawn = re.compile(r'Plotly\.newPlot\("[^"]+", (\[.*?\]), (\{.*?\}), SETTINGS\);</script>')
    plots = drawn.findall(page)
    assert len(plots) == page.count("Plotly.newPlot(") - _page().count("Plotly.newPlot(") == 11
    for data, layout in plots:
        plot = {"data": json.loads(data), "layout": json.loads(layout)}
        taken = json.loads(to_json(Figure(plot)))  # raises for unknown properties
        taken["layout"].pop("template")  # of the Python package
        assert taken == plot


def test_names_are_text_and_never_markup() -> None:
    page = _page(EVIL)
    plain = _page("run-1")
    assert [tag for tag, _ in _elements(page)].count("script") == [
        tag for tag, _ in _elements(plain)
    ].count("script")
    assert "img" not in {tag for tag, _ in _elements(page)}


def test_each_plot_has_a_name_and_a_table_of_its_figures() -> None:
    page = _page("run-1")
    tags = _elements(page)
    labels = [attributes["aria-label"] for _, attributes in tags if attributes.get("role") == "img"]
    assert [(label or "").partition(" in run-1")[0].partition(";")[0] for label in labels] == [
        "Waits over time",
        "Percentiles of the waits of Produce",
        "Percentiles of the waits of Fetch",
        "Throughput and consumer lag over time",
        "Replica lag and ISR over time",
        "Size of each purgatory over time",
        "Distribution of the waits",
        "Produce: expired operations by broker and partition",
        "Shares of outcomes",
        "Timeline of Duplicate 1, retry reorder 1",
        "Timeline of Duplicate 2",
    ]
    tables = [attributes for tag, attributes in tags if tag == "table"]
    assert len(tables) == 10
    assert all(attributes["aria-label"] for attributes in tables)
    row = re.search(r"<td>Fetch \(follower\)</td><td>completed</td>.*", page)
    assert row is not None
    assert re.findall(r'number">([^<]*)<', row[0]) == ["5", "50.00"] + ["6.173"] * 5
    assert "4.000" not in row[0]


def test_columns_do_not_depend_on_later_elements() -> None:
    """Plots take the width that they find when they are read; browsers apply `:has()` later."""
    page = _page("run-1")
    assert '<div class="story beside">' in page
    style = page[page.index("<style>") : page.index("</style>")]
    assert ".story.beside { display: grid" in style and ":has(" not in style


def test_page_of_many_runs_plots_only_the_first_ones() -> None:
    run_ids = [f"run-{number:02}" for number in range(MOST_PLOTTED_RUNS + 2)]
    page = _page(*run_ids)
    assert (
        page.count("Plotly.newPlot(") - _page().count("Plotly.newPlot(") == 11 * MOST_PLOTTED_RUNS
    )
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


def test_map_has_partitions_in_order_and_no_cells_without_waits() -> None:
    rows = [row for row in _expiry("t") if (row["broker"], row["watch_key"]) != (0, "t-10")]
    (heat,) = expiry_map(rows)["data"]
    assert (heat["y"], heat["x"]) == (["t-2", "t-10"], ["0", "1"])
    assert heat["z"] == [[0.0, 25.0], [None, 25.0]]
    assert heat["text"] == [["0.0 %", "25.0 %"], ["", "25.0 %"]]
    (heat,) = expiry_map(_expiry("t", keyed=False))["data"]
    assert (heat["y"], heat["z"]) == (["Produce"], [[0.0, 25.0]])


def test_outcomes_stand_in_the_same_order_in_every_run() -> None:
    rows = [
        {**row, "outcome": outcome}
        for row in label_waits(_waits("run-1"))[:1]
        for outcome in ("new", "pending", "failed", "immediate", "completed", "expired")
    ]
    names = [bar["name"] for bar in outcome_shares(rows)["data"]]
    assert names == ["immediate", "completed", "expired", "failed", "pending", "new"]


def test_plot_leaves_out_unknown_waits() -> None:
    rows = label_waits(_waits("run-1"))
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
@pytest.mark.parametrize(
    ("width", "dark"),
    [(390, True), (2560, False), pytest.param(1280, False, marks=pytest.mark.exhaustive)],
)
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
    assert browser.evaluate("document.title") == "What happened in 2 runs"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    # Each figure became a drawing with its axis title in it.
    titles = browser.evaluate("[...document.querySelectorAll('.xtitle')].map(e => e.textContent)")
    since_start = "time since the start of the run"
    waits = ["start of the operation", "wait", "wait"]
    of_run = [*waits, *[since_start] * 3, "wait", "broker", "operations", *[since_start] * 2]
    assert titles == of_run * 2
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
def test_tables_fit_their_cards_and_headings_are_nested(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    for run_ids in (["slow-follower-1"], ["slow-follower-1", "slow-follower-2"]):
        page.write_text(_page(*run_ids), encoding="utf-8")
        browser.open(page, width=1280)
        browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        widths = (
            "[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth, e.clientWidth])"
        )
        assert all(wide <= card for wide, card in browser.evaluate(widths))
        # No cell of a witness is broken into lines, as places once were, letter by letter.
        heights = "[...document.querySelectorAll('.witness td')].map(e => e.clientHeight)"
        assert max(browser.evaluate(heights)) < 40
        empty = "[...document.querySelectorAll('th')].filter(e => !e.textContent.trim()).length"
        assert browser.evaluate(empty) == 0
        tags = "[...document.querySelectorAll('h1, h2, h3, h4')].map(e => +e.tagName[1])"
        levels = browser.evaluate(tags)
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.browser
def test_cut_off_text_is_noticed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = _page("run-1").replace("<main>", '<main><p style="width: 500px">wide</p>')
    page.write_text(text, encoding="utf-8")
    browser.open(page, width=390)
    assert browser.evaluate(CUT_OFF) == ["wide"]


@pytest.mark.browser
def test_report_prints_as_pdf(browser: Browser, tmp_path: Path) -> None:
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
    assert len(set(on_screen := browser.evaluate(widths))) > 1
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(browser.evaluate(widths)) == {700}
    browser.call("Emulation.setEmulatedMedia", media="screen")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(widths) == on_screen
    pdf = browser.print_pdf()
    assert pdf.startswith(b"%PDF-")
    assert 4 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 15
    outline = [title.decode() for title in re.findall(rb"/Title \(([^)]*)\)", pdf)]
    headings = "[...document.querySelectorAll('title, h1, h2, h3, h4')].map(e => e.textContent)"
    assert sorted(outline) == sorted(browser.evaluate(headings))
    assert {"Waits over time", "Expired operations by place", "Order and duplicates"} < set(outline)
