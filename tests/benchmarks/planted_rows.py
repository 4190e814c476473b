"""The rows of a large trace's blocks, with what is planted in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory.trace.trace_schema import TABLES
from tests.benchmarks.planted_blocks import (
    AT,
    BLOCK,
    DECIDED_US,
    ENDED_US,
    GROUPS,
    KINDS,
    NEW,
    OUTCOMES,
    TOPICS,
    Array,
    Blocks,
)

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}

Columns = dict[str, Any]


class Part:
    """The rows of some blocks as columns: row n of `sends` and of `reads` is record n."""

    def __init__(self, blocks: Blocks, chosen: Array) -> None:
        self.blocks, self.chosen = blocks, chosen
        self.block = np.repeat(chosen, BLOCK)
        self.position = np.tile(np.arange(BLOCK), len(chosen))
        self.index = blocks.number[self.block] * BLOCK + self.position
        records = len(self.block)
        self.unsent, self.unread = np.zeros(records, bool), blocks.aborted[self.block]
        self.more: dict[str, list[Columns]] = {"sends": [], "reads": [], "effects": []}
        self._fill()
        for number, kind in enumerate(KINDS[1:], 1):
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
        own = {"consumer": NEW + self.block[at], "poll": 1, "fetch_offset": offset}
        self._add("reads", at, group=group, **own, **columns)

    def _inconsistent_offset(self, at: Array) -> None:
        self._alone(at, 2, value_id=NEW + self.block[at])

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
            value_id=NEW + len(blocks.number) + cases,
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
        own = {"offset": self._free(at), "value_id": NEW + self.block[at]}
        self._add("sends", at, producer=NEW + self.block[at], sequence=0, **own)
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
        self.sends["send_us"][at] = begun_us + ENDED_US + 100
        self.sends["answer_us"][at] = begun_us + ENDED_US + 900

    def _written_fenced(self, at: Array) -> None:
        self.sends["epoch"][at] -= 1

    def _transactions(self) -> Columns:
        blocks = self.blocks
        sent = self.chosen[blocks.transaction[self.chosen] >= 0]
        kind = blocks.kind[sent]
        early, is_open = (kind == KINDS.index(name) for name in ("early_read", "open_read"))
        begun_us = blocks.begun_us[sent]
        decided_us = np.where(early, blocks.polled_us[sent] + 1_000, begun_us + DECIDED_US)
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


def rows_order(columns: Columns, seed: int | None) -> Array:
    """In which order the rows of a table are written: by time, or shuffled."""
    times = ("send_us", "time_us", "begun_us", "start_us")
    (by,) = (columns[name] for name in times if name in columns)
    if seed is None:
        return np.argsort(by, kind="stable")
    return np.random.default_rng(seed).permutation(len(by))


def rows_table(name: str, columns: Columns, run_id: str, order: Array) -> pa.Table:
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
