"""The pages of --report: with sentences, each case once, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from purgatory.cli.main import main


def _paged(job: str, traces: Path, page: Path, *more: str) -> str:
    options = ["--engine", "duckdb", "--no-progress", "--report", str(page)]
    assert main([job, str(traces), *options, *more]) == 0
    return page.read_text(encoding="utf-8")


def _said(page: str) -> list[str]:
    return re.findall(r"<li><span class=\"mark[^>]*>[^<]*</span> ([^<]*?) *<span", page)


@pytest.mark.slow
def test_wait_section_begins_with_expired_operations(simulated: Path, tmp_path: Path) -> None:
    page = _paged("waits", simulated / "slow-follower", tmp_path / "waits.html")
    assert _said(page) == [
        "58 of 4,867 produces (1.2 %) timed out. Each waited 1.5 s. This was from 4.0 s to 8.0 s "
        "into the run, while the follower on broker 2 was stalled (4.0 s to 8.0 s). The follower "
        "was still in the ISR, so acks=all waited for it. The leader had appended all of them.",
        "21 of 11,454 fetches (0.2 %) returned at fetch.max.wait.ms with less than "
        "fetch.min.bytes. Each waited 501 ms. This was from 4.0 s to 8.0 s into the run, while the "
        "follower on broker 2 was stalled (4.0 s to 8.0 s).",
    ]
    assert "Expired operations by place</h3>" in page
    assert "The slowest</h3>" in page
    assert [one.name for one in tmp_path.iterdir()] == ["waits.html"]


def test_page_of_windows_does_not_call_the_run_empty(simulated: Path, tmp_path: Path) -> None:
    page = _paged("waits", simulated / "steady", tmp_path / "waits.html", "--window", "500ms")
    assert "Waits over time</h3>" in page
    assert "no operations" not in page


def test_the_occupancy_opens_with_its_peaks_and_draws_them(simulated: Path, tmp_path: Path) -> None:
    page = _paged("occupancy", simulated / "slow-follower", tmp_path / "parked.html")
    assert _said(page) == [
        "Peak pending: 9 operations in Fetch, at 0.0 s of the run; 9 had come in the "
        "0.3 ms before, where 0.3 are usual.",
        "Peak pending: 42 operations in Produce, at 6.6 s of the run, while the follower "
        "on broker 2 was stalled (4.0 s to 8.0 s); 8 had come in the 50.0 ms before, where 20.2 "
        "are usual.",
    ]
    assert "Pending operations over time</h3>" in page
    assert "click on a broker" not in page, "there are rows over all brokers alone"


def test_audit_section_shows_each_case_once(simulated: Path, tmp_path: Path) -> None:
    page = _paged("audit", simulated / "slow-follower", tmp_path / "audit.html")
    assert _said(page) == [
        "40 records are stored more than once, sent again because no response came, the first at "
        "4.0 s, right before the follower on broker 2 was stalled (4.0 s to 8.0 s). The settings "
        "permit this (idempotence=false).",
    ]
    assert "duplicate, 40 after a lost response" in page
    assert "<h4>Duplicate 1</h4>" in page
    assert "<h4>Lost ack duplicate" not in page, "the same cases again"
    assert "no operations" not in page
    assert "waits" not in "".join(_said(page))


def test_page_is_written_if_a_violation_ends_the_command(
    simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "audit.html"
    options = ["--engine", "duckdb", "--expect", "once", "--report", str(page)]
    assert main(["audit", str(simulated / "slow-follower"), *options]) == 1
    assert "40 violations in 1 of 1 run" in capsys.readouterr().out, "a case counts once"
    assert _said(page.read_text(encoding="utf-8"))[0] == (
        "40 records are stored more than once, sent again because no response came, the first at "
        "4.0 s, right before the follower on broker 2 was stalled (4.0 s to 8.0 s). This violates "
        "the guarantees (once expected, in spite of idempotence=false)."
    )


def test_a_run_may_have_any_id(tmp_path: Path) -> None:
    operation = {
        "broker": 1,
        "purgatory": "Produce",
        "operation": 1,
        "keys": 1,
        "timeout_ms": 1_500,
        "start_us": 10,
        "end_us": 50,
        "outcome": "completed",
        "kind": "producer",
    }
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 3, "run_id": "a\0'b"}))
    (tmp_path / "operations.jsonl").write_text(json.dumps(operation))
    assert "Produce" in _paged("waits", tmp_path, tmp_path / "waits.html")


def test_audit_section_reports_no_anomalies(simulated: Path, tmp_path: Path) -> None:
    page = _paged("audit", simulated / "steady", tmp_path / "audit.html")
    assert "Nothing went wrong: no record was lost, duplicated or reordered." in _said(page)


def test_audit_of_an_interrupted_run_names_sends_and_no_waits(
    simulated: Path, tmp_path: Path
) -> None:
    shutil.copytree(simulated / "steady", tmp_path / "steady")
    head = tmp_path / "steady" / "run.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "complete": False}))
    page = _paged("audit", tmp_path / "steady", tmp_path / "audit.html")
    assert _said(page)[0] == (
        "The trace is incomplete: records that were sent or read after it broke off are missing."
    )
    assert "Nothing went wrong" not in page


@pytest.mark.parametrize("job", ["waits", "occupancy", "audit"])
def test_existing_page_is_kept_unless_replacement_is_allowed(
    job: str, simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("earlier")
    assert main([job, str(simulated), "--engine", "duckdb", "--report", str(page)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert page.read_text() == "earlier"
    assert _paged(job, simulated, page, "--overwrite").count("<h2 ") == 2
    assert main([job, str(simulated), "--engine", "duckdb", "--report", str(tmp_path / "x/y")]) == 2


@pytest.mark.parametrize("job", ["waits", "occupancy", "audit"])
def test_links_lead_to_written_parquet_alone(job: str, simulated: Path, tmp_path: Path) -> None:
    out = tmp_path / "a result"
    beside, within = tmp_path / "page.html", out / "report.html"
    assert "Parquet</a>" not in _paged(job, simulated / "slow-follower", beside)
    for page in (beside, within):
        text = _paged(job, simulated / "slow-follower", page, "--out", str(out), "--overwrite")
        links = re.findall(r'href="([^"#:]+)">Parquet</a>', text)
        assert links
        for link in links:
            assert len(pq.read_table(page.parent / unquote(link)))
        csv = re.findall(r'download="([a-z_]+)\.csv"', text)
        assert len(csv) == len(links), "each table has both"
    assert {one.name for one in tmp_path.iterdir()} == {"a result", "page.html"}


def test_a_page_among_the_results_has_its_name_there(
    simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in ("page.html", "waits/report.html"):
        options = ["--out", str(tmp_path / "out"), "--report", str(tmp_path / "out" / page)]
        assert main(["waits", str(simulated), "--engine", "duckdb", *options]) == 2
        assert "out/report.html, or outside of --out" in capsys.readouterr().err


def test_full_disk_is_reported_with_the_page(
    simulated: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_text(path: Path, *_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", write_text)
    out = ["--engine", "duckdb", "--no-progress", "--out", str(tmp_path / "out")]
    assert main(["analyze", str(simulated / "slow-follower"), *out]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("results/report.html: can't be written: No space left on device")
    assert list(tmp_path.iterdir()) == []
