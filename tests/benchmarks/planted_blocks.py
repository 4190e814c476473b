"""The blocks of a large trace's records, and those in which anomalies are planted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

TOPICS = ("orders", "payments", "shipments", "invoices")
"""The second group applies the records of the last one."""
GROUPS = ("readers", "appliers", "spare")
OUTCOMES = ("ok", "unknown", "fail")

BLOCK, AT = 8, 3
"""Records of a block; the one that an anomaly changes. Another one has its key."""
POLL_BLOCKS = 62
"""Blocks of a poll: 496 records."""
PART_BLOCKS = 100_000
"""Blocks that are made at once."""

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
KINDS = ("", *_IN_PLAIN, *_IN_APPLIED, *_IN_COMMITTED, *_IN_ABORTED)
"""The ways to plant an anomaly, by the blocks that they need; unseen records need none."""
_WITH_COPY = (
    *("duplicate", "lost_ack_duplicate", "moved_write", "retry_reorder", "nonmonotonic_send"),
    "multi_writer",
)
"""Those that take an offset behind their block."""
_ENDING_POLLS = ("skip_within", "skip_between", "nonmonotonic_poll")
"""Those behind whose block a poll ends, so that none has two of them."""

_RECORDS_PER_SECOND = 20_000
_TURN_US, DECIDED_US, ENDED_US, _POLLED_US, _PERIOD_US = 50_000, 3_500, 4_000, 6_000, 6_500
"""Between two producers; from a block's first send until its transaction is decided and ended, and
it is read; and at least until the next block."""
NEW = 10**12
"""Above all values, and all consumers, of a trace without anomalies."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """The shape of a trace.

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


class Blocks:
    """The blocks of a trace as columns, partition by partition."""

    def __init__(self, shape: Shape) -> None:
        if shape.partitions < len(TOPICS):
            raise ValueError(f"there must be at least {len(TOPICS)} partitions")
        self.shape, self.chance = shape, np.random.default_rng(shape.seed)
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
        numbers = dict.fromkeys(KINDS, planted)
        numbers.update(skip_within=less, skip_between=more, failed_read=less, aborted_read=more)
        numbers.update(early_read=less, open_read=more, written_late=less, written_fenced=more)
        if not self.shape.transactions:
            numbers.update(dict.fromkeys((*_IN_COMMITTED, *_IN_ABORTED), 0), failed_read=planted)
            numbers["result_without_offset"] = 0
        for kinds, allowed in places:
            needed = np.repeat([KINDS.index(kind) for kind in kinds], [numbers[k] for k in kinds])
            (free,) = np.nonzero(allowed)
            if len(free) < len(needed):
                raise ValueError(
                    f"{len(free)} blocks of records are too few for {len(needed)} anomalies: "
                    f"there must be more rows, or fewer planted"
                )
            self.kind[self.chance.choice(free, len(needed), replace=False)] = needed
        self.unseen = np.sort(self.chance.integers(0, self.shape.partitions, planted))
        self.results_apart = np.flatnonzero(self.kind == KINDS.index("result_without_offset"))

    def _place(self) -> None:
        """Give each block its offsets: a marker lies behind a transaction, or a copy."""
        copied = np.isin(self.kind, [KINDS.index(kind) for kind in _WITH_COPY])
        ends = np.cumsum(BLOCK + (copied | (self.transaction >= 0)))
        starts = np.concatenate([[0], ends[:-1]])
        self.offset = starts - starts[self.first][self.partition]
        self.end_offset = ends - starts[self.first][self.partition]

    def _poll(self) -> None:
        ends = self.number % POLL_BLOCKS == POLL_BLOCKS - 1
        ends |= np.isin(self.kind, [KINDS.index(kind) for kind in _ENDING_POLLS])
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
