"""The audit log in the target (`--audit-log`) as a trace for `purgatory audit`.

The trace is written as lines of JSON. `TraceWriter` writes a run from its start, as Parquet with
all columns of operations, sends and reads; a target has only a few columns of reads, but also
effects and commits, which no simulated run has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from purgatory.cdc.errors import ChangesError
from purgatory.cdc.targets.target import Target
from purgatory.trace.trace_schema import RUN_FILE, SCHEMA_VERSION

GROUP = "apply"
"""The consumer group under which the trace has it."""

_TIMES = {"purgatory_reads": 5, "purgatory_effects": 5, "purgatory_commits": 3}
"""The own tables that a trace is made of, and which column is a time in microseconds."""


def write_trace(target: Target, folder: Path, run_id: str) -> None:
    """Write reads, effects and commits as lines of JSON, as `docs/traces.md` has them.

    Times count from the first of all. A partition's reader counts as one consumer, though its tasks
    may run anywhere.

    Args:
        target: to which changes were applied with `ApplyOptions.effects`.
        folder: is made; a trace that is there is replaced.
        run_id: the name of the run.

    Raises:
        ChangesError: the folder can't be written.
    """
    rows = {table: target.select_own(table) for table in _TIMES}
    start_us = min((row[_TIMES[table]] for table in rows for row in rows[table]), default=0)
    places = sorted({row[:2] for table in rows for row in rows[table]})
    consumers = {place: number for number, place in enumerate(places)}
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "consumers": [{"group": GROUP, "assignment": "subscribe", "isolation": "read_committed"}],
    }
    tables = {
        "reads": _reads(rows["purgatory_reads"], consumers, start_us),
        "effects": _effects(rows["purgatory_effects"], consumers, start_us),
        "commits": _commits(rows["purgatory_commits"], start_us),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(json.dumps(head), encoding="utf-8")
        for name, found in tables.items():
            with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
                lines.writelines(json.dumps({"group": GROUP, **row}) + "\n" for row in found)
    except OSError as error:
        raise ChangesError(f"{folder}: the trace can't be written: {error}") from error


def _reads(
    rows: list[tuple[Any, ...]], consumers: Mapping[tuple[str, int], int], start_us: int
) -> Iterator[dict[str, object]]:
    # In the target, a poll's number is its time.
    polls = sorted({(row[0], row[1], row[3]) for row in rows})
    first = {place: number for number, place in reversed(list(enumerate(p[:2] for p in polls)))}
    rank = {poll: number - first[poll[:2]] + 1 for number, poll in enumerate(polls)}
    for topic, partition, offset, poll, value_id, read_us in rows:
        yield {
            "consumer": consumers[topic, partition],
            "poll": rank[topic, partition, poll],
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "value_id": value_id,
            "time_us": read_us - start_us,
            "applied": True,
        }


def _effects(
    rows: list[tuple[Any, ...]], consumers: Mapping[tuple[str, int], int], start_us: int
) -> Iterator[dict[str, object]]:
    for topic, partition, offset, key, version, applied_us in rows:
        yield {
            "consumer": consumers[topic, partition],
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "key": key,
            "version": version,
            "time_us": applied_us - start_us,
        }


def _commits(rows: list[tuple[Any, ...]], start_us: int) -> Iterator[dict[str, object]]:
    for topic, partition, offset, committed_us in rows:
        yield {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "time_us": committed_us - start_us,
        }
