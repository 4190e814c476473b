"""A run without anomalies, for the tests that inject anomalies into one.

The run has a random shape: producers that own their partitions, sparse offsets, polls of any size,
two consumer groups of which one records its effects and commits; in some runs producers send in
transactions, of which some are aborted.
"""

from __future__ import annotations

import random

from tests.spark.pipeline.audit_rows import Commit, Effect, Read, Send, SmallTrace, Transaction

_READ_US = 10**6
"""When reading begins: all transactions are over by then."""


class CleanRun:
    """A run without anomalies. Each producer owns one partition; each key one partition.

    Args:
        chance: from where its shape comes.
        acks: of all producers.
        effects: whether the group `readers` records effects and commits.

    With `transactional`, which is set at random, producers send in transactions; each commits
    offsets of the group `copiers`.
    """

    def __init__(self, chance: random.Random, acks: int = -1, effects: bool = False) -> None:
        self.chance = chance
        self.acks = acks
        self.effects = effects
        self.transactional = chance.random() < 0.5
        self.partitions = chance.randint(1, 3)
        self.sends: dict[int, list[Send]] = {}
        self.logs: dict[int, list[tuple[int, int]]] = {}
        self.skipped: dict[str, set[tuple[int, int]]] = {"readers": set(), "others": set()}
        self.more_reads: list[Read] = []
        for partition in range(self.partitions):
            self._fill(partition, chance.randint(16, 30))

    def _fill(self, partition: int, records: int) -> None:
        offset = self.chance.randrange(5)
        self.logs[partition] = []
        self.sends[partition] = []
        for sequence in range(records):
            value = partition * 1000 + sequence
            self.logs[partition].append((offset, value))
            self.sends[partition].append(self.send(partition, sequence, offset))
            offset += self.chance.choice([1, 1, 2, 4])

    def send(self, partition: int, sequence: int, offset: int | None, **changes: int) -> Send:
        """An acknowledged send of the partition's producer."""
        send = Send(
            partition,
            sequence,
            partition * 1000 + sequence,
            partition,
            offset,
            key=partition * 100 + sequence % 4,
            acks=self.acks,
            send_us=1000 * sequence,
            answer_us=1000 * sequence + 500,
        )
        return send._replace(**changes)  # type: ignore[arg-type]

    def some(self, k: int, first: int = 2, last: int = -3, step: int = 2) -> list[tuple[int, int]]:
        """Partition and index of k records, not neighbours, and not at the ends."""
        places = [
            (partition, index)
            for partition, log in self.logs.items()
            for index in range(first, len(log) + last, step)
        ]
        return sorted(self.chance.sample(places, k))

    def append(self, partition: int, value: int) -> int:
        """Put a value at the end of a partition's log, and return its offset."""
        log = self.logs[partition]
        log.append((log[-1][0] + self.chance.choice([1, 2]), value))
        return log[-1][0]

    def reads(self) -> list[Read]:
        """The reads of both groups: all records, in polls of any size, each by its own consumer."""
        found = []
        for group in ("readers", "others"):
            for partition, log in self.logs.items():
                poll, left = 0, 0
                for offset, value in log:
                    if not left:
                        poll, left = poll + 1, self.chance.randint(1, 4)
                    left -= 1
                    if (partition, offset) not in self.skipped[group]:
                        found.append(
                            Read(
                                partition,
                                poll,
                                partition,
                                offset,
                                value,
                                group,
                                _READ_US + 10 * offset,
                            )
                        )
        return found + self.more_reads

    def trace(self) -> SmallTrace:
        """The rows, in any order."""
        trace = SmallTrace([send for sends in self.sends.values() for send in sends], self.reads())
        if self.effects:
            for partition, log in self.logs.items():
                trace.effects += [
                    Effect(
                        partition,
                        offset,
                        partition * 100 + index % 4,
                        index,
                        10 * offset + 5,
                        consumer=partition,
                    )
                    for index, (offset, _) in enumerate(log)
                ]
                trace.commits.append(Commit(partition, log[-1][0] + 1, 10**6))
        if self.transactional:
            for partition in self.logs:
                self._transact(trace, partition)
        return trace

    def _transact(self, trace: SmallTrace, partition: int) -> None:
        """Put the sends of a partition's producer into transactions, with aborted ones between."""
        mine = [n for n, send in enumerate(trace.sends) if send.producer == partition]
        name, left, number, aborted, last = f"id{partition}", 0, 0, 0, -1
        for at in sorted(mine, key=lambda n: (trace.sends[n].sequence, trace.sends[n].attempt)):
            send = trace.sends[at]
            if not left and send.value_id != last:
                if self.chance.random() < 0.3:
                    self._abort(trace, send, name, send.sequence + aborted)
                    aborted += 1
                left = self.chance.randint(1, 4)
                number = self._begin(trace, name, send.send_us)
            left, last = left - (send.value_id != last), send.value_id
            trace.sends[at] = send._replace(
                sequence=send.sequence + aborted,
                transactional_id=name,
                epoch=0,
                transaction=number,
            )
            end_us = max(send.send_us, send.answer_us or 0) + 10
            trace.transactions[number - 1] = trace.transactions[number - 1]._replace(
                decided_us=end_us, ended_us=end_us + 10
            )

    def _begin(
        self, trace: SmallTrace, name: str, begun_us: int, outcome: str = "committed"
    ) -> int:
        number = len(trace.transactions) + 1
        trace.transactions.append(
            Transaction(number, name, 0, outcome, epoch_us=0, begun_us=begun_us)
        )
        held = outcome == "committed"
        place = 0, number, begun_us
        trace.commits.append(Commit(*place, "copiers", transaction=number, held=held))
        return number

    def _abort(self, trace: SmallTrace, following: Send, name: str, sequence: int) -> None:
        """Add an aborted transaction of one record: in the log, and never read."""
        begun_us = max(0, following.send_us - 100)
        number = self._begin(trace, name, begun_us, "aborted")
        log = self.logs[following.partition]
        taken = {offset for offset, _ in log} | {send.offset for send in trace.sends}
        free = sorted(set(range(log[0][0], log[-1][0])) - taken)
        # An unknown place means that the response was lost.
        offset = self.chance.choice([*free, None])
        trace.sends.append(
            following._replace(
                sequence=sequence,
                value_id=70_000 + number,
                offset=offset,
                outcome="unknown" if offset is None else "ok",
                attempt=1,
                send_us=begun_us,
                answer_us=begun_us + 1,
                transactional_id=name,
                epoch=0,
                transaction=number,
            )
        )
