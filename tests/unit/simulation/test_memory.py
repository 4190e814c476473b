"""The memory of a run holds waiting requests and retained records, however long the run lasts."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from purgatory.simulation.messages import Message
from purgatory.trace import trace_writer as trace_module
from tests.unit.simulation.running import Ran, run_scenario

SCENARIO = """
name = "long"
duration_ms = {duration_ms}

[topic]
partitions = 2
segment_bytes = 10_000
retention_bytes = 40_000

[[producers]]
group = "orders"
count = 2
rate = 250.0
acks = "all"

[[consumers]]
group = "readers"
"""


def messages_alive() -> int:
    gc.collect()
    return sum(isinstance(one, Message) for one in gc.get_objects())


def messages_alive_after(duration_ms: int) -> tuple[int, Ran]:
    before = messages_alive()
    ran = run_scenario(SCENARIO.format(duration_ms=duration_ms))
    return messages_alive() - before, ran


@pytest.mark.slow
def test_memory_is_bounded_by_retention_not_by_duration() -> None:
    # 40 to 50 records of 1,000 bytes in each of two partitions; the replicas share them.
    alive, ran = messages_alive_after(1_000)
    assert ran.producers("orders")["records"] > 400
    assert 60 <= alive <= 110
    del ran
    alive, ran = messages_alive_after(4_000)
    assert ran.producers("orders")["records"] > 1_800
    assert 60 <= alive <= 110


def test_run_leaves_frozen_objects_frozen() -> None:
    gc.freeze()
    run_scenario(SCENARIO.format(duration_ms=100))
    assert gc.get_freeze_count() > 0


def test_trace_is_written_in_parts_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "ROWS_PER_GROUP", 50)
    monkeypatch.setattr(trace_module, "ROWS_PER_PART", 200)
    seen: list[int] = []
    writing = trace_module.TableWriter._write_group

    def write_group(self: trace_module.TableWriter) -> None:
        seen.append(len(self._gathered))
        writing(self)

    monkeypatch.setattr(trace_module.TableWriter, "_write_group", write_group)
    ran = run_scenario(SCENARIO.format(duration_ms=1_000), tmp_path / "trace")
    rows = ran.rows("sends")
    assert len(rows) == ran.producers("orders")["requests"] > 400
    assert max(seen) == 50
    parts = sorted(path.name for path in (tmp_path / "trace" / "sends").iterdir())
    assert parts == [f"part-{number:05}.parquet" for number in range(-(-len(rows) // 200))]
    answered_us = [row["answer_us"] for row in rows]
    assert answered_us == sorted(answered_us)
