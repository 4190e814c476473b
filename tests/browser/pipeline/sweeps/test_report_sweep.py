"""A sweep's heat maps and answers in the report of an analysis."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.report import report_page
from purgatory.sweeps.basis import SweepBasis
from purgatory.sweeps.page import read_results
from tests.browser.pipeline.browsing import headless_browser
from tests.browser.pipeline.test_report_page import CUT_OFF

HALF = SweepBasis(scenarios=3, failed=1, operations=6, records=2)


def write_sweep(folder: Path, basis: SweepBasis | None = HALF) -> Path:
    """The results of a sweep over two settings, the rows of its heat map in no order."""
    rows = [
        {
            "heatmap": 0,
            "x_setting": "followers.lag_ms",
            "y_setting": "producers[orders].timeout_ms",
            "measure": "produce_expiry_ratio",
            "x_level": x,
            "x": str(10 * (x + 1)),
            "y_level": y,
            "y": str(200 * (y + 1)),
            "points": 1,
            "scenarios": 2,
            "failed": 0,
            "mean": 0.1 * x + 0.01 * y,
            "seed_sd": 0.001,
            "least": 0.0,
            "most": 1.0,
        }
        for x in (2, 0, 1)
        for y in (1, 0)
    ]
    (folder / "heatmaps").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "heatmaps" / "part-0.parquet")
    (folder / "answers.json").write_text(json.dumps([]), encoding="utf-8")
    failures = [{"settings": "followers.lag_ms = 10", "seed": 3, "error": "ScenarioError: many"}]
    judged = {} if basis is None else {"basis": asdict(basis), "failures": failures[: basis.failed]}
    (folder / "sweep.json").write_text(json.dumps(judged), encoding="utf-8")
    return folder


def _run() -> dict[str, object]:
    names = {"scenario": "by-hand", "seed": 1, "complete": True, "duration_us": 1, "faults": []}
    return {"run_id": "run-1", "bucket_width_us": 1, "operations": 0, **names}


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_the_heatmaps_in_the_report(tmp_path: Path, width: int) -> None:
    sections = read_results(write_sweep(tmp_path / "my <sweep>")).sections()
    page = tmp_path / "report.html"
    page.write_text(report_page(Results([_run()]), [sections]), encoding="utf-8")
    with headless_browser(tmp_path / "profile") as browser:
        browser.open(page, width=width)
        assert browser.console == []
        headings = browser.evaluate("[...document.querySelectorAll('h2')].map(e => e.textContent)")
        assert headings == ["Sweep my <sweep>", "In short"]
        verdict = browser.evaluate("document.querySelector('h2 + .verdict').textContent")
        assert verdict == (
            "Judged: 2 of 3 scenarios, 6 operations, 2 records; left out: 1 scenario (failed)."
        )
        assert "ScenarioError: many" in browser.evaluate("document.body.innerText")
        assert browser.evaluate("document.querySelectorAll('.heatmaplayer image').length") == 1
        assert browser.evaluate(CUT_OFF) == []
        assert browser.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("lacking", ["heatmaps", "answers.json", "sweep.json", "answer"])
def test_folder_without_a_sweep_is_an_error(tmp_path: Path, lacking: str) -> None:
    folder = write_sweep(tmp_path / "sweep")
    if lacking == "heatmaps":
        (folder / "heatmaps" / "part-0.parquet").unlink()
        (folder / "heatmaps").rmdir()
    elif lacking.endswith(".json"):
        (folder / lacking).unlink()
    else:
        (folder / "answers.json").write_text("[", encoding="utf-8")
    with pytest.raises(PipelineError, match=r"holds no results of a sweep .*; make them with"):
        read_results(folder)
