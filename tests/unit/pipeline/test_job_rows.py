"""The rows of the jobs: their options, and the terminal's tables, against the job's results."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from purgatory.cli.main import main
from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.jobs.registry import JOBS, STREAM, SWEEP, Job


@pytest.mark.parametrize(
    ("job", "option", "refusal"),
    [
        ("waits", {"percentiles": "nearly"}, "percentiles must be 'exact' or 'approximate'"),
        ("waits", {"slowest": 0}, "slowest must be 1 or more, not 0"),
        ("waits", {"window_us": 0}, "window_us must be 1 microseconds or more, not 0"),
        ("waits", {"slowest": 10**20}, f"slowest must be 1000000000 or less, not {10**20}"),
        ("waits", {"slowest": None}, "slowest must be 1 or more, not None"),
        ("occupancy", {"hot_keys": -1}, "hot_keys must be 1 or more, not -1"),
        ("audit", {"expect": ["order", "luck"]}, "expect takes 'order', .*, not 'luck'"),
        ("audit", {"witnesses": -1}, "witnesses must be 0 or more, not -1"),
        ("audit", {"witnesses": True}, "witnesses must be 0 or more, not True"),
        ("audit", {"expect": "order"}, "expect must be a list of words, not 'order'"),
        ("audit", {"expect": 5}, "expect must be a list of words, not 5"),
        ("analyze", {}, "analyze writes a page beside its tables: give it a folder"),
        ("analyse", {}, "there is no job 'analyse'; did you mean \"analyze\""),
    ],
)
def test_an_option_is_checked_before_anything_is_read(
    job: str, option: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ValueError, match=refusal):
        run_job(job, [Path("nowhere")], engine="duckdb", **option)


def test_a_job_names_its_options() -> None:
    with pytest.raises(TypeError, match="waits has no option 'window'; it has window_us, perc"):
        run_job("waits", [Path("nowhere")], engine="duckdb", window=1)


@pytest.mark.parametrize("job", [*JOBS.values(), STREAM, SWEEP], ids=attrgetter("name"))
def test_the_help_of_a_command_has_the_options_of_its_job(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([job.name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert job.help[:50] in shown
    for option, described in job.options.items():
        assert f"--{option.removesuffix('_us').replace('_', '-')} " in shown
        assert described.help[:30] in shown


def test_tables_of_the_terminal_have_columns_of_the_results(slow_follower_trace: Path) -> None:
    seen = 0
    for name, job in JOBS.items():
        shown = {view: one.terminal for view, one in job.views.items() if one.terminal is not None}
        if not shown:
            continue
        options: dict[str, Any] = {"window_us": 1_000_000} if name == "waits" else {}
        results = run_job(name, [slow_follower_trace], engine="duckdb", **options)
        for view, table in shown.items():
            rows = (
                results.rows[view]
                or run_job(name, [slow_follower_trace], engine="duckdb").rows[view]
            )
            assert rows, view
            assert {column for column, _ in table.columns.values()} <= rows[0].keys()
            seen += 1
    assert seen == 4
