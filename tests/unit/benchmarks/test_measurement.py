"""The benchmarks' measuring and their tables; `make bench SMALL=1` sees whether each still runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.benchmarks import run
from tests.benchmarks.cost_plot import draw
from tests.benchmarks.large_traces import expected_counts, write_large_trace
from tests.benchmarks.measurement import Figure, in_turns, table
from tests.benchmarks.plain_audit import plain_counts
from tests.benchmarks.planted_blocks import Shape

HELPERS = {
    "measurement",
    "cluster_clients",
    "cluster_members",
    "cluster_producers",
    "large_traces",
    "live_load",
    "plain_audit",
    "planted_blocks",
    "planted_rows",
    "plain_stream",
    "trace_rows",
    "world_programs",
    "world_kafka_programs",
    "rivals",
    "core_instructions",
    "cost_plot",
    "kafka_classes",
    "long_poll_server",
    "run",
}


def test_run_includes_each_benchmark() -> None:
    scripts = {path.stem for path in Path(run.__file__).parent.glob("*.py")}
    assert scripts - HELPERS == set(run.BENCHMARKS)


def test_figure_of_a_benchmark_is_a_finite_number() -> None:
    assert run.faults([Figure("pause", 2, "ms", 3)]) == []
    assert run.faults([]) == ["it has no figures"]
    assert run.faults([Figure("pause", 2, "ms"), Figure("pause", math.inf, "ms")]) == [
        "two figures are called 'pause'",
        "'pause' is inf",
        "no figure has a target",
    ]


@pytest.mark.own_process
def test_failing_benchmark_is_named_and_not_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BENCHMARKS", ("none_such",))
    assert run.main(["none_such"]) == 1
    assert "failed: none_such" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["none_such"])
    assert "no benchmark 'none_such'" in capsys.readouterr().err


def test_target_is_an_upper_or_a_lower_bound() -> None:
    assert Figure("pause", 2, "ms", 3).met is True
    assert Figure("pause", 4, "ms", 3).met is False
    assert Figure("speed", 4, "op/s", 3, "higher").met is True
    assert Figure("speed", 2, "op/s", 3, "higher").met is False
    assert Figure("speed", 2, "op/s").met is None


def test_table_marks_missed_targets() -> None:
    lines = table([Figure("pause", 4, "ms", 3), Figure("speed", 1_500.4, "op/s")]).splitlines()
    assert lines[0].split() == ["pause", "4", "ms", "at", "most", "3", "NOT", "MET"]
    assert lines[1].split() == ["speed", "1,500", "op/s"]


def test_contenders_run_in_turns_and_their_medians_count() -> None:
    order: list[str] = []
    values = {"first": iter([1.0, 9.0, 2.0]), "second": iter([5.0, 6.0, 7.0])}

    def measured(name: str) -> dict[str, float]:
        order.append(name)
        return {"ms": next(values[name])}

    found = in_turns({name: lambda name=name: measured(name) for name in values}, rounds=3)  # type: ignore[misc]
    assert order == ["first", "second", "second", "first", "first", "second"]
    assert found == {"first": {"ms": 2.0}, "second": {"ms": 6.0}}


def test_the_plot_shows_every_rival(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    costs = {name: {1_000: 1.0, 10_000: 2.0} for name in ("wheel", "heap", "loop", "table")}
    draw(costs, path)
    drawn = path.read_text()
    assert all(f"<!-- {name} -->" in drawn for name in costs)
    draw(costs, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn


@pytest.mark.parametrize("transactions", [True, False])
def test_plain_sql_counts_the_planted_anomalies(transactions: bool, tmp_path: Path) -> None:
    shape = Shape(20_000, planted=7, transactions=transactions)
    write_large_trace(tmp_path / "trace", shape)
    assert plain_counts(tmp_path / "trace") == expected_counts(shape)
