"""Two groups of runs on one page: differences are reported, and random variation is not."""

from __future__ import annotations

import random
import re
from html import unescape
from pathlib import Path

import pytest

from purgatory.pipeline.confidence_intervals import t_quantile, welch_half_width
from purgatory.pipeline.report.comparison import (
    Comparison,
    Figure,
    compare,
    comparison_findings,
    comparison_section,
    two_groups,
)
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.page import PagePart
from purgatory.pipeline.result_rows import Row
from tests.browser.pipeline.browsing import headless_browser
from tests.browser.pipeline.conftest import Compared
from tests.browser.pipeline.test_report_page import CUT_OFF


def _run(scenario: str, seed: int, complete: bool = True) -> Row:
    run_id = f"{scenario}-{seed}"
    named = {"run_id": run_id, "scenario": scenario, "seed": seed, "complete": complete}
    return {**named, "sends": 1_000, "folder": f"/traces/{scenario[0]}/{run_id}"}


def _runs(scenario: str, number: int) -> list[Row]:
    return [_run(scenario, seed) for seed in range(1, number + 1)]


EXPIRED = Figure("The share that expired", "%")
GROUPS = {"a": _runs("a", 3), "b": _runs("b", 3)}


def _said(groups: dict[str, list[Row]], figures: list[Comparison]) -> list[str]:
    return [one.text for one in comparison_findings(groups, figures)]


def test_comparison_prefers_folders_then_scenarios_then_runs() -> None:
    runs = [*_runs("steady", 2), *_runs("late", 2)]
    assert list(two_groups(runs)) == ["steady", "late"]
    assert list(two_groups(runs, ["/traces/l", "/traces/s"])) == ["late", "steady"]
    assert two_groups([*runs, _run("third", 1)]) == {}
    assert list(two_groups(runs[:2])) == ["steady-1", "steady-2"]
    same = [{**run, "folder": f"/traces/{run['seed'] % 2}/x"} for run in _runs("steady", 4)]
    folders = {"/traces/1": [1, 3], "/traces/0": [2, 4]}
    found = two_groups(same, list(folders))
    assert {name: [run["seed"] for run in of] for name, of in found.items()} == folders
    assert two_groups(same, ["/traces/1", "/other"]) == {}, "a run in neither"
    assert two_groups(runs[:1]) == {}


def test_interval_is_welchs() -> None:
    # Variances 1 and 4, three of each: errors 1/3 and 4/3, 25/9 / (1/18 + 16/18) = 2.94 degrees.
    half = welch_half_width([1, 2, 3], [8, 10, 12], 0.95)
    assert half == pytest.approx(t_quantile(0.975, 2) * (5 / 3) ** 0.5)
    assert welch_half_width([1], [2, 3], 0.95) is None
    assert welch_half_width([1, 1], [2, 2], 0.95) is None, (
        "variances of 0 tell nothing of other runs"
    )


def test_differences_are_reported_with_their_sizes() -> None:
    figures = [
        Comparison(EXPIRED, [1.0, 1.1, 1.2], [3.0, 3.1, 3.2], 0.5),
        Comparison(Figure("The median", "ms"), [30.0] * 3, [15.0, 15.1, 14.9], 1.0),
        Comparison(Figure("The p99", "ms"), [100.0, 300.0, 200.0], [150.0, 350.0, 250.0], 190.0),
    ]
    assert _said(GROUPS, figures) == [
        "The share that expired: 1.10 % in a, 3.10 % in b, which is 1.50 to 2.50 points more.",
        "The median: 30.0 ms in a, 15.0 ms in b, which is 14.0 to 16.0 ms less.",
        "1 of 3 figures do not differ significantly: 3 runs of a and 3 runs of b.",
    ]
    assert _said(GROUPS, figures[2:]) == [
        "None of 1 figures differs significantly: 3 runs of a and 3 runs of b. That does not show "
        "that they are the same; the table has the intervals."
    ]


def test_comparison_of_single_runs_has_no_significance() -> None:
    groups = {"a": _runs("a", 1), "b": _runs("b", 4)}
    figures = [Comparison(EXPIRED, [0.0], [1.0, 1.0, 1.0, 1.0], None)]
    assert _said(groups, figures) == [
        "Significance is unknown with 1 run of a and 4 runs of b: it takes at least two of each, "
        "with different seeds, and better five.",
        "The share that expired: 0 % in a, 1.00 % in b, in these runs.",
    ]


def test_comparison_names_incomplete_runs() -> None:
    groups = {"a": [_run("a", 1), _run("a", 2, complete=False)], "b": _runs("b", 2)}
    said = _said(groups, [Comparison(EXPIRED, [0.0, 1.0], [1.0, 0.0], 9.0)])
    assert said[0] == "1 of 4 runs are incomplete, and compared as far as they go."


def _with_audit(run: Row, counts: dict[str, int]) -> Results:
    rows = [{"run_id": run["run_id"], "anomaly": name, "count": n} for name, n in counts.items()]
    return Results([run], audit=rows)


def test_duplicate_of_a_lost_response_counts_in_one_figure() -> None:
    by_run = {
        run["run_id"]: _with_audit(run, {"duplicate": 4, "lost_ack_duplicate": 4, "lost_write": 0})
        for runs in GROUPS.values()
        for run in runs
    }
    [one] = compare(GROUPS, by_run)
    assert one.figure.name == "The number of cases of duplicate per 1,000 sends"
    assert one.means == (4.0, 4.0)
    assert not one.differs
    assert (
        comparison_section(PagePart(0), GROUPS, {n: Results(r.runs) for n, r in by_run.items()})
        == ""
    )


@pytest.mark.parametrize("skewed", [False, True])
def test_random_variation_is_seldom_reported_as_a_difference(skewed: bool) -> None:
    """Of 300 pairs of groups that differ by chance alone, each with 15 figures."""
    chance = random.Random(1)
    wrong = 0
    for _ in range(300):
        by_run = {}
        for run in (*GROUPS["a"], *GROUPS["b"]):
            drawn = (chance.expovariate(1) if skewed else chance.gauss(9, 1) for _ in range(15))
            by_run[run["run_id"]] = _with_audit(run, {f"n{n}": x for n, x in enumerate(drawn)})  # type: ignore[misc]
        wrong += any(one.differs for one in compare(GROUPS, by_run))
    assert wrong <= 0.05 * 300


def _told(report: Path) -> list[str]:
    page = unescape((report / "report.html").read_text(encoding="utf-8"))
    found = re.search(r"<h2>Differences from .*?</section>", page, re.S)
    assert found, "it has the section"
    assert page.index("<h2>Runs") > found.end(), "and it leads"
    return re.findall(r"<li><span class=\"mark[^>]*>[^<]*</span> ([^<]*?) *<span", found[0])


@pytest.mark.slow
def test_comparison_finds_no_difference_between_seeds(compared: Compared) -> None:
    [said] = _told(compared("one", "other"))
    assert re.match(r"None of \d+ figures differs significantly: 3 ", said)


@pytest.mark.slow
def test_comparison_finds_the_expiries_of_a_slow_follower(compared: Compared) -> None:
    said = _told(compared("one", "slow"))
    told = [
        one for one in said if one.startswith("The share of operations in Produce that expired")
    ]
    assert len(told) == 1
    assert re.search(
        r": 0 % in steady, \S+ % in slow-follower, which is .* points more\.$", told[0]
    )


@pytest.mark.slow
def test_comparison_of_two_runs_has_no_significance(compared: Compared) -> None:
    said = _told(compared("one/1", "slow/1"))
    assert said[0].startswith("Significance is unknown with 1 run")
    assert not [one for one in said if "which is" in one]


@pytest.mark.browser
@pytest.mark.exhaustive  # by day test_pages_in_browser looks at a comparison of two runs
def test_a_comparison_fits_any_screen(compared: Compared, tmp_path: Path) -> None:
    report = compared("one", "other") / "report.html"
    with headless_browser(tmp_path / "profile") as browser:
        for width in (390, 1280):
            browser.open(report, width=width)
            assert browser.evaluate("document.documentElement.scrollWidth") == width
            assert browser.evaluate(CUT_OFF) == []
