"""A run in which all is in order, and exactly k of each anomaly put into it.

The run has random shape: producers that own their partitions, sparse offsets, polls of any size,
two consumer groups of which one records its effects and commits. Each injection says what it adds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

from tests.analysis.audit_rows import Commit, Effect, Read, Send, SmallTrace

Added = Counter[str]
"""How many cases of each anomaly an injection put in."""


class CleanRun:
    """A run without anomalies. Each producer owns one partition; each key one partition.

    Args:
        chance: from where its shape comes.
        acks: of all producers.
        effects: whether the group `readers` records effects and commits.
    """

    def __init__(self, chance: random.Random, acks: int = -1, effects: bool = False) -> None:
        self.chance = chance
        self.acks = acks
        self.effects = effects
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
        """What both groups read: all, in polls of any size, each from its own consumer."""
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
                            Read(partition, poll, partition, offset, value, group, 10 * offset)
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
        return trace


Injection = Callable[[CleanRun, int], tuple[SmallTrace, Added]]


def _nothing(run: CleanRun, _: int) -> tuple[SmallTrace, Added]:
    return run.trace(), Counter()


def _inconsistent_offset(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    trace = run.trace()
    places = {(partition, run.logs[partition][index][0]) for partition, index in run.some(k)}
    trace.reads = [
        read._replace(value_id=10**6 + read.value_id)
        if read.group == "others" and (read.partition, read.offset) in places
        else read
        for read in trace.reads
    ]
    return trace, Counter(inconsistent_offset=k)


def _duplicate(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for partition, index in run.some(k):
        run.append(partition, run.logs[partition][index][1])
    return run.trace(), Counter(duplicate=k)


def _lost_ack_duplicate(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for partition, index in run.some(k):
        sent = run.sends[partition][index]
        copy = run.append(partition, sent.value_id)
        run.sends[partition][index] = sent._replace(outcome="unknown", offset=None)
        run.sends[partition].append(sent._replace(attempt=2, offset=copy))
    return run.trace(), Counter(duplicate=k, lost_ack_duplicate=k)


def _lost_write(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """The last records of a producer lie below others' in its partition, and nobody reads them."""
    sends, log = run.sends[0], run.logs[0]
    spread = [(10 * offset, value) for offset, value in log]
    run.logs[0] = spread
    run.sends[0] = [send._replace(offset=10 * (send.offset or 0)) for send in sends]
    for number in range(k):
        offset = run.chance.choice(spread[:-1])[0] + 1 + number % 9
        run.sends[0].append(run.send(0, len(sends) + number, offset))
    return run.trace(), Counter(lost_write=k)


def _unseen(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for number in range(k):
        partition = run.chance.randrange(run.partitions)
        sends, log = run.sends[partition], run.logs[partition]
        sends.append(run.send(partition, len(sends), log[-1][0] + 5 + number))
    return run.trace(), Counter(unseen=k)


def _aborted_read(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for partition, index in run.some(k):
        sent = run.sends[partition][index]
        run.sends[partition][index] = sent._replace(outcome="fail", offset=None, error="X")
    return run.trace(), Counter(aborted_read=k)


def _retry_reorder(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for partition, index in run.some(k):
        sent = run.sends[partition][index]
        run.sends[partition][index] = sent._replace(outcome="fail", offset=None)
        run.sends[partition].append(sent._replace(attempt=2, offset=_displace(run, sent)))
    return run.trace(), Counter(retry_reorder=k)


def _nonmonotonic_send(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for partition, index in run.some(k):
        sent = run.sends[partition][index]
        run.sends[partition][index] = sent._replace(offset=_displace(run, sent))
    return run.trace(), Counter(nonmonotonic_send=k)


def _displace(run: CleanRun, sent: Send) -> int:
    """Move a record from its place to the end of its log."""
    log = run.logs[sent.partition]
    log[:] = [(offset, value) for offset, value in log if value != sent.value_id]
    return run.append(sent.partition, sent.value_id)


def _sequence_gap(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for partition, index in reversed(run.some(k)):
        del run.sends[partition][index], run.logs[partition][index]
    return run.trace(), Counter(sequence_gap=k)


def _multi_writer(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for number in range(k):
        sent = run.send(0, 0, None, producer=100 + number, value_id=50_000 + number, send_us=1500)
        run.sends[0].append(sent._replace(offset=run.append(0, sent.value_id), answer_us=1600))
    # What was injected does not overlap with itself: one after the other, within the owner's time.
    run.sends[0] = [
        send._replace(send_us=1500 + 10 * send.producer, answer_us=1505 + 10 * send.producer)
        if send.producer >= 100
        else send
        for send in run.sends[0]
    ]
    return run.trace(), Counter(multi_writer=k)


def _poll_skip(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    trace = run.trace()
    polls = sorted({(read.partition, read.poll) for read in trace.reads if read.group == "others"})
    last = dict(polls)
    inner = [poll for poll in polls if 1 < poll[1] < last[poll[0]] and poll[1] % 2 == 0]
    chosen = set(run.chance.sample(inner, min(k, len(inner))))
    trace.reads = [
        read
        for read in trace.reads
        if read.group != "others" or (read.partition, read.poll) not in chosen
    ]
    return trace, Counter(poll_skip=len(chosen))


def _nonmonotonic_poll(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """A reader gets its last poll once more, and goes on from there."""
    trace, added = run.trace(), Counter[str]()
    for partition in run.logs:
        mine = [
            read for read in trace.reads if (read.group, read.partition) == ("others", partition)
        ]
        last = max(read.poll for read in mine)
        for again in range(k):
            repeated = [
                read._replace(poll=last + 1 + again, applied=False)
                for read in mine
                if read.poll == last
            ]
            trace.reads += repeated
            added["nonmonotonic_poll"] += 1
            added["reprocess"] += 0 if again else len(repeated)
    return trace, added


def _reprocess(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for number, (partition, index) in enumerate(run.some(k)):
        offset, value = run.logs[partition][index]
        read = Read(900 + number, 1, partition, offset, value, "readers", 10**5, applied=False)
        run.more_reads.append(read)
    return run.trace(), Counter(reprocess=k)


def _effect_duplicate(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    trace = run.trace()
    trace.effects += run.chance.sample(trace.effects, k)
    return trace, Counter(effect_duplicate=k)


def _key_order_violation(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """Of each of k keys, one version is applied just after the next one."""
    trace = run.trace()
    keys = sorted({effect.key for effect in trace.effects})
    chosen = run.chance.sample(keys, min(k, len(keys)))
    for key in chosen:
        versions = [n for n, effect in enumerate(trace.effects) if effect.key == key]
        place = run.chance.randrange(len(versions) - 1)
        early, later = versions[place], versions[place + 1]
        after_us = trace.effects[later].time_us + 1
        trace.effects[early] = trace.effects[early]._replace(time_us=after_us)
    return trace, Counter(key_order_violation=len(chosen))


def _offset_without_result(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    trace = run.trace()
    for effect in run.chance.sample(trace.effects, k):
        trace.effects.remove(effect)
    return trace, Counter(offset_without_result=k)


def _result_without_offset(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    trace = run.trace()
    trace.commits[0] = trace.commits[0]._replace(offset=run.logs[0][-k][0])
    return trace, Counter(result_without_offset=k)


INJECTIONS: Mapping[str, tuple[Injection, bool]] = {
    "inconsistent_offset": (_inconsistent_offset, False),
    "duplicate": (_duplicate, False),
    "lost_ack_duplicate": (_lost_ack_duplicate, False),
    "lost_write": (_lost_write, False),
    "unseen": (_unseen, False),
    "aborted_read": (_aborted_read, True),
    "retry_reorder": (_retry_reorder, False),
    "nonmonotonic_send": (_nonmonotonic_send, False),
    "sequence_gap": (_sequence_gap, False),
    "multi_writer": (_multi_writer, False),
    "poll_skip": (_poll_skip, True),
    "nonmonotonic_poll": (_nonmonotonic_poll, True),
    "reprocess": (_reprocess, True),
    "effect_duplicate": (_effect_duplicate, True),
    "key_order_violation": (_key_order_violation, True),
    "offset_without_result": (_offset_without_result, True),
    "result_without_offset": (_result_without_offset, True),
}
"""How to put in k of each anomaly, and whether the run needs effects and commits for it."""


def injected(
    anomaly: str, k: int, seed: int, acks: int = -1, effects: bool = False
) -> tuple[SmallTrace, Added]:
    """A run of random shape with exactly k of an anomaly, and what is to be found in it.

    Args:
        anomaly: which; an empty name puts in nothing.
        k: how many.
        seed: from where all chance comes.
        acks: of all producers.
        effects: record effects and commits even where the anomaly does not need them.
    """
    inject, needs_effects = INJECTIONS.get(
        anomaly, (lambda run, _: (run.trace(), Counter()), False)
    )
    run = CleanRun(random.Random(f"{anomaly} {seed}"), acks, effects or needs_effects)
    trace, added = inject(run, k)
    random.Random(seed).shuffle(trace.sends)
    random.Random(seed).shuffle(trace.reads)
    return trace, added
