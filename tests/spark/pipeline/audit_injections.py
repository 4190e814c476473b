"""Exactly k of each anomaly, put into a clean run. Each injection names its anomalies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tests.spark.pipeline.audit_rows import Commit, Read, Send, SmallTrace, Transaction
from tests.spark.pipeline.clean_run import CleanRun

Added = Counter[str]
"""The number of cases of each anomaly that an injection put in."""

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
    """The last records of a producer lie below others' in its partition, and are not read."""
    _spread(run)
    sends, log = run.sends[0], run.logs[0]
    run.transactional = False  # a lost write is an unseen part of a transaction
    for number in range(k):
        offset = run.chance.choice(log[:-1])[0] + 1 + number % 9
        run.sends[0].append(run.send(0, len(sends) + number, offset))
    return run.trace(), Counter(lost_write=k)


def _read_late(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """K records lie before the offset from which on all readers of their partition asked."""
    run.transactional = False
    first = {partition: log[0][0] for partition, log in run.logs.items()}
    run.logs[0] = [(offset + 10, value) for offset, value in run.logs[0]]
    run.sends[0] = [send._replace(offset=10 + (send.offset or 0)) for send in run.sends[0]]
    for number in range(k):
        run.sends[0].append(run.send(0, len(run.sends[0]), first[0] + number))
    trace = run.trace()
    trace.reads = [read._replace(fetch_offset=first[read.partition] + 9) for read in trace.reads]
    return trace, Counter(lost_write=k)


def _spread(run: CleanRun) -> None:
    """Leave nine free offsets behind each record of the first partition."""
    run.logs[0] = [(10 * offset, value) for offset, value in run.logs[0]]
    run.sends[0] = [send._replace(offset=10 * (send.offset or 0)) for send in run.sends[0]]


def _moved_write(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """K records are acknowledged just behind the offsets at which they are read."""
    _spread(run)
    run.transactional = False  # its records are not read at acknowledged offsets
    for index in run.chance.sample(range(len(run.logs[0]) - 1), k):
        sent = run.sends[0][index]
        run.sends[0][index] = sent._replace(offset=(sent.offset or 0) + run.chance.randint(1, 9))
    return run.trace(), Counter(moved_write=k, duplicate=k)


def _unread_duplicate(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """K records behind all that is read, twice: the broker stored both, one response was lost."""
    for number in range(k):
        partition = run.chance.randrange(run.partitions)
        sends, log = run.sends[partition], run.logs[partition]
        offset = log[-1][0] + 5 + 2 * number
        sent = run.send(partition, len({send.value_id for send in sends}), offset)
        sends.append(sent._replace(outcome="unknown"))
        sends.append(sent._replace(attempt=2, offset=offset + 1))
    return run.trace(), Counter(duplicate=k, lost_ack_duplicate=k, unseen=k)


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
    run.transactional = False  # for a number beside an aborted record may be of its transaction
    for partition, index in reversed(run.some(k)):
        del run.sends[partition][index], run.logs[partition][index]
    return run.trace(), Counter(sequence_gap=k)


def _failed_send(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """Records that were refused for good."""
    run.transactional = False
    for partition, index in run.some(k):
        sent = run.sends[partition][index]
        log = run.logs[partition]
        log[:] = [(offset, value) for offset, value in log if value != sent.value_id]
        run.sends[partition][index] = sent._replace(
            acks=-1, outcome="fail", error="MESSAGE_TOO_LARGE", offset=None
        )
    return run.trace(), Counter(failed_send=k)


def _multi_writer(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    for number in range(k):
        sent = run.send(0, 0, None, producer=100 + number, value_id=50_000 + number, send_us=1500)
        run.sends[0].append(sent._replace(offset=run.append(0, sent.value_id), answer_us=1600))
    # Injected sends don't overlap with each other: one after the other, within the owner's time.
    run.sends[0] = [
        send._replace(send_us=1500 + 10 * send.producer, answer_us=1505 + 10 * send.producer)
        if send.producer >= 100
        else send
        for send in run.sends[0]
    ]
    return run.trace(), Counter(multi_writer=k)


def _poll_skip(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    run.transactional = False  # a reader that skips a part sees it in parts
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
    """A reader gets its last poll once more, and continues from there."""
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


def _aborted_transaction_read(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """Both groups read the records of k transactions that are aborted."""
    trace = run.trace()
    for partition, index in run.some(k):
        offset, value = run.logs[partition][index]
        trace.transactions.append(Transaction(1000 + index + 100 * partition, "x", 0, "aborted"))
        for n, send in enumerate(trace.sends):
            if (send.producer, send.value_id) == (partition, value):
                trace.sends[n] = send._replace(
                    transaction=1000 + index + 100 * partition,
                    outcome=run.chance.choice(["ok", "unknown"]),
                    offset=run.chance.choice([offset, offset, None]),
                )
    return trace, Counter(aborted_read=k)


def _gap_by_aborted(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """Behind each of k records of aborted transactions a number was never sent."""
    trace = run.trace()
    for number, (partition, index) in enumerate(run.some(k, first=3, step=3)):
        places = run.logs[partition][index : index + 2]
        gone = {(partition, offset) for offset, _ in places}
        trace.reads = [read for read in trace.reads if (read.partition, read.offset) not in gone]
        trace.sends = [send for send in trace.sends if send.value_id != places[1][1]]
        _in_one(trace, run, [(partition, index)], Transaction(1000 + number, "x", 0, "aborted"))
    return trace, Counter(sequence_gap=k)


def _written_together(run: CleanRun, k: int) -> list[list[tuple[int, int]]]:
    """Places of k transactions of two records each, that no others have."""
    places = run.some(k, first=0, step=4)
    return [[(partition, index), (partition, index + 1)] for partition, index in places]


def _in_one(
    trace: SmallTrace, run: CleanRun, places: Iterable[tuple[int, int]], end: Transaction
) -> None:
    """Put the records at some places into a transaction of their own."""
    values = {run.logs[partition][index][1] for partition, index in places}
    trace.transactions.append(end)
    trace.sends[:] = [
        send._replace(transaction=end.transaction) if send.value_id in values else send
        for send in trace.sends
    ]


def _partial_transaction(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """The second record of k transactions is not read, and counts as lost, too."""
    trace, added = _lost_write(run, k)
    values = [value for _, value in run.logs[0]]
    lost = [send for send in trace.sends if send.producer == 0 and send.value_id not in values]
    for number, send in enumerate(lost):
        trace.transactions.append(Transaction(1000 + number, "x", 0))
        together = {send.value_id, values[number]}
        trace.sends = [
            one._replace(transaction=1000 + number) if one.value_id in together else one
            for one in trace.sends
        ]
    return trace, added + Counter(partial_transaction=2 * k)


def _early_transaction(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """Both groups read k transactions with read_committed before they are decided, or ever are."""
    trace = run.trace()
    for number, places in enumerate(_written_together(run, k)):
        outcome, decided_us = run.chance.choice([("open", None), ("committed", 10**9)])
        end = Transaction(1000 + number, "x", 0, outcome, decided_us=decided_us)
        _in_one(trace, run, places, end)
        early = {(partition, run.logs[partition][index][0]) for partition, index in places}
        trace.reads = [
            read._replace(isolation="read_committed")
            if (read.partition, read.offset) in early
            else read
            for read in trace.reads
        ]
    return trace, Counter(partial_transaction=2 * k)


def _zombie_write(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """A producer sends k records more after its transactional id was given to another one."""
    zombies = []
    for number in range(k):
        sent = run.send(0, len(run.sends[0]) + number, None)
        outcome = run.chance.choice(["ok", "unknown"])
        offset = run.append(0, sent.value_id)
        zombies.append(sent._replace(outcome=outcome, offset=offset if outcome == "ok" else None))
    trace = run.trace()
    shift = max(send.sequence for send in trace.sends if send.producer == 0) + 1
    epoch_us = zombies[0].send_us - 1
    successor = Transaction(1000, "id0", 5, epoch_us=epoch_us, begun_us=10**9)
    trace.transactions.append(successor)
    for number, send in enumerate(zombies):
        trace.sends.append(send._replace(transactional_id="id0", epoch=4, sequence=shift + number))
    return trace, Counter(zombie_write=k)


def _write_after_the_end(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """The last of the two records of k transactions is sent when its transaction is over."""
    trace = run.trace()
    for number, places in enumerate(_written_together(run, k)):
        first, last = (run.logs[partition][index][1] for partition, index in places)
        sent_us = {send.value_id: send.send_us for send in trace.sends}
        ended_us = sent_us[last] - 1
        assert sent_us[first] <= ended_us
        _in_one(trace, run, places, Transaction(1000 + number, "x", 0, ended_us=ended_us))
    return trace, Counter(zombie_write=k)


def _offset_of_aborted(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """The offsets of k transactions that are aborted, or never end, hold."""
    trace = run.trace()
    for number in range(k):
        outcome = run.chance.choice(["aborted", "open"])
        trace.transactions.append(Transaction(1000 + number, "x", 0, outcome))
        trace.commits.append(Commit(0, number, 0, "copiers", transaction=1000 + number, held=True))
    return trace, Counter(offset_without_result=k)


def _dropped_offset(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """The offsets of k committed transactions are dropped."""
    trace = run.trace()
    for number in range(k):
        trace.transactions.append(Transaction(1000 + number, "x", 0))
        trace.commits.append(Commit(0, number, 0, "copiers", transaction=1000 + number, held=False))
    return trace, Counter(result_without_offset=k)


def _aborted_result(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """K inputs have results in transactions that are aborted, and committed offsets."""
    trace = run.trace()
    for number, at in enumerate(run.chance.sample(range(len(trace.effects)), k)):
        trace.transactions.append(Transaction(1000 + number, "x", 0, "aborted"))
        trace.effects[at] = trace.effects[at]._replace(transaction=1000 + number)
    return trace, Counter(offset_without_result=k)


def _result_apart(run: CleanRun, k: int) -> tuple[SmallTrace, Added]:
    """All results are in transactions with their offsets, but for k that are in others."""
    trace = run.trace()
    for one in (1000, 1001):
        trace.transactions.append(Transaction(one, "x", 0))
    trace.commits = [
        commit._replace(transaction=1000) if commit.group == "readers" else commit
        for commit in trace.commits
    ]
    apart = set(run.chance.sample(range(len(trace.effects)), k))
    trace.effects = [
        effect._replace(transaction=1001 if n in apart else 1000)
        for n, effect in enumerate(trace.effects)
    ]
    return trace, Counter(result_without_offset=k)


def _relay(run: CleanRun, trace: SmallTrace) -> None:
    """Copy every record to another topic, once, where another group reads it: no anomaly."""
    for partition, log in run.logs.items():
        values = dict.fromkeys(value for _, value in log)
        for offset, value in enumerate(values):
            sent = run.send(partition, offset, offset, producer=500 + partition, value_id=value)
            trace.sends.append(sent._replace(topic="relayed"))
            read = Read(partition, offset, partition, offset, value, "relayed", 10**7)
            trace.reads.append(read._replace(topic="relayed"))


INJECTIONS: Mapping[str, tuple[Injection, bool]] = {
    "inconsistent_offset": (_inconsistent_offset, False),
    "duplicate": (_duplicate, False),
    "lost_ack_duplicate": (_lost_ack_duplicate, False),
    "lost_ack_duplicate unread": (_unread_duplicate, False),
    "lost_write": (_lost_write, False),
    "lost_write before all readers": (_read_late, False),
    "moved_write": (_moved_write, False),
    "unseen": (_unseen, False),
    "aborted_read": (_aborted_read, True),
    "retry_reorder": (_retry_reorder, False),
    "nonmonotonic_send": (_nonmonotonic_send, False),
    "sequence_gap": (_sequence_gap, False),
    "failed_send": (_failed_send, False),
    "multi_writer": (_multi_writer, False),
    "poll_skip": (_poll_skip, True),
    "nonmonotonic_poll": (_nonmonotonic_poll, True),
    "reprocess": (_reprocess, True),
    "effect_duplicate": (_effect_duplicate, True),
    "key_order_violation": (_key_order_violation, True),
    "offset_without_result": (_offset_without_result, True),
    "result_without_offset": (_result_without_offset, True),
    "aborted_read of a transaction": (_aborted_transaction_read, False),
    "sequence_gap by an aborted one": (_gap_by_aborted, False),
    "partial_transaction": (_partial_transaction, False),
    "partial_transaction too early": (_early_transaction, False),
    "zombie_write": (_zombie_write, False),
    "zombie_write after the end": (_write_after_the_end, False),
    "offset_without_result by its transaction": (_offset_of_aborted, False),
    "offset_without_result that counts": (_aborted_result, True),
    "result_without_offset by its transaction": (_dropped_offset, False),
    "result_without_offset in one transaction": (_result_apart, True),
}
"""Functions that put in k of each anomaly, and whether the run needs effects and commits for it.

The first word is the anomaly's name; more words tell the ways to put it in apart.
"""


def injected(
    anomaly: str, k: int, seed: int, acks: int = -1, effects: bool = False
) -> tuple[SmallTrace, Added]:
    """A run of random shape with exactly k of an anomaly, and the expected findings.

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
    if run.chance.random() < 0.5:
        _relay(run, trace)
    random.Random(seed).shuffle(trace.sends)
    random.Random(seed).shuffle(trace.reads)
    return trace, added
