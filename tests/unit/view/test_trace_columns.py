"""Traces that are lines of JSON: the same state as from Parquet, and what can't be read is told."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from purgatory.simulation import Simulation, parse_scenario
from purgatory.view.bookmarks import Bookmarks
from purgatory.view.errors import ViewError
from purgatory.view.time_travel import TracedRun
from tests.unit.view.test_state import PAUSES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "trace"
    text = PAUSES.format(tick_ms=1, wheel_size=20)
    Simulation(parse_scenario(text, "pauses", Path()), trace_folder=folder).run()
    return folder


def in_json(trace: Path, to: Path, *kept: str) -> Path:
    """Write a trace anew as lines of JSON, but for the tables that are to stay in Parquet."""
    to.mkdir()
    shutil.copy(trace / "run.json", to)
    for place in filter(Path.is_dir, trace.iterdir()):
        if place.name in kept:
            shutil.copytree(place, to / place.name)
            continue
        with (to / f"{place.name}.jsonl").open("w", encoding="utf-8") as file:
            for row in pq.read_table(place).to_pylist():
                file.write(json.dumps(row) + "\n")
    return to


@pytest.mark.parametrize("kept", [(), ("operations",), ("changes", "sends")])
def test_the_state_is_as_from_parquet(folder: Path, tmp_path: Path, kept: tuple[str, ...]) -> None:
    run, other = TracedRun(folder), TracedRun(in_json(folder, tmp_path / "json", *kept))
    assert other.about() == run.about() and other.timeline.has_changes
    chance = random.Random(5)
    for at_us in (0, *(chance.randrange(run.end_us) for _ in range(20)), run.end_us):
        assert other.state(at_us) == run.state(at_us)
        assert other.request_traces.latest(at_us, 5) == run.request_traces.latest(at_us, 5)
    assert other.changes(0, 200_000) == run.changes(0, 200_000)


@pytest.mark.own_process
def test_the_bookmarks_are_as_from_parquet(folder: Path, tmp_path: Path) -> None:
    found = []
    for trace in (folder, in_json(folder, tmp_path / "json")):
        bookmarks = Bookmarks(TracedRun(trace))
        bookmarks.search()
        found.append(bookmarks.entries())
    assert found[0] == found[1]


OPERATION = {"broker": 1, "purgatory": "Produce", "operation": "7", "timeout_ms": 30, "keys": 1}
OPERATION |= {"start_us": 1_000, "end_us": 31_000, "outcome": "expired", "kind": "producer"}


def test_operations_alone_are_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "another program's"
    (trace / "operations").mkdir(parents=True)
    first, second = json.dumps(OPERATION), json.dumps({**OPERATION, "broker": 2, "more": {"a": 1}})
    (trace / "operations" / "1.jsonl").write_text(f"{first}\n\n")
    with gzip.open(trace / "operations" / "2.jsonl.gz", "wt") as file:
        file.write(second)
    run = TracedRun(trace)
    about = run.about()
    assert about["name"] == trace.name and about["complete"]
    assert [note.partition(":")[0] for note in about["notes"]] == [
        "This trace has no table of changes"
    ]
    assert [one[1] for one in run.state(2_000)["operations"]] == [1, 2]
    assert run.state(31_000)["operations"] == [] and run.request_traces.latest(31_000, 5) == []


def test_unreadable_lines_are_skipped_with_a_note(tmp_path: Path) -> None:
    good = json.dumps(OPERATION)
    wrong = json.dumps({**OPERATION, "broker": "the first"})
    late = json.dumps({**OPERATION, "end_us": 5})
    lines = [good, wrong, good, late, good[:-9]]
    (tmp_path / "operations.jsonl").write_text("\n".join(lines))
    (tmp_path / "sends.jsonl").write_text("[]\n")
    (tmp_path / "reads.jsonl.gz").write_bytes(gzip.compress(b"{}")[:-9])
    run = TracedRun(tmp_path)
    run.request_traces.latest(0, 5)
    assert run.trace.notes[:2] == [
        "operations.jsonl: 2 lines that can't be read are left out: "
        'line 2 has a broker of another type, "the first".',
        "1 row of operations that can't be right is left out.",
    ]
    assert run.trace.notes[-1] == (
        "sends.jsonl: 1 line that can't be read is left out: line 1 is no JSON object."
    )
    assert run.trace.table("reads") is not None
    assert run.trace.notes[-1].startswith("reads.jsonl.gz is left out: ")
    assert len(run.state(2_000)["operations"]) == 2


def test_times_in_lines_of_json_may_be_dates(tmp_path: Path) -> None:
    noon = 1_793_534_400_000_000
    times = {"start_us": "2026-11-01T12:00:00Z", "end_us": "2026-11-01 13:00:00.030+01:00"}
    (tmp_path / "operations.jsonl").write_text(json.dumps({**OPERATION, **times}))
    run = TracedRun(tmp_path)
    assert run.end_us == noon + 30_000
    assert [one[1] for one in run.state(noon + 1)["operations"]] == [1]
    assert [note for note in run.about()["notes"] if "left out" in note] == []


@pytest.mark.parametrize("name", ["operations.csv", "sends.parquet"])
def test_error_of_plain_data_names_the_commands_that_read_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(ViewError, match=rf"has {name} without run.json: .* lines of JSON alone"):
        TracedRun(tmp_path)


def test_error_of_a_folder_without_a_trace_names_the_layout(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="there is no such folder"):
        TracedRun(tmp_path / "nowhere")
    with pytest.raises(ViewError, match="reads folders of this machine alone"):
        TracedRun(Path("s3://bucket/trace"))
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(ViewError, match=r"has 2 traces in it: give one, such as .*/a$"):
        TracedRun(tmp_path)


def test_a_head_beside_lines_of_json_is_checked(tmp_path: Path) -> None:
    (tmp_path / "operations.jsonl").write_text("")
    assert TracedRun(tmp_path).end_us == 0
    (tmp_path / "run.json").write_text('{"schema_version": 3, "run_id": "mine", "complete": false}')
    about = TracedRun(tmp_path).about()
    assert about["name"] == "mine" and not about["complete"]
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ViewError, match="schema_version is None, and"):
        TracedRun(tmp_path)


def test_null_key_is_omitted(tmp_path: Path) -> None:
    operation = {
        "broker": 0,
        "purgatory": "Produce",
        "operation": 1,
        "keys": 2,
        "timeout_ms": 100,
        "start_us": 0,
        "end_us": 100_000,
        "outcome": "expired",
        "kind": "producer",
        "watch_keys": [None, "orders-0"],
    }
    (tmp_path / "operations.jsonl").write_text(json.dumps(operation))
    run = TracedRun(tmp_path)
    texts = [change.get("text") for change in run.changes(0, run.end_us)["changes"]]
    assert "broker 0: Produce on orders-0 expired after 100 ms" in texts
