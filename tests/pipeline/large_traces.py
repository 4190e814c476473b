"""Traces of any size with exactly k of each anomaly at random places, made of arrays.

    python -m tests.pipeline.large_traces ROWS FOLDER

Each run has 48 partitions, of which some are hot, and up to 1,000 producers that take turns in
them. Its records come in blocks of sixteen of one producer; an anomaly is put into a block of its
own, so that none makes another one but those that `EXPECTED` tells of. Records of four tie in their
times. In each sixth partition, a second group reads, too, and records its effects and commits.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.jobs.audit import ANOMALIES
from purgatory.trace.trace_schema import SCHEMA_VERSION, TABLES

PARTITIONS, PRODUCERS, RUNS = 48, 1000, 3
BLOCK, POLL, AT = 16, 8, 4
"""How many records are a block, and a poll; which record of its block an anomaly changes."""

EXPECTED: Mapping[str, Mapping[str, int]] = {
    "lost_ack_duplicate": {"duplicate": 1},
    "lost_write": {"sequence_gap": 1},
    "moved_write": {"duplicate": 1},
    "nonmonotonic_poll": {"reprocess": 1},
}
"""What comes with one case of an anomaly beside itself."""

_APPLIED = 6
"""In one of so many partitions the second group reads."""
_OF_EFFECTS = (
    "key_order_violation",
    "effect_duplicate",
    "offset_without_result",
    "result_without_offset",
)
_OUTCOMES = ("ok", "unknown", "fail")
_GROUPS = ("readers", "appliers", "spare")
_NEVER_US = 10**15
_NEW = 10**12
"""Above all values and numbers of a run without anomalies."""
_KINDS = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]


def expected(k: int) -> dict[str, int]:
    """How many cases of each anomaly a run has, k of each put in."""
    counts = Counter(dict.fromkeys(ANOMALIES, k))
    for also in EXPECTED.values():
        counts.update({name: k * number for name, number in also.items()})
    return dict(counts)


def write_large_traces(
    folder: Path, rows: int, k: int, *, seed: int = 1, layout: int = 1, files: int = 3
) -> None:
    """Write the traces of some runs, with at least so many sends and reads together.

    Args:
        folder: to be made, with a folder for each run.
        rows: of the sends and the reads of all runs.
        k: how many cases of each anomaly are put into each run.
        seed: from where the rows come.
        layout: from where the order of the rows in the files comes.
        files: how many each table has.
    """
    for run in range(RUNS):
        tables = _Run(np.random.default_rng([seed, run]), rows // RUNS, k).tables()
        _write(folder / f"run-{run}", tables, np.random.default_rng([layout, run]), files)


class _Run:
    """The records of a run as columns: row n of `sends` and of `reads` is record n."""

    def __init__(self, chance: np.random.Generator, rows: int, k: int) -> None:
        self.chance = chance
        shares = 1 / np.arange(1, PARTITIONS + 1) ** 0.8
        blocks = 2 + (rows / 2 / BLOCK * chance.permutation(shares) / shares.sum()).astype(int)
        self._lay_out(blocks)
        self.more: dict[str, list[Columns]] = {"sends": [], "reads": [], "effects": []}
        self.transactions: list[Columns] = []
        self._numbers = 0
        self.unsent = np.zeros(len(self.index), bool)
        self.unread = np.zeros(len(self.index), bool)
        self._fill()
        self._put_in(k)

    def _lay_out(self, blocks: Array) -> None:
        """Give each record its partition, its number there and its producer."""
        records = blocks * BLOCK
        self.first = np.cumsum(records) - records
        self.last = self.first + records - 1
        self.partition = np.repeat(np.arange(PARTITIONS), records)
        self.index = np.arange(records.sum()) - self.first[self.partition]
        writers = np.maximum(1, np.minimum(blocks, PRODUCERS * blocks // blocks.sum()))
        turn = self.index // BLOCK * writers[self.partition] // blocks[self.partition]
        self.producer = turn + (np.cumsum(writers) - writers)[self.partition]
        begins = np.flatnonzero(np.diff(self.producer, prepend=-1))
        self.sequence = np.arange(len(self.index)) - begins[self.producer]
        starts = np.flatnonzero(self.index % BLOCK == 0)
        starts = starts[starts + BLOCK <= self.last[self.partition[starts]]]
        with_effects = self.partition[starts] % _APPLIED == 1
        self.places = {
            effects: self.chance.permutation(starts[with_effects == effects]) + AT
            for effects in (False, True)
        }

    def _fill(self) -> None:
        records = len(self.index)
        offset = 3 * self.index + self.chance.integers(0, 2, records)
        send_us = 1000 * (1 + self.index // 4)
        none, value = np.full(records, -1), np.arange(records)
        self.sends: Columns = {
            "producer": self.producer,
            "sequence": self.sequence,
            "attempt": np.ones(records, int),
            "key": self.partition * 10 + self.index % 4,
            "value_id": value,
            "outcome": np.zeros(records, int),
            "send_us": send_us,
            "partition": self.partition,
            "offset": offset.copy(),
            "transaction": none.copy(),
        }
        self.reads: Columns = {
            "group": np.zeros(records, int),
            "consumer": self.partition % 4,
            "poll": 2 * (self.index // POLL),
            "partition": self.partition,
            "offset": offset,
            "value_id": value,
            "time_us": send_us + 5000,
            "applied": np.ones(records, bool),
            "isolation": none.copy(),
        }
        applied = np.flatnonzero(self.partition % _APPLIED == 1)
        self.effects: Columns = {
            "record": applied,
            "version": self.index[applied],
            "time_us": 80 * (self.index[applied] // POLL),
            "transaction": np.full(len(applied), -1),
        }
        self.no_effect = np.zeros(len(applied), bool)

    def _put_in(self, k: int) -> None:
        for anomaly in ANOMALIES:
            places = self.places[anomaly in _OF_EFFECTS]
            assert len(places) >= k, "too few rows for so many anomalies"
            chosen, self.places[anomaly in _OF_EFFECTS] = places[:k], places[k:]
            getattr(self, f"_{anomaly}")(chosen)

    def _add(self, table: str, rows: Array, **columns: Any) -> None:
        """Add copies of some rows with other columns."""
        source: Columns = getattr(self, table)
        copies = {name: values[rows] for name, values in source.items()}
        given = {name: np.broadcast_to(value, len(rows)) for name, value in columns.items()}
        self.more[table].append({**copies, **given})

    def _free(self, rows: Array) -> Array:
        """The offset behind some records, which no other has."""
        offsets: Array = 3 * self.index[rows] + 2
        return offsets

    def _copy(self, at: Array) -> Array:
        """Let values be read once more, five records later; their offsets there."""
        offset = self._free(at + 5)
        self._add("reads", at + 5, value_id=at, offset=offset)
        return offset

    def _in_transactions(self, rows: int, outcome: str = "committed", **times_us: Any) -> Array:
        """Make a transaction for each of some rows; their numbers."""
        numbers = self._numbers + 1 + np.arange(rows)
        self._numbers += rows
        times = {name: np.broadcast_to(given, rows) for name, given in times_us.items()}
        self.transactions.append(
            {
                "transaction": numbers,
                "outcome": np.full(rows, outcome),
                "decided_us": times.get("decided_us", np.full(rows, -1)),
                "ended_us": times.get("ended_us", np.full(rows, -1)),
            }
        )
        return numbers

    def _inconsistent_offset(self, at: Array) -> None:
        self._add("reads", at, group=2, consumer=_NEW + at, value_id=_NEW + at)

    def _duplicate(self, at: Array) -> None:
        self._copy(at)

    def _lost_ack_duplicate(self, at: Array) -> None:
        self._add("sends", at, attempt=2, offset=self._copy(at))
        self.sends["outcome"][at], self.sends["offset"][at] = 1, -1

    def _moved_write(self, at: Array) -> None:
        self.sends["offset"][at] = self._free(at)

    def _lost_write(self, at: Array) -> None:
        self.unread[at] = True

    def _unseen(self, at: Array) -> None:
        """Behind all that is read in a partition: what its last producer sends."""
        last = self.last[np.sort(self.partition[at])]
        number = 1 + np.arange(len(last)) - np.searchsorted(last, last)
        self._add(
            "sends",
            last,
            sequence=self.sequence[last] + number,
            offset=self.reads["offset"][last] + 3 * number,
            value_id=_NEW + at,
        )

    def _aborted_read(self, at: Array) -> None:
        self.sends["outcome"][at], self.sends["offset"][at] = 2, -1

    def _partial_transaction(self, at: Array) -> None:
        """Who reads with read_committed sees them before they are decided, or if they never are."""
        half = len(at) // 2
        late = self._in_transactions(half, decided_us=_NEVER_US)
        numbers = np.concatenate([late, self._in_transactions(len(at) - half, "open")])
        for record in (at, at + 1):
            self.sends["transaction"][record] = numbers
            self.reads["isolation"][record] = 0

    def _zombie_write(self, at: Array) -> None:
        end_us = self.sends["send_us"][at] - 1
        numbers = self._in_transactions(len(at), decided_us=end_us, ended_us=end_us)
        self.sends["transaction"][at] = numbers

    def _retry_reorder(self, at: Array) -> None:
        self._add("sends", at, attempt=2, offset=self._copy(at))
        self.sends["outcome"][at], self.sends["offset"][at] = 2, -1
        self.unread[at] = True

    def _nonmonotonic_send(self, at: Array) -> None:
        self.sends["offset"][at] = self._copy(at)
        self.unread[at] = True

    def _sequence_gap(self, at: Array) -> None:
        self.unsent[at] = self.unread[at] = True

    def _multi_writer(self, at: Array) -> None:
        where = {"offset": self._free(at), "value_id": _NEW + at}
        self._add("sends", at, producer=_NEW + at, sequence=0, **where)
        self._add("reads", at, **where)

    def _poll_skip(self, at: Array) -> None:
        """Another group reads what this one skips, or it would be lost."""
        poll = (at[:, None] - AT + POLL + np.arange(POLL)).ravel()
        self._add("reads", poll, group=2, consumer=_NEW + np.repeat(at, POLL))
        self.unread[poll] = True

    def _nonmonotonic_poll(self, at: Array) -> None:
        end = at - AT + POLL - 1
        self._add("reads", end, poll=self.reads["poll"][end] + 1, applied=False)

    def _reprocess(self, at: Array) -> None:
        self._add("reads", at, consumer=_NEW + at, applied=False)

    def _effects_of(self, at: Array) -> Array:
        return np.searchsorted(self.effects["record"], at)

    def _key_order_violation(self, at: Array) -> None:
        """Applied after the version of the same key four records later."""
        self.effects["time_us"][self._effects_of(at)] = 80 * ((self.index[at] + 4) // POLL) + 1

    def _effect_duplicate(self, at: Array) -> None:
        self._add("effects", self._effects_of(at))

    def _offset_without_result(self, at: Array) -> None:
        self.no_effect[self._effects_of(at)] = True

    def _result_without_offset(self, at: Array) -> None:
        """Its transaction commits no offset."""
        self.effects["transaction"][self._effects_of(at)] = self._in_transactions(len(at))

    def tables(self) -> dict[str, pa.Table]:
        """All tables but `operations`, without their run ids."""
        sends = _together([_those(self.sends, ~self.unsent), *self.more["sends"]])
        reads = _together([_those(self.reads, ~self.unread), *self.more["reads"]])
        applied = _those(self.reads, self.partition % _APPLIED == 1)
        applied["group"] = np.ones(len(applied["group"]), int)
        reads = _together([reads, applied])
        effects = _together([_those(self.effects, ~self.no_effect), *self.more["effects"]])
        records = effects.pop("record")
        commits = self.last[np.arange(PARTITIONS) % _APPLIED == 1]
        made: dict[str, dict[str, Any]] = {
            "sends": {
                **sends,
                "group": "writers",
                "acks": -1,
                "outcome": _words(sends["outcome"], _OUTCOMES),
                "answer_us": sends["send_us"] + 500,
                "topic": "orders",
                "size_bytes": 100,
            },
            "reads": {
                **reads,
                "group": _words(reads["group"], _GROUPS),
                "isolation": _words(reads["isolation"], ("read_committed",)),
                "topic": "orders",
            },
            "effects": {
                **effects,
                "group": "appliers",
                "consumer": self.reads["consumer"][records],
                "partition": self.partition[records],
                "offset": self.reads["offset"][records],
                "key": self.sends["key"][records],
                "topic": "orders",
            },
            "commits": {
                "group": "appliers",
                "topic": "orders",
                "partition": self.partition[commits],
                "offset": self.reads["offset"][commits] + 1,
                "time_us": np.full(len(commits), 5),
            },
            "transactions": {
                **_together(self.transactions),
                "transactional_id": "mover",
                "epoch": 0,
                "begun_us": 0,
            },
        }
        return {name: _table(name, columns) for name, columns in made.items()}


def _those(columns: Columns, chosen: Array) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


def _together(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _words(codes: Array, words: tuple[str, ...]) -> pa.Array:
    places = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(words)).cast(pa.string())


def _table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """A table with all its columns; numbers below 0 in those that may be null are null."""
    rows = next(len(values) for values in columns.values() if isinstance(values, np.ndarray))
    arrays = {}
    for column, kind in TABLES[name].items():
        values = columns.get(column)
        if column == "run_id":
            continue
        if isinstance(values, np.ndarray) and values.dtype.kind == "i" and column != "acks":
            arrays[column] = pa.array(values, _KINDS[kind], mask=values < 0)
        elif isinstance(values, np.ndarray | pa.Array):
            arrays[column] = pa.array(values, _KINDS[kind])
        else:
            arrays[column] = pa.repeat(pa.scalar(values, _KINDS[kind]), rows)
    return pa.table(arrays)


def _write(
    folder: Path, tables: Mapping[str, pa.Table], chance: np.random.Generator, files: int
) -> None:
    operations = {
        name: pa.array([], _KINDS.get(kind, pa.list_(pa.string())))
        for name, kind in TABLES["operations"].items()
        if name != "run_id"
    }
    parts = {}
    for name, table in {**tables, "operations": pa.table(operations)}.items():
        (folder / name).mkdir(parents=True)
        shuffled = table.take(chance.permutation(len(table)))
        whole = shuffled.add_column(0, "run_id", pa.repeat(pa.scalar(folder.name), len(table)))
        cuts = np.linspace(0, len(table), files + 1).astype(int)
        for number, (start, end) in enumerate(itertools.pairwise(cuts)):
            path = folder / name / f"part-{number:05}.parquet"
            pq.write_table(whole.slice(start, end - start), path, compression="zstd")
        parts[name] = {"parts": files, "rows": len(table)}
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        "scenario": "large",
        "seed": 1,
        "complete": True,
        "started": 0,
        "duration_ms": 1,
        "tables": parts,
    }
    (folder / "run.json").write_text(json.dumps(head), encoding="utf-8")


if __name__ == "__main__":
    write_large_traces(Path(sys.argv[2]), int(sys.argv[1]), 100, files=8)
