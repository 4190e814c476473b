"""A comparison tells right laws from wrong ones, on scenarios that meet what a law assumes."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from purgatory.simulation import apply_overrides, load_scenario
from purgatory.simulation.broker import Broker
from purgatory.simulation.distributions import TABLE_SIZE, exponential_table, log_normal_table
from purgatory.simulation.network import Request
from purgatory.trace.table_rows import SendRow
from tests.theory.comparison import (
    COLUMNS,
    PLOT,
    TABLE,
    Comparison,
    compare,
    joint_confidence,
    main,
)
from tests.theory.experiments import (
    EXPERIMENTS,
    LAG_MS,
    NETWORK_MS,
    SERVICE_MS,
    WARM_UP_MS,
    Experiment,
    KeptRun,
    mean_ms,
    mean_present,
    rate_and_time,
    records_under_way,
    run,
)
from tests.theory.laws import exponential_queue_ms, log_normal_moments, queue_ms

BY_NAME = {one.name: one for one in EXPERIMENTS}
SURE = 0.999
DOCUMENT = Path(__file__).parents[2] / "docs" / "theory.md"
RESULTS = Path(__file__).with_name("results.md")


def kept_run(name: str, value: float, duration_ms: int = 5_000) -> KeptRun:
    return run(apply_overrides(BY_NAME[name].scenario(value), seed=7, duration_ms=duration_ms))


def at(name: str, value: float, law: Callable[[float], float] | None = None) -> Experiment:
    """An experiment at one value, with another law if one is given."""
    one = replace(BY_NAME[name], values=(value,))
    return one if law is None else replace(one, law=law)


def constant_law(utilisation: float) -> float:
    return queue_ms(utilisation / SERVICE_MS, log_normal_moments(SERVICE_MS, SERVICE_MS))


def exponential_law(utilisation: float) -> float:
    return exponential_queue_ms(utilisation / SERVICE_MS, SERVICE_MS)


def half_a_cycle_and_a_whole(interval_ms: float) -> float:
    """Without the paradox of inspection."""
    return 1.5 * (log_normal_moments(*LAG_MS).mean + 2 * NETWORK_MS + interval_ms)


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("constant-queue", 0.5, exponential_law),
        ("exponential-queue", 0.5, constant_law),
        ("fetch-cycle", 0.0, half_a_cycle_and_a_whole),
        ("two-fetch-cycles", 5.0, BY_NAME["fetch-cycle"].law),
        ("slower-of-two", 5.0, lambda p75: log_normal_moments(4.0, p75).mean + 2 * NETWORK_MS),
    ],
)
def test_interval_covers_the_right_law_and_no_wrong_one(
    name: str, value: float, wrong: Callable[[float], float]
) -> None:
    [right] = compare(at(name, value), seeds=6, duration_ms=6_000)
    assert right.covers(SURE), right
    [sabotaged] = compare(at(name, value, wrong), seeds=6, duration_ms=6_000)
    assert not sabotaged.covers(), sabotaged


def test_comparison_detects_parallel_service_of_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute = Broker._execute

    def not_busy(self: Broker, request: Request) -> None:
        execute(self, request)
        request.connection.busy = False

    monkeypatch.setattr(Broker, "_execute", not_busy)
    [found] = compare(at("constant-queue", 0.5), seeds=3, duration_ms=5_000)
    assert not found.covers(SURE), found


def test_littles_law_with_a_fault_holds_only_with_the_time_of_retries() -> None:
    kept = run(load_scenario("slow-follower"))
    rate, time_ms = rate_and_time(kept)
    assert records_under_way(kept) == pytest.approx(rate * time_ms, rel=0.005)
    attempt_ms = kept.summary["producers"][0]["latency_us"]["attempt"]["mean"] / 1_000
    assert records_under_way(kept) > 2 * rate * attempt_ms


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_experiments_have_no_retries_and_no_missing_responses(one: Experiment) -> None:
    """But for the shipped scenario, of which that is the point."""
    kept = run(apply_overrides(one.scenario(one.values[-1]), seed=1, duration_ms=5_000))
    [group] = kept.summary["producers"]
    assert group["acknowledged"] == group["records"] > 50
    assert bool(group["retries"]) == (one.law is None)


def test_constant_service_serves_one_request_at_a_time() -> None:
    sends = sorted(kept_run("constant-queue", 0.8).sends, key=lambda row: row.served_us or 0)
    for row, after in pairwise(sends):
        assert row.settled_us is not None and row.served_us is not None
        assert abs(row.settled_us - row.served_us - 1_000 * SERVICE_MS) <= 1
        assert after.served_us is not None and row.settled_us <= after.served_us


def test_exponential_service_serves_one_request_at_a_time() -> None:
    sends = sorted(kept_run("exponential-queue", 0.8).sends, key=lambda row: row.send_us)
    for before, row in pairwise(sends):
        assert before.answer_us is not None and before.answer_us <= row.send_us
    mean = sum((row.answer_us or 0) - row.send_us for row in sends) / len(sends) / 1_000
    assert mean == pytest.approx(SERVICE_MS, rel=0.1)


def test_both_followers_wait_when_records_arrive() -> None:
    for row in kept_run("slower-of-two", 6.0, 60_000).sends:
        assert row.served_us == row.arrived_us
        assert row.settled_us is not None and row.settled_us - row.created_us < 50_000  # type: ignore[operator]


@pytest.mark.parametrize("name", ["fetch-cycle", "two-fetch-cycles"])
def test_few_records_queue_behind_others_of_their_producer(name: str) -> None:
    """`docs/theory.md` bounds what these do to the mean."""
    sends = kept_run(name, 40.0, 30_000).sends
    queued = sum(row.served_us != row.arrived_us for row in sends)
    assert queued / len(sends) < 0.005


def table_moments(table: tuple[int, ...]) -> tuple[float, float]:
    return sum(table) / TABLE_SIZE, sum(one * one for one in table) / TABLE_SIZE


def test_truncation_of_sampling_tables_is_as_documented() -> None:
    mean, square = table_moments(exponential_table(1e9))
    assert mean == pytest.approx(1e9, rel=1e-6)
    assert 1 - 5e-4 < square / 2e18 < 1
    of_law = log_normal_moments(4.0, 6.0)
    mean, square = table_moments(log_normal_table(4.0, 6.0, 1e6))
    assert 1 - 2e-4 < mean / of_law.mean / 1e6 < 1
    assert 1 - 2e-3 < square / of_law.mean_square / 1e12 < 1


def row(created_us: int, send_us: int, answer_us: int) -> SendRow:
    sent = SendRow("g", 0, 0, 1, 0, 0, 1, "ok", None, send_us, answer_us, "t", 0, 0, 1)
    return sent._replace(created_us=created_us)


def test_estimates_begin_after_the_warm_up() -> None:
    begin = WARM_UP_MS * 1_000
    rows = [row(begin - 1, begin - 1, begin + 900_000), row(begin, begin + 5_000, begin + 500_000)]
    kept = KeptRun(rows, {"seed": 1}, WARM_UP_MS + 1_000)
    assert mean_ms("created_us", "send_us")(kept) == 5.0
    assert mean_present("send_us", "answer_us")(kept) == pytest.approx(0.495 + 0.9, abs=0.02)
    with pytest.raises(ValueError, match="no record arrived after the first 1000 ms"):
        mean_ms("created_us", "send_us")(KeptRun(rows[:1], {}, 2_000))


def test_joint_interval_is_wider_than_students() -> None:
    made = Comparison(
        "one", 1.0, theory=10.0, simulated=10.27, standard_error=0.1, seeds=5, sends=9
    )
    assert made.half_width() == pytest.approx(0.27764, abs=1e-5)  # t is 2.776445 with four
    assert made.covers() and not replace(made, simulated=10.28).covers()
    assert joint_confidence([made] * 10) == pytest.approx(0.995)
    assert replace(made, simulated=10.4).covers(joint_confidence([made] * 10))


def test_experiments_have_distinct_seeds_and_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def noted(loaded: object, *, seed: int, duration_ms: int | None) -> None:
        seen.append(seed)

    monkeypatch.setattr("tests.theory.comparison.apply_overrides", noted)
    monkeypatch.setattr("tests.theory.comparison.run", lambda _: KeptRun([], {}, 0))
    for one in EXPERIMENTS:
        told = replace(one, estimate=lambda _: 1.0, law=lambda _: 1.0)
        monkeypatch.setattr("tests.theory.comparison.EXPERIMENTS", EXPERIMENTS)
        index = EXPERIMENTS.index(one)
        changed = (*EXPERIMENTS[:index], told, *EXPERIMENTS[index + 1 :])
        monkeypatch.setattr("tests.theory.comparison.EXPERIMENTS", changed)
        assert all(found.covers() for found in compare(told, seeds=3))
    assert len(seen) == len(set(seen)) == 3 * sum(len(one.values) for one in EXPERIMENTS)
    assert len(BY_NAME) == len(EXPERIMENTS)


def points_of(drawing: Path) -> int:
    return len(ElementTree.parse(drawing).findall(".//{http://www.w3.org/2000/svg}circle"))


def use_only(monkeypatch: pytest.MonkeyPatch, *experiments: Experiment) -> None:
    """Have nothing else compared."""
    monkeypatch.setattr("tests.theory.comparison.EXPERIMENTS", experiments)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["ends", pytest.param("all", marks=pytest.mark.exhaustive)])
def test_each_law_is_compared_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    experiments: tuple[Experiment, ...] = EXPERIMENTS
    if at == "ends":
        experiments = tuple(
            replace(one, values=tuple(sorted({one.values[0], one.values[-1]})))
            for one in EXPERIMENTS
        )
        use_only(monkeypatch, *experiments)
    assert main(["--quick", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    with (tmp_path / "out" / TABLE).open(newline="") as file:
        table = csv.DictReader(file)
        assert tuple(table.fieldnames or ()) == COLUMNS
        rows = list(table)
    assert [(row["experiment"], float(row["value"])) for row in rows] == [
        (one.name, value) for one in experiments for value in one.values
    ]
    for row in rows:
        low, theory, high = (float(row[name]) for name in ("low", "theory", "high"))
        assert row["covers"] == str(low <= theory <= high).lower()
        assert (row["seeds"], int(row["sends"]) > 200) == ("3", True)
    covered = sum(row["covers"] == "true" for row in rows)
    assert f"{covered} of {len(rows)} intervals of 95 % confidence cover" in printed
    assert "No difference is more than chance explains." in printed
    drawn = sum(len(one.values) for one in experiments if one.panel)
    assert points_of(tmp_path / "out" / PLOT) == drawn


def test_the_same_seeds_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_only(monkeypatch, replace(BY_NAME["slower-of-two"], values=(4.5, 5.0)))
    files = []
    for folder in (tmp_path / "deep" / "first", tmp_path / "again"):
        assert main(["--quick", "--out", str(folder)]) == 0
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert files[0] == files[1] and files[0].keys() == {TABLE, PLOT}


def test_a_wrong_law_ends_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_only(monkeypatch, at("constant-queue", 0.5, exponential_law))
    assert main(["--quick", "--seeds", "5"]) == 1
    printed = capsys.readouterr().out
    assert "0 of 1 intervals" in printed
    assert "constant-queue at 0.5 differs by more than chance explains: " in printed


def shown() -> list[list[str]]:
    """The rows of the table of results."""
    row = re.compile(r"^\| `([a-z-]+)` \| (.+) \|$", re.MULTILINE)
    found = [[name, *rest.split(" | ")] for name, rest in row.findall(RESULTS.read_text())]
    return [cells for cells in found if cells[0] in BY_NAME]


def test_the_results_have_each_comparison_with_the_law_as_it_is() -> None:
    assert [(name, float(value)) for name, value, *_ in shown()] == [
        (one.name, value) for one in EXPERIMENTS for value in one.values
    ]
    for name, value, theory, simulated, half, covered in shown():
        law = BY_NAME[name].law
        assert law is None or f"{law(float(value)):.4f}" == theory
        inside = abs(float(simulated) - float(theory)) <= float(half) + 1e-4
        assert covered == ("yes" if inside else "no")


def test_the_document_shows_the_plot_of_its_table() -> None:
    drawing = DOCUMENT.with_suffix(".svg")
    assert f"({drawing.name})" in DOCUMENT.read_text()
    assert points_of(drawing) == sum(len(one.values) for one in EXPERIMENTS if one.panel)
    assert drawing.stat().st_size < 30_000
