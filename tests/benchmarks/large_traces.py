"""A trace of any size in which exactly k of each anomaly are planted, and nothing else is wrong.

    python -m tests.benchmarks.large_traces OUT --rows 20M

writes a trace of so many sends and reads to the folder OUT, and to `OUT/expected.json` how many
cases of each anomaly an audit finds in it. Memory doesn't grow with the rows, but for some hundred
bytes a block of eight records: 20 million rows take 1 GiB.

The partitions of each topic differ in their rates. The producers of a partition take turns in it; a
fifth of them send in transactions, a block in each, of which a tenth is aborted. The group
`readers` reads everything, and `appliers` the last topic, whose records it applies; both are in
`read_committed`. An anomaly is planted in a block of its own, so that none makes another one but
those that `IMPLIED` tells of.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.jobs.audit import ANOMALIES
from purgatory.trace.trace_schema import SCHEMA_VERSION, TABLES

TOPICS = ("orders", "payments", "shipments", "invoices")
"""The second group applies the records of the last one."""
GROUPS = ("readers", "appliers", "spare")
OUTCOMES = ("ok", "unknown", "fail")

BLOCK, AT = 8, 3
"""How many records a block has; which of them an anomaly changes. Another one has its key."""
POLL_BLOCKS = 62
"""How many blocks a poll has: 496 records."""
PART_BLOCKS = 100_000
"""How many blocks are made at once."""

IMPLIED: Mapping[str, Sequence[str]] = {
    "lost_ack_duplicate": ("duplicate",),
    "lost_write": ("sequence_gap",),
    "moved_write": ("duplicate",),
    "nonmonotonic_poll": ("reprocess",),
}
"""What comes with each case of an anomaly beside itself."""

_IN_PLAIN = (
    *("inconsistent_offset", "duplicate", "lost_ack_duplicate", "lost_write", "moved_write"),
    *("failed_read", "retry_reorder", "nonmonotonic_send", "sequence_gap", "multi_writer"),
    *("skip_within", "skip_between", "nonmonotonic_poll", "reprocess"),
)
_IN_APPLIED = (
    *("key_order_violation", "effect_duplicate", "offset_without_result"),
    "result_without_offset",
)
_IN_COMMITTED = ("early_read", "open_read", "written_late", "written_fenced")
_IN_ABORTED = ("aborted_read",)
_KINDS = ("", *_IN_PLAIN, *_IN_APPLIED, *_IN_COMMITTED, *_IN_ABORTED)
"""The ways to plant an anomaly, by the blocks that they need; unseen records need none."""
_WITH_COPY = (
    *("duplicate", "lost_ack_duplicate", "moved_write", "retry_reorder", "nonmonotonic_send"),
    "multi_writer",
)
"""Those that take an offset behind their block."""
_ENDING_POLLS = ("skip_within", "skip_between", "nonmonotonic_poll")
"""Those behind whose block a poll ends, so that none has two of them."""

_RECORDS_PER_SECOND = 20_000
_TURN_US, _DECIDED_US, _ENDED_US, _POLLED_US, _PERIOD_US = 50_000, 3_500, 4_000, 6_000, 6_500
"""Between two producers; from a block's first send until its transaction is decided and ended, and
it is read; and at least until the next block."""
_NEW = 10**12
"""Above all values, and all consumers, of a trace without anomalies."""
_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}

Array = np.ndarray[Any, Any]
Columns = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """What a trace is like.

    Attributes:
        rows: about how many sends and reads it has.
        planted: how many cases of each anomaly.
        transactions: whether a fifth of the producers send in transactions. Without them there is
            no `partial_transaction`, `zombie_write` and `result_without_offset`.
        shuffled: whether the rows of a file are in any order, and not in that of their times.
        part_blocks: how many blocks are a file of each table.
    """

    rows: int
    partitions: int = 48
    producers: int = 40
    planted: int = 100
    seed: int = 1
    transactions: bool = True
    shuffled: bool = False
    part_blocks: int = PART_BLOCKS


def expected_counts(shape: Shape) -> dict[str, int]:
    """How many cases of each anomaly a trace has."""
    counts = Counter(dict.fromkeys(ANOMALIES, shape.planted))
    for also in IMPLIED.values():
        counts.update(dict.fromkeys(also, shape.planted))
    if not shape.transactions:
        for name in ("partial_transaction", "zombie_write", "result_without_offset"):
            counts[name] = 0
    return dict(counts)


def write_large_trace(folder: Path, shape: Shape) -> None:
    """Write a trace to a folder that is made.

    Raises:
        ValueError: there are too few rows for so many anomalies, or too few partitions.
        FileExistsError: the folder has a trace.
    """
    blocks = _Blocks(shape, np.random.default_rng(shape.seed))
    counted: dict[str, Counter[str]] = {}
    for name in TABLES:
        (folder / name).mkdir(parents=True)
        counted[name] = Counter(parts=0, rows=0)
    for number, chosen in enumerate(blocks.parts()):
        for name, columns in _Part(blocks, chosen).tables().items():
            order = _order(columns, number if shape.shuffled else None)
            table = _table(name, columns, folder.name, order)
            path = folder / name / f"part-{number:05}.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=250_000)
            counted[name].update(parts=1, rows=len(table))
    _write_heads(folder, shape, counted, int(blocks.polled_us.max()))


def _write_heads(
    folder: Path, shape: Shape, tables: Mapping[str, Mapping[str, int]], end_us: int
) -> None:
    """Write `run.json`, by whose settings nothing is permitted, and `expected.json`."""
    producers = {"group": "writers", "acks": -1, "idempotence": True, "max_in_flight": 5}
    readers = {"assignment": "assign", "isolation": "read_committed"}
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        "scenario": "large",
        "seed": shape.seed,
        "faults": [],
        "producers": [{**producers, "retries": 10, "single_writer": True}],
        "consumers": [{"group": group, **readers} for group in GROUPS],
        "complete": True,
        "started": 0,
        "duration_ms": end_us // 1000 + 1000,
        "tables": tables,
    }
    (folder / "run.json").write_text(json.dumps(head, indent=1), encoding="utf-8")
    expected = json.dumps(expected_counts(shape), indent=1)
    (folder / "expected.json").write_text(expected, encoding="utf-8")


class _Blocks:
    """The blocks of a trace as columns, partition by partition."""

    def __init__(self, shape: Shape, chance: np.random.Generator) -> None:
        if shape.partitions < len(TOPICS):
            raise ValueError(f"there must be at least {len(TOPICS)} partitions")
        self.shape, self.chance = shape, chance
        self._lay_out()
        self._begin_transactions()
        self._plant()
        self._place()
        self._poll()

    def _lay_out(self) -> None:
        shape = self.shape
        partitions = np.arange(shape.partitions)
        self.topic_of = partitions * len(TOPICS) // shape.partitions
        self.number_of = partitions - np.searchsorted(self.topic_of, self.topic_of)
        weights = 1 / np.sqrt(1 + self.number_of)
        totals = np.bincount(self.topic_of, weights)
        shares = weights / totals[self.topic_of] / len(TOPICS)
        rows_per_record = 2 + 1 / len(TOPICS) - shape.transactions * 0.025
        records = shape.rows / rows_per_record
        blocks = np.maximum(2, np.round(records / BLOCK * shares)).astype(int)
        self.first = np.cumsum(blocks) - blocks
        """The first block of each partition."""
        self.last = self.first + blocks - 1
        self.partition = np.repeat(partitions, blocks)
        self.number = np.arange(len(self.partition)) - self.first[self.partition]
        of_partition = blocks[self.partition]
        self.turn = self.number * shape.producers // of_partition
        self.number_in_turn = self.number + (-self.turn * of_partition // shape.producers)
        self.applied = self.topic_of[self.partition] == len(TOPICS) - 1
        periods_us = np.maximum(BLOCK * 1e6 / _RECORDS_PER_SECOND / shares, _PERIOD_US).astype(int)
        self.begun_us = self.number * periods_us[self.partition] + self.turn * _TURN_US + 1_000_000
        self.answered_us = self.begun_us + self.chance.integers(1_500, 2_500, len(self.number))
        self.part = self.number * -(-len(self.number) // shape.part_blocks) // of_partition

    def _begin_transactions(self) -> None:
        """Let each block of some producers be a transaction, numbered by time.

        The last producer of a partition is none of them: all that is sent behind is unseen. An
        id was another producer's before, so that the first epoch is 1.
        """
        blocks, shape = len(self.number), self.shape
        self.transaction = np.full(blocks, -1)
        if shape.transactions:
            last_turn = self.turn[self.last][self.partition]
            sent_in = (self.turn % 5 == 2) & (self.turn < last_turn)
            (chosen,) = np.nonzero(sent_in)
            by_time = chosen[np.argsort(self.begun_us[chosen], kind="stable")]
            self.transaction[by_time] = np.arange(len(by_time))
        self.transactions = int(self.transaction.max()) + 1
        self.epoch = 1 + self.number_in_turn // 5
        self.epoch_us = self.begun_us[np.arange(blocks) - self.number_in_turn % 5] - 200
        self.aborted = (self.transaction >= 0) & (self.chance.random(blocks) < 0.1)

    def _plant(self) -> None:
        """Choose a block for each anomaly, and a partition for each unseen record."""
        planted = self.shape.planted
        self.kind = np.zeros(len(self.number), np.int8)
        inner = np.ones(len(self.number), bool)
        inner[self.last] = False
        in_one = self.transaction >= 0
        of_readers = inner & ~self.applied
        places = (
            (_IN_PLAIN, of_readers & ~in_one),
            (_IN_APPLIED, inner & self.applied & ~in_one),
            (_IN_COMMITTED, of_readers & in_one & ~self.aborted),
            (_IN_ABORTED, of_readers & self.aborted),
        )
        more = planted // 2
        less = planted - more
        numbers = dict.fromkeys(_KINDS, planted)
        numbers.update(skip_within=less, skip_between=more, failed_read=less, aborted_read=more)
        numbers.update(early_read=less, open_read=more, written_late=less, written_fenced=more)
        if not self.shape.transactions:
            numbers.update(dict.fromkeys((*_IN_COMMITTED, *_IN_ABORTED), 0), failed_read=planted)
            numbers["result_without_offset"] = 0
        for kinds, allowed in places:
            needed = np.repeat([_KINDS.index(kind) for kind in kinds], [numbers[k] for k in kinds])
            (free,) = np.nonzero(allowed)
            if len(free) < len(needed):
                raise ValueError(
                    f"{len(free)} blocks of records are too few for {len(needed)} anomalies: "
                    f"there must be more rows, or fewer planted"
                )
            self.kind[self.chance.choice(free, len(needed), replace=False)] = needed
        self.unseen = np.sort(self.chance.integers(0, self.shape.partitions, planted))
        self.results_apart = np.flatnonzero(self.kind == _KINDS.index("result_without_offset"))

    def _place(self) -> None:
        """Give each block its offsets: a marker lies behind a transaction, or a copy."""
        copied = np.isin(self.kind, [_KINDS.index(kind) for kind in _WITH_COPY])
        ends = np.cumsum(BLOCK + (copied | (self.transaction >= 0)))
        starts = np.concatenate([[0], ends[:-1]])
        self.offset = starts - starts[self.first][self.partition]
        self.end_offset = ends - starts[self.first][self.partition]

    def _poll(self) -> None:
        ends = self.number % POLL_BLOCKS == POLL_BLOCKS - 1
        ends |= np.isin(self.kind, [_KINDS.index(kind) for kind in _ENDING_POLLS])
        ends[self.last] = True
        (self.poll_ends,) = np.nonzero(ends)
        poll = np.cumsum(ends) - ends
        begins = np.concatenate([[0], self.poll_ends[:-1] + 1])
        self.poll_begin = begins[poll]
        self.poll = 1 + 2 * (poll - poll[self.first][self.partition])
        self.polled_us = self.begun_us[self.poll_ends][poll] + _POLLED_US

    def parts(self) -> Iterator[Array]:
        """The blocks of each part of the trace, by time."""
        in_order = np.argsort(self.part, kind="stable")
        parts = int(self.part.max()) + 1
        cuts = np.searchsorted(self.part[in_order], np.arange(1, parts))
        yield from np.split(in_order, cuts)


class _Part:
    """The rows of some blocks as columns: row n of `sends` and of `reads` is record n."""

    def __init__(self, blocks: _Blocks, chosen: Array) -> None:
        self.blocks, self.chosen = blocks, chosen
        self.block = np.repeat(chosen, BLOCK)
        self.position = np.tile(np.arange(BLOCK), len(chosen))
        self.index = blocks.number[self.block] * BLOCK + self.position
        records = len(self.block)
        self.unsent, self.unread = np.zeros(records, bool), blocks.aborted[self.block]
        self.more: dict[str, list[Columns]] = {"sends": [], "reads": [], "effects": []}
        self._fill()
        for number, kind in enumerate(_KINDS[1:], 1):
            (at,) = np.nonzero(blocks.kind[chosen] == number)
            getattr(self, f"_{kind}")(at * BLOCK + AT)
        self._unseen()

    def _fill(self) -> None:
        blocks, block = self.blocks, self.block
        records = len(block)
        none = np.full(records, -1)
        transaction = blocks.transaction[block]
        send_us = blocks.begun_us[block] + 10 * self.position
        key = blocks.number[block] * 4 + self.position % 4
        partition = blocks.partition[block]
        value = block * BLOCK + self.position
        offset = blocks.offset[block] + self.position
        self.sends: Columns = {
            "producer": partition * blocks.shape.producers + blocks.turn[block],
            "sequence": blocks.number_in_turn[block] * BLOCK + self.position,
            "attempt": np.ones(records, int),
            "key": partition * 100_000 + key % 20_000,
            "value_id": value,
            "outcome": np.zeros(records, int),
            "error": none.copy(),
            "send_us": send_us,
            "answer_us": blocks.answered_us[block],
            "place": partition,
            "offset": offset.copy(),
            "size_bytes": 80 + value * 31 % 160,
            "epoch": np.where(transaction < 0, -1, blocks.epoch[block]),
            "transaction": transaction,
        }
        self.reads: Columns = {
            "group": np.zeros(records, int),
            "consumer": partition,
            "poll": blocks.poll[block],
            "place": partition,
            "offset": offset,
            "value_id": value,
            "time_us": blocks.polled_us[block],
            "applied": np.ones(records, bool),
            "fetch_offset": blocks.offset[blocks.poll_begin[block]],
        }
        applied = np.flatnonzero(blocks.applied[block] & ~blocks.aborted[block])
        polled = blocks.number[block] - blocks.number[blocks.poll_begin[block]]
        self.effects: Columns = {
            "record": applied,
            "version": self.index[applied],
            "time_us": (blocks.polled_us[block] + polled * BLOCK + self.position)[applied],
            "transaction": np.full(len(applied), -1),
        }
        self.no_effect = np.zeros(len(applied), bool)

    def _add(self, table: str, rows: Array, **columns: Any) -> None:
        """Add copies of some rows with other columns."""
        source: Columns = getattr(self, table)
        copies = {name: values[rows] for name, values in source.items()}
        given = {name: np.broadcast_to(value, len(rows)) for name, value in columns.items()}
        self.more[table].append({**copies, **given})

    def _free(self, at: Array) -> Array:
        """The offset behind the block of some records, which no other has."""
        offsets: Array = self.blocks.offset[self.block[at]] + BLOCK
        return offsets

    def _copy(self, at: Array) -> Array:
        """Let values be read once more, behind their blocks; their offsets there."""
        offset = self._free(at)
        self._add("reads", at, offset=offset)
        return offset

    def _alone(self, at: Array, group: int, **columns: Any) -> None:
        """Let consumers of their own read some records."""
        offset = self.reads["offset"][at]
        own = {"consumer": _NEW + self.block[at], "poll": 1, "fetch_offset": offset}
        self._add("reads", at, group=group, **own, **columns)

    def _inconsistent_offset(self, at: Array) -> None:
        self._alone(at, 2, value_id=_NEW + self.block[at])

    def _duplicate(self, at: Array) -> None:
        self._copy(at)

    def _lost_ack_duplicate(self, at: Array) -> None:
        self._send_again(at, self._copy(at))
        self.sends["outcome"][at], self.sends["offset"][at] = 1, -1
        self.sends["error"][at] = 0

    def _send_again(self, at: Array, offset: Array) -> None:
        times = {name: self.sends[name][at] + 2_000 for name in ("send_us", "answer_us")}
        self._add("sends", at, attempt=2, offset=offset, **times)

    def _moved_write(self, at: Array) -> None:
        self.sends["offset"][at] = self._free(at)

    def _lost_write(self, at: Array) -> None:
        self.unread[at] = True

    def _unseen(self) -> None:
        """Send more behind all that is read in a partition, by its last producer."""
        blocks = self.blocks
        cases = np.flatnonzero(np.isin(blocks.last[blocks.unseen], self.chosen))
        partition = blocks.unseen[cases]
        number = 1 + cases - np.searchsorted(blocks.unseen, partition)
        last = np.searchsorted(self.block, blocks.last[partition], "right") - 1
        sequence, offset = self.sends["sequence"][last], blocks.end_offset[blocks.last[partition]]
        self._add(
            "sends",
            last,
            sequence=sequence + number,
            offset=offset + number,
            value_id=_NEW + len(blocks.number) + cases,
        )

    def _failed_read(self, at: Array) -> None:
        self.sends["outcome"][at], self.sends["offset"][at] = 2, -1
        self.sends["error"][at] = 1

    def _aborted_read(self, at: Array) -> None:
        self.unread[at] = False

    def _retry_reorder(self, at: Array) -> None:
        self._send_again(at, self._copy(at))
        self._failed_read(at)
        self.unread[at] = True

    def _nonmonotonic_send(self, at: Array) -> None:
        self.sends["offset"][at] = self._copy(at)
        self.unread[at] = True

    def _sequence_gap(self, at: Array) -> None:
        self.unsent[at] = self.unread[at] = True

    def _multi_writer(self, at: Array) -> None:
        own = {"offset": self._free(at), "value_id": _NEW + self.block[at]}
        self._add("sends", at, producer=_NEW + self.block[at], sequence=0, **own)
        self._add("reads", at, **own)

    def _skip_within(self, at: Array) -> None:
        """Skip a record that another group reads, or it would be lost."""
        self._alone(at, 2)
        self.unread[at] = True

    def _skip_between(self, at: Array) -> None:
        self._skip_within(at - AT + BLOCK - 1)

    def _nonmonotonic_poll(self, at: Array) -> None:
        """Read the last record of a poll once more in a poll of its own."""
        end = at - AT + BLOCK - 1
        again = {"poll": self.reads["poll"][end] + 1, "time_us": self.reads["time_us"][end] + 500}
        offset = self.reads["offset"][end]
        self._add("reads", end, **again, fetch_offset=offset, applied=False)

    def _reprocess(self, at: Array) -> None:
        self._alone(at, 0, applied=False)

    def _effects_of(self, at: Array) -> Array:
        return np.searchsorted(self.effects["record"], at)

    def _key_order_violation(self, at: Array) -> None:
        """Apply a record after that of the same key four records later."""
        self.effects["time_us"][self._effects_of(at)] += 5

    def _effect_duplicate(self, at: Array) -> None:
        self._add("effects", self._effects_of(at))

    def _offset_without_result(self, at: Array) -> None:
        self.no_effect[self._effects_of(at)] = True

    def _result_without_offset(self, at: Array) -> None:
        """Store a result in a transaction that commits no offset."""
        number = np.searchsorted(self.blocks.results_apart, self.block[at])
        self.effects["transaction"][self._effects_of(at)] = self.blocks.transactions + number

    def _early_read(self, at: Array) -> None:
        """Do nothing to the records: their transaction is decided after they are read."""

    def _open_read(self, at: Array) -> None:
        """Do nothing to the records: their transaction never ends."""

    def _written_late(self, at: Array) -> None:
        begun_us = self.blocks.begun_us[self.block[at]]
        self.sends["send_us"][at] = begun_us + _ENDED_US + 100
        self.sends["answer_us"][at] = begun_us + _ENDED_US + 900

    def _written_fenced(self, at: Array) -> None:
        self.sends["epoch"][at] -= 1

    def _transactions(self) -> Columns:
        blocks = self.blocks
        sent = self.chosen[blocks.transaction[self.chosen] >= 0]
        kind = blocks.kind[sent]
        early, is_open = (kind == _KINDS.index(name) for name in ("early_read", "open_read"))
        begun_us = blocks.begun_us[sent]
        decided_us = np.where(early, blocks.polled_us[sent] + 1_000, begun_us + _DECIDED_US)
        outcome = np.where(is_open, 2, blocks.aborted[sent])
        apart = np.intersect1d(blocks.results_apart, self.chosen)
        number = blocks.transactions + np.searchsorted(blocks.results_apart, apart)
        polled_us, none = blocks.polled_us[apart], np.zeros(len(apart), int)
        producers = blocks.partition * blocks.shape.producers + blocks.turn
        columns = {
            "transaction": (blocks.transaction[sent], number),
            "owner": (producers[sent], -1 - blocks.partition[apart]),
            "epoch": (blocks.epoch[sent], none),
            "outcome": (outcome, none),
            "ended_by": (np.where(is_open, -1, 0), none),
            "epoch_us": (blocks.epoch_us[sent], none),
            "begun_us": (begun_us - 100, polled_us),
            "decided_us": (np.where(is_open, -1, decided_us), polled_us + 5_000),
            "ended_us": (np.where(is_open, -1, decided_us + 500), polled_us + 6_000),
        }
        return {name: np.concatenate(both) for name, both in columns.items()}

    def _commits(self) -> Columns:
        """A commit of each group behind each poll."""
        blocks = self.blocks
        ends = np.intersect1d(blocks.poll_ends, self.chosen)
        of_appliers = ends[blocks.applied[ends]]
        both = np.concatenate([ends, of_appliers])
        return {
            "group": np.repeat([0, 1], [len(ends), len(of_appliers)]),
            "place": blocks.partition[both],
            "offset": blocks.end_offset[both],
            "time_us": blocks.polled_us[both] + 10_000,
        }

    def _operations(self) -> Columns:
        """A produce request for each block, which waits for the followers."""
        blocks, chosen = self.blocks, self.chosen
        start_us, end_us = blocks.begun_us[chosen] + 500, blocks.answered_us[chosen] - 500
        return {
            "broker": blocks.partition[chosen] % 3,
            "operation": chosen,
            "start_us": start_us,
            "end_us": end_us,
            "wait_us": end_us - start_us,
            "place": blocks.partition[chosen],
        }

    def tables(self) -> dict[str, Columns]:
        """All tables without their run ids; words are numbers of `_WORDS`, and -1 is null."""
        blocks = self.blocks
        sends = _together([_those(self.sends, ~self.unsent), *self.more["sends"]])
        applied = _those(self.reads, self.effects["record"])
        applied["group"] = np.ones(len(applied["group"]), int)
        reads = _together([_those(self.reads, ~self.unread), *self.more["reads"], applied])
        effects = _together([_those(self.effects, ~self.no_effect), *self.more["effects"]])
        record = effects.pop("record")
        owner = np.where(sends["transaction"] < 0, _NO_OWNER, sends["producer"])
        made: dict[str, Columns] = {
            "sends": {
                **sends,
                "group": "writers",
                "acks": -1,
                "transactional_id": _transactional_ids(owner),
            },
            "reads": {**reads, "isolation": "read_committed"},
            "effects": {
                **effects,
                "group": "appliers",
                "consumer": self.reads["consumer"][record],
                "place": self.reads["place"][record],
                "offset": self.reads["offset"][record],
                "key": self.sends["key"][record],
            },
            "commits": self._commits(),
            "transactions": self._transactions(),
            "operations": {
                **self._operations(),
                "purgatory": "Produce",
                "keys": 1,
                "timeout_ms": 30_000,
                "outcome": "completed",
                "kind": "producer",
            },
        }
        for table, columns in made.items():
            for name, words in _WORDS.get(table, {}).items():
                columns[name] = _words(columns[name], words)
        transactions = made["transactions"]
        transactions["transactional_id"] = _transactional_ids(transactions.pop("owner"))
        for columns in made.values():
            if "place" in columns:
                place = columns.pop("place")
                columns["topic"] = _words(blocks.topic_of[place], TOPICS)
                columns["partition"] = blocks.number_of[place]
        operations = made["operations"]
        topic, partition = operations["topic"].to_numpy(False), operations["partition"]
        names = pa.array([f"{one}-{number}" for one, number in zip(topic, partition, strict=True)])
        starts = pa.array(np.arange(len(names) + 1, dtype=np.int32))
        operations["watch_keys"] = pa.ListArray.from_arrays(starts, names)
        return made


_WORDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "sends": {"outcome": OUTCOMES, "error": ("REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS")},
    "reads": {"group": GROUPS},
    "commits": {"group": GROUPS},
    "transactions": {"outcome": ("committed", "aborted", "open"), "ended_by": ("producer",)},
}
_NO_OWNER = -(2**40)


def _transactional_ids(owner: Array) -> pa.Array:
    """The transactional ids of producers, and of the appliers of partitions, which are negative."""
    owners, codes = np.unique(owner, return_inverse=True)
    names = [
        None if one == _NO_OWNER else f"mover-{one}" if one >= 0 else f"applier-{-1 - one}"
        for one in owners
    ]
    return pa.array(names, pa.string()).take(pa.array(codes))


def _words(codes: Array, words: Sequence[str]) -> pa.Array:
    places = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(words)).cast(pa.string())


def _those(columns: Columns, chosen: Array) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


def _together(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _order(columns: Columns, seed: int | None) -> Array:
    """In which order the rows of a table are written: by time, or shuffled."""
    times = ("send_us", "time_us", "begun_us", "start_us")
    (by,) = (columns[name] for name in times if name in columns)
    if seed is None:
        return np.argsort(by, kind="stable")
    return np.random.default_rng(seed).permutation(len(by))


def _table(name: str, columns: Columns, run_id: str, order: Array) -> pa.Table:
    """A table with all its columns, in an order; numbers below 0 are null."""
    arrays = {}
    for column, kind in TABLES[name].items():
        values = run_id if column == "run_id" else columns.get(column)
        if isinstance(values, pa.Array):
            arrays[column] = values.take(pa.array(order))
        elif isinstance(values, np.ndarray):
            chosen = values[order]
            mask = chosen < 0 if chosen.dtype.kind == "i" else None
            arrays[column] = pa.array(chosen, _TYPES[kind], mask=mask)
        else:
            arrays[column] = pa.repeat(pa.scalar(values, _TYPES[kind]), len(order))
    return pa.table(arrays)


def _number(text: str) -> int:
    """A number such as 542000, 542k or 20M."""
    factors = {"k": 10**3, "M": 10**6}
    return int(text[:-1]) * factors[text[-1]] if text[-1:] in factors else int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the trace that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="large_traces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="the folder to be made")
    parser.add_argument("--rows", type=_number, required=True, help="sends and reads, such as 20M")
    for name in ("partitions", "producers", "planted", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape, name))
    parser.add_argument("--transactions", action=argparse.BooleanOptionalAction, default=True)
    given = vars(parser.parse_args(arguments))
    folder = given.pop("out")
    try:
        write_large_trace(folder, Shape(**given))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
