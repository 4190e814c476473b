"""The page of a sweep: its heat maps as plots and tables, whole without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory.sweeps.basis import SweepBasis
from purgatory.sweeps.page import heatmap_plot, sweep_page, sweep_sections
from tests.browser.pipeline.browsing import Browser, headless_browser
from tests.browser.pipeline.test_report_page import CUT_OFF, EVIL

HEAD = {
    "name": "by-hand",
    "description": "",
    "scenario": "tiny",
    "points": 4,
    "basis": SweepBasis(scenarios=8, failed=1, operations=900, records=100),
}


def heatmap(
    means: list[list[float | None]], *, number: int = 0, y: str | None = "followers.lag_ms"
) -> list[dict[str, Any]]:
    """The rows of a heat map: a list of means for each value of y."""
    return [
        {
            "heatmap": number,
            "x_setting": "producers[orders].timeout_ms",
            "y_setting": y,
            "measure": "produce_expiry_ratio",
            "x_level": x_level,
            "x": str(100 * (x_level + 1)),
            "y_level": None if y is None else y_level,
            "y": None if y is None else str(y_level),
            "points": 2,
            "scenarios": 4,
            "failed": 1,
            "mean": mean,
            "seed_sd": None if mean is None else 0.25,
            "least": mean,
            "most": mean,
        }
        for y_level, line in enumerate(means)
        for x_level, mean in enumerate(line)
    ]


def answer(words: str, value: str | None = "400", confirmed: str | None = "400") -> dict[str, Any]:
    """As `Answer.plain` gives it, as far as a page shows it."""
    question = {"measure": "produce_expiry_ratio", "find": "producers[orders].timeout_ms"}
    return {"question": question, "words": words, "value": value, "confirmed": confirmed}


def test_sections_open_with_linked_answers_and_failures() -> None:
    rows = [dict(row, measure="produces") for row in heatmap([[5.0]])]
    rows += heatmap([[0.1, 0.2]], number=1)
    answers = [answer("400 is it."), answer("So is 200.", "200", None), answer("None.", None, None)]
    page = sweep_sections(rows, answers, failed=2)
    said = re.findall(r'<li><span class="mark([^"]*)">(\w+)</span> (.*?) <span', page)
    assert said == [
        (" broken", "incomplete", "2 scenarios failed and are in no mean."),
        ("", "fine", "400 is it."),
        ("", "unclear", "So is 200."),
        ("", "note", "None."),
    ]
    assert page.index("So is 200.") < page.index("produces by")
    links = re.findall(r'<a href="#([^"]*)" aria-label="(\w+): 400', page)
    assert links == [("heatmap-1-of-0", "plot"), ("rows-of-heatmap-1-0", "rows")]
    for place, _ in links:
        assert page.count(f'id="{place}"') == 1
    assert page.count('href="data:text/csv;base64,') == 2


def test_answer_without_a_heatmap_is_linked_to_none() -> None:
    rows = [dict(row, measure="produces") for row in heatmap([[5.0]])]
    assert 'href="#' not in sweep_sections(rows, [answer("400 is it.")])


def test_a_heat_map_has_a_cell_for_each_pair_of_values() -> None:
    figure = heatmap_plot(heatmap([[0.1, 0.2, 0.3], [0.4, None, 0.5]]))
    (data,) = figure["data"]
    assert data["z"] == [[0.1, 0.2, 0.3], [0.4, None, 0.5]]
    assert (data["x"], data["y"]) == (["100", "200", "300"], ["0", "1"])
    assert data["text"][1] == ["0.4", "", "0.5"]
    assert "± 0.25 between seeds" in data["customdata"][0][0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "producers[orders].timeout_ms"
    assert figure["layout"]["annotations"][0]["text"] == "followers.lag_ms"


def test_means_that_lie_far_apart_are_colored_by_powers_of_ten() -> None:
    (data,) = heatmap_plot(heatmap([[0.001, 1.0], [0.1, 0.01]]))["data"]
    assert data["z"] == [[pytest.approx(-3), 0.0], [pytest.approx(-1), pytest.approx(-2)]]
    assert (
        dict(zip(data["colorbar"]["tickvals"], data["colorbar"]["ticktext"], strict=True))[0] == "1"
    )
    (data,) = heatmap_plot(heatmap([[0.0, 1.0], [0.1, 0.01]]))["data"]
    assert data["z"][0] == [0.0, 1.0]


def test_a_heatmap_over_one_setting_is_a_line_with_its_spread() -> None:
    (data,) = heatmap_plot(heatmap([[0.1, None, 0.3]], y=None))["data"]
    assert (data["x"], data["y"]) == (["100", "300"], [0.1, 0.3])
    assert data["error_y"]["array"] == [0.25, 0.25]


def test_each_plot_of_the_sweep_page_has_a_table() -> None:
    page = sweep_sections(heatmap([[0.125, None]]), [])
    table = re.search(r"<table .*?</table>", page, re.DOTALL)
    assert table is not None
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table[0])
    assert cells[:8] == ["100", "0", "0.125", "0.25", "0.125", "0.125", "4", "1"]
    assert cells[10] == "-"


def test_heatmap_without_values_has_only_its_table() -> None:
    sections = sweep_sections(heatmap([[None, None]]), [])
    assert "plotly" not in sections.lower() and sections.count("<table ") == 1


def test_text_of_others_is_never_markup() -> None:
    rows = heatmap([[0.1, 0.2]])
    for row in rows:
        row["x"] = EVIL
    failures = [{"settings": EVIL, "seed": 1, "error": EVIL}]
    page = sweep_page(HEAD | {"description": EVIL}, rows, [answer(EVIL)], failures)
    assert "<script>document" not in page and "<img" not in page.split("<main>")[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with headless_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_a_browser_draws_the_page_alone(
    browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    rows = heatmap([[0.001, 0.2, 0.3], [0.4, None, 0.5]])
    rows += heatmap([[0.1, None, 0.3]], number=1, y=None)
    words = "400 is the smallest producers[orders].timeout_ms with produce_expiry_ratio below 0.1."
    failures = [{"settings": "topic.partitions = 1", "seed": 3, "error": "a" * 300}]
    page = tmp_path / "sweep.html"
    page.write_text(sweep_page(HEAD, rows, [answer(words)], failures), encoding="utf-8")
    browser.console.clear()
    browser.requests.clear()
    browser.open(page, width=width, dark=dark)
    assert browser.console == []
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.as_uri()}
    assert browser.evaluate("document.querySelectorAll('.js-plotly-plot .main-svg').length") > 0
    assert browser.evaluate("document.querySelectorAll('.hm image').length") == 1
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(CUT_OFF) == []
