"""Windows of changes, steps, request_traces, and traces that are not as they should be."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.simulation import Simulation, load_scenario, parse_scenario
from purgatory.view.bookmarks import Bookmarks, first_anomaly
from purgatory.view.errors import ViewError
from purgatory.view.time_travel import TracedRun
from tests.unit.view.test_state import PAUSES

State = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "trace"
    text = PAUSES.format(tick_ms=1, wheel_size=20)
    Simulation(parse_scenario(text, "pauses", Path()), trace_folder=folder).run()
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> TracedRun:
    return TracedRun(folder)


def applied(state: State, changes: list[dict[str, Any]]) -> State:
    """Apply changes to a state as the page does: by what they say alone."""
    state = json.loads(json.dumps(state))
    operations = {one[0]: one for one in state["operations"]}
    brokers = {one["id"]: one for one in state["brokers"]}
    for given in changes:
        change = json.loads(json.dumps(given))
        if change["change"] == "log":
            state["log"] = [*state["log"], change][-50:]
            continue
        del change["at_us"]
        what = change.pop("change")
        if what == "parked":
            operation = change["operation"]
            operations[operation[0]] = operation
            of_purgatory(brokers, operation[1], operation[2])["pending"] += 1
        elif what == "moved":
            operations[change["id"]][7:9] = [change["level"], change["bucket"]]
        elif what == "completed":
            purgatory = of_purgatory(brokers, change["broker"], change["purgatory"])
            purgatory["outcomes"][change["outcome"]] += 1
            if operations.pop(change["id"], None) is not None:
                purgatory["pending"] -= 1
        elif what == "clock":
            brokers[change.pop("broker")]["wheel"] = change
        elif what == "broker":
            broker = brokers[change.pop("broker")]
            broker.update(change)
            if not broker["alive"]:
                broker["wheel"] = None
        elif what in ("log_end", "high_watermark", "partition"):
            apply_to_partition(state["topics"], what, change)
        else:
            apply_to_list(state, what, change)
    state["operations"] = list(operations.values())
    state["pending"] = state["shown"] = len(operations)
    return state


def of_purgatory(brokers: dict[int, Any], broker: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in brokers[broker]["purgatories"] if one["name"] == name
    )
    return found


def apply_to_partition(topics: list[Any], what: str, change: dict[str, Any]) -> None:
    name, number = change.pop("topic"), change["partition"]
    partition = next(
        one
        for topic in topics
        if topic["name"] == name
        for one in topic["partitions"]
        if one["partition"] == number
    )
    if what == "partition":
        del change["internal"]
        partition.update(change)
    elif what == "log_end":
        partition["log_end_offsets"][str(change["broker"])] = change["offset"]
    else:
        partition["high_watermark"] = change["offset"]


def apply_to_list(state: State, what: str, change: dict[str, Any]) -> None:
    key = {"group": "name", "transaction": "id", "fault": "number"}[what]
    kept = [one for one in state[f"{what}s"] if one[key] != change[key]]
    if change.get("state") not in ("Gone", "ended"):
        kept.append(change)
    state[f"{what}s"] = kept


def in_order(state: State) -> State:
    """Without the order of what has none."""
    for part, key in (("groups", "name"), ("transactions", "id"), ("faults", "number")):
        state[part].sort(key=lambda one: one[key])
    state["operations"].sort()
    return state


@pytest.mark.slow
def test_state_plus_changes_is_the_later_state(run: TracedRun) -> None:
    chance = random.Random(11)
    for _ in range(25):
        from_us, until_us = sorted(chance.randrange(run.end_us) for _ in range(2))
        got = run.changes(from_us, until_us, 50_000)
        assert got["from_us"] == from_us and got["until_us"] == until_us
        later = applied(run.state(from_us), got["changes"])
        later["at_us"] = until_us
        assert in_order(later) == in_order(json.loads(json.dumps(run.state(until_us))))


def test_event_log_describes_events_in_words(run: TracedRun) -> None:
    told = run.log.between(0, run.end_us)
    said = [(line["at_us"], line["text"]) for line in told]
    assert said == sorted(said, key=itemgetter(0))
    faults_and_brokers = [
        one for one in said if re.match(r"fault|broker . is (dead|alive|paused|resumed)", one[1])
    ]
    assert faults_and_brokers == [
        (1_500_000, "fault 1: pause 0 for 0.9 s"),
        (1_500_000, "broker 0 is paused"),
        (2_000_000, "fault 2: pause 1 for 1.3 s"),
        (2_000_000, "broker 1 is paused"),
        (2_400_000, "fault 1 ended: pause 0 for 0.9 s"),
        (2_400_000, "broker 0 is resumed"),
        (3_300_000, "fault 2 ended: pause 1 for 1.3 s"),
        (3_300_000, "broker 1 is resumed"),
        (3_500_000, "broker 2 is dead"),
        (3_500_000, "fault 3: kill 2 for 0.8 s"),
        (4_300_000, "fault 3 ended: kill 2 for 0.8 s"),
        (4_300_000, "broker 2 is alive"),
    ]
    assert (4_300_000, "broker 0 leads events-2, epoch 1") in said
    assert (4_300_000, "broker 2 left the ISR of events-0") in said
    assert any(text == "broker 2 is back in the ISR of events-0" for _, text in said)
    assert run.state(run.end_us)["log"] == told[-50:]
    assert run.state(0)["log"] == []


def test_limit_of_changes_splits_no_moment(run: TracedRun) -> None:
    for limit in (1, 2, 7):
        at_us, seen = 0, []
        while at_us < 40_000:
            got = run.changes(at_us, 40_000, limit)
            assert got["until_us"] > at_us or not got["changes"]
            seen += got["changes"]
            at_us = got["until_us"]
        assert seen == run.changes(0, 40_000, 50_000)["changes"]


def test_steps_forward_and_back_meet_at_the_same_moments(run: TracedRun) -> None:
    forward = []
    at_us = run.next(0)
    for _ in range(500):
        assert at_us is not None
        forward.append(at_us)
        at_us = run.next(at_us)
    assert at_us is not None
    back = []
    for _ in range(500):
        at_us = run.previous(at_us)
        assert at_us is not None
        back.append(at_us)
    assert back == forward[::-1]
    assert run.next(run.end_us) is None and run.previous(0) is None


def test_request_trace_lasts_from_the_client_to_its_response(run: TracedRun) -> None:
    latest = run.request_traces.latest(1_400_000, 20)
    assert len(latest) == 20
    done = next(one for one in latest if one["outcome"] == "ok")
    names = [stage["name"] for stage in done["stages"]]
    assert names[:2] == ["created", "sent"] and names[-1] == "answered"
    assert names.count("copied") == 2 and "committed" in names and "appended" in names
    times = [stage["at_us"] for stage in done["stages"]]
    assert times == sorted(times)
    found = run.request_traces.find_by_record(done["topic"], done["partition"], done["offset"])
    assert found["title"] == done["title"]
    for nonsense in (("nowhere", 0, 1), ("events", 99, 1), ("events", 0, 10**9)):
        with pytest.raises(ViewError, match="no "):
            run.request_traces.find_by_record(*nonsense)


def test_record_without_a_response_has_a_request_trace_from_its_reads(
    folder: Path, run: TracedRun
) -> None:
    sends = pq.read_table(folder / "sends").to_pylist()
    told = {(one["partition"], one["offset"]) for one in sends}
    reads = pq.read_table(folder / "reads").to_pylist()
    stored = {(one["partition"], one["offset"]): one["value_id"] for one in reads}
    untold = sorted(stored.keys() - told)
    assert untold
    titles = set()
    for partition, offset in untold:
        request_trace = run.request_traces.find_by_record("events", partition, offset)
        at_us = {stage["name"]: stage["at_us"] for stage in request_trace["stages"]}
        assert at_us["sent"] <= at_us["appended"]
        assert request_trace["offset"] == offset and request_trace["outcome"] == "unknown"
        titles.add(request_trace["title"])
    assert len(titles) == len(untold), "each attempt stored one of them"


@pytest.mark.own_process
def test_the_longest_wait_is_where_it_begins(run: TracedRun) -> None:
    bookmarks = Bookmarks(run)
    assert [one["why_not"] for one in bookmarks.entries()] == ["still searching"] * 3
    bookmarks.search()
    worst, longest, anomaly = bookmarks.entries()
    assert worst["at_us"] == run.overview["worst"]["at_us"]
    ids = [one[0] for one in run.state(longest["at_us"])["operations"]]
    assert longest["operation"] in ids
    assert (anomaly["at_us"] is None) == (anomaly["why_not"] is not None)


def test_failure_of_the_audit_is_reported_as_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    why_not = str(first_anomaly(folder)["why_not"])
    assert "duckdb" in why_not.lower() and "kafka-purgatory[analysis]" in why_not


def test_ended_search_leaves_no_process(
    run: TracedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for wait_s in (0.0, 0.3, 0.8, 1.2):
        bookmarks = Bookmarks(run)
        bookmarks.start()
        time.sleep(wait_s)
        bookmarks.stop()
        assert bookmarks._thread is not None and not bookmarks._thread.is_alive()
        assert bookmarks._audit is None or bookmarks._audit.returncode is not None
        assert "searching" not in str(bookmarks.entries()[2]["why_not"])
    assert list(tmp_path.iterdir()) == []
    bookmarks.search()
    assert bookmarks.entries()[2]["why_not"] == "the search was ended before"


# Traces that are not as they should be.


def changed(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


@pytest.mark.parametrize("version", [1, 2])
def test_trace_without_changes_shows_operations_and_lists_unknowns(
    folder: Path, tmp_path: Path, version: int
) -> None:
    trace = changed(folder, tmp_path / "trace")
    shutil.rmtree(trace / "changes")
    head = json.loads((trace / "run.json").read_text())
    head["schema_version"] = version
    del head["timer"]
    (trace / "run.json").write_text(json.dumps(head))
    run = TracedRun(trace)
    assert "no table of changes" in run.about()["notes"][-1]
    state = run.state(1_000_000)
    assert state["operations"] and {"topics", "groups"} <= set(state["unknown"])
    assert not state["topics"]
    later = applied(state, run.changes(1_000_000, 1_200_000, 50_000)["changes"])
    later["at_us"] = 1_200_000
    assert in_order(later) == in_order(json.loads(json.dumps(run.state(1_200_000))))


def test_torn_part_is_skipped_with_a_note(folder: Path, tmp_path: Path) -> None:
    trace = changed(folder, tmp_path / "trace")
    part = trace / "operations" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    (trace / "sends" / "part-00009.parquet.part").write_bytes(b"PAR1")
    run = TracedRun(trace)
    assert any("part-00000.parquet of operations" in note for note in run.about()["notes"])
    run.state(run.end_us)
    assert run.request_traces.latest(run.end_us, 5)
    assert any("never finished" in note for note in run.about()["notes"])


def test_interrupted_run_is_shown_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    run = Simulation(load_scenario("slow-follower"), trace_folder=folder)
    run.engine.call_at(2_000_000_000, run.interrupt)
    with pytest.raises(Exception, match="interrupted"):
        run.run()
    traced = TracedRun(folder)
    about = traced.about()
    assert not about["complete"] and "interrupted" in about["notes"][0]
    assert traced.state(traced.end_us)["topics"]


@pytest.mark.own_process
@pytest.mark.parametrize("tables", [("operations", "sends", "reads"), ("operations",)])
def test_an_empty_trace_has_a_state(tmp_path: Path, tables: tuple[str, ...]) -> None:
    for table in tables:
        (tmp_path / table).mkdir()
    (tmp_path / "run.json").write_text('{"schema_version": 3, "run_id": "nothing"}')
    run = TracedRun(tmp_path)
    assert run.end_us == 0 and run.state(0)["brokers"] == []
    assert run.changes(0, 10)["changes"] == [] and run.next(0) is None
    assert run.request_traces.latest(0, 5) == []
    with pytest.raises(ViewError, match="no record was sent to 'orders'; to these: none"):
        run.request_traces.find_by_record("orders", 0, 0)
    bookmarks = Bookmarks(run)
    bookmarks.search()
    assert all(one["why_not"] for one in bookmarks.entries())


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, "there is no run.json"),
        ("{", "can't be read"),
        ("[]", "is no JSON object"),
        ('{"schema_version": 9}', "schema_version is 9, and"),
        ('{"schema_version": 3}', "has no table of operations"),
    ],
)
def test_folder_without_a_trace_is_reported_in_one_line(
    tmp_path: Path, head: str | None, message: str
) -> None:
    if head is not None:
        (tmp_path / "run.json").write_text(head)
    with pytest.raises(ViewError, match=message) as told:
        TracedRun(tmp_path)
    assert "\n" not in str(told.value)
