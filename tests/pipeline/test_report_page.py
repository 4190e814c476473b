"""The page: whole without a network, safe with any name, and drawn by a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from purgatory.pipeline.report import MOST_PLOTTED_RUNS, report_page

Row = dict[str, Any]
EVIL = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
BROWSER_TIMEOUT_S = 60


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
    assert [tag for tag, _ in tags].count("table") == [tag for tag, _ in tags].count("caption") == 3
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


def _browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is not None:
        return found
    reason = f"no browser is installed (one of {', '.join(names)}; Debian: chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.browser
def test_a_browser_draws_the_page_without_a_network(tmp_path: Path) -> None:
    browser = _browser()
    page = tmp_path / "report.html"
    page.write_text(_page(EVIL, "run-2"), encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--virtual-time-budget=10000",
        "--dump-dom",
        page.as_uri(),
    ]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=BROWSER_TIMEOUT_S
    )
    drawn = answer.stdout
    assert "<title>Waits in the purgatory: 2 runs</title>" in drawn
    # Six figures, each of which became a drawing with its axis titles in it.
    assert drawn.count('class="plot-container plotly"') == 6
    for title in ("share of operations, %", "wait, ms", "time, s"):
        assert len(re.findall(rf">{re.escape(title)}</text>", drawn)) == 2
    assert "<img" not in drawn
    console = [line for line in answer.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
