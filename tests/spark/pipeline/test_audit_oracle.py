"""The audit against an oracle in plain Python, on hundreds of small traces with many anomalies.

Many runs go through one job: Spark's time is per job, not per row.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from purgatory.pipeline.jobs.audit import (
    ANOMALIES,
    ConsumerSettings,
    ProducerSettings,
    RunConfiguration,
)
from tests.spark.pipeline.audit_rows import (
    Commit,
    Effect,
    Engine,
    Read,
    Send,
    SmallTrace,
    Transaction,
    audited,
    spark_exhaustively,
)
from tests.unit.pipeline.audit_oracle import Oracle

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


Logs = dict[tuple[str, int], list[tuple[int, int]]]
"""Offsets and values by topic and partition."""


def random_trace(seed: int) -> SmallTrace:
    """A small run in which records are lost, copied, swapped, read again and applied at random."""
    chance = random.Random(seed)
    trace = SmallTrace(configuration=_configuration(chance))
    logs: Logs = {(topic, partition): [] for topic in ("orders", "mirror") for partition in (0, 1)}
    _write(chance, trace, logs)
    for group in ("readers", "others")[: chance.choice([1, 2, 2])]:
        _read(chance, trace, logs, group)
    if chance.random() < 0.7:
        _apply(chance, trace)
    if chance.random() < 0.6:
        _transact(chance, trace)
    return trace


def _configuration(chance: random.Random) -> RunConfiguration:
    producers = [
        ProducerSettings(
            group,
            idempotence=chance.choice([True, False, False, None]),
            max_in_flight=chance.choice([1, 5, 5, None]),
            retries=chance.choice([0, 1, 9, None]),
            single_writer=chance.choice([True, False, None]),
        )
        for group in ("w0", "w1")
        if chance.random() < 0.85
    ]
    consumers = [
        ConsumerSettings(
            group,
            assignment=chance.choice(["assign", "subscribe", None]),
            isolation=chance.choice(
                ["read_committed", "read_uncommitted", "read_uncommitted", None]
            ),
        )
        for group in ("readers", "others")
        if chance.random() < 0.85
    ]
    return RunConfiguration(producers, consumers, complete=chance.random() < 0.7)


def _write(chance: random.Random, trace: SmallTrace, logs: Logs) -> None:
    late: list[tuple[tuple[str, int], int]] = []
    for producer in range(chance.randint(1, 3)):
        acks = chance.choice([-1, -1, -1, 1, 0])
        numbers = list(range(chance.randint(1, 8)))
        if chance.random() < 0.2:
            numbers += range(chance.randint(1, 4))  # as a producer does that is started again
        for count, sequence in enumerate(numbers):
            if chance.random() < 0.08:
                continue  # never sent
            value = producer * 100 + count
            partition = chance.choice([0, producer % 2])
            topics = chance.choice([["orders"]] * 6 + [["mirror"], ["orders", "mirror"]])
            for attempt in range(1, chance.choice([1, 1, 1, 2, 3]) + 1):
                outcome = chance.choice(["ok", "ok", "ok", "unknown", "fail"])
                held = {"ok": 0.95, "unknown": 0.6, "fail": 0.1}[outcome]
                topic = topics[attempt % len(topics)]
                log = logs[topic, partition]
                offset = (log[-1][0] if log else -1) + chance.choice([1, 1, 1, 3])
                if chance.random() < held:
                    if chance.random() < 0.15:
                        late.append(((topic, partition), value))
                    else:
                        log.append((offset, value))
                at_us = chance.randrange(60)
                answer_us = None if chance.random() < 0.2 else at_us + chance.randrange(30)
                error = None if outcome == "ok" else chance.choice(["TRANSACTION_ABORTED", "X"])
                told = offset if chance.random() < 0.9 else chance.choice([None, 0, 3])
                trace.sends.append(
                    Send(
                        producer,
                        sequence,
                        value,
                        partition,
                        told if outcome in chance.choice(["ok", "ok unknown"]) else None,
                        f"w{producer % 2}",
                        attempt,
                        value % 3,
                        acks,
                        outcome,
                        error,
                        at_us,
                        answer_us,
                        topic,
                    )
                )
    for place, value in late:
        log = logs[place]
        log.append(((log[-1][0] if log else -1) + 1, value))


def _read(chance: random.Random, trace: SmallTrace, logs: Logs, group: str) -> None:
    for (topic, partition), log in logs.items():
        if chance.random() < 0.1:
            continue  # no member of the group reads it
        for consumer in range(chance.choice([1, 1, 2])):
            at, poll = chance.choice([0, 0, 0, 2]), chance.randrange(3)
            start = log[at][0] if at < len(log) and chance.random() < 0.8 else None
            end = len(log) - chance.choice([0, 0, 2])
            while at < end:
                poll += chance.choice([1, 1, 2])
                size = chance.randint(1, 3)
                for offset, value in log[at : min(at + size, end)]:
                    if chance.random() < 0.05:
                        continue
                    wrong = chance.random() < 0.03
                    trace.reads.append(
                        Read(
                            consumer,
                            poll,
                            partition,
                            offset,
                            900 + chance.randrange(3) if wrong else value,
                            group,
                            poll * 10 + consumer,
                            chance.random() < 0.9,
                            topic,
                            fetch_offset=start,
                        )
                    )
                at += size + chance.choice([0, 0, 0, 0, 0, 1, -1, -2]) if at else size


def _apply(chance: random.Random, trace: SmallTrace) -> None:
    for read in trace.reads:
        if read.group == "readers" or chance.random() < 0.02:
            for _ in range(chance.choice([0, 1, 1, 1, 1, 2])):
                at_us = read.time_us + chance.choice([0, 0, 0, 1, 25])
                trace.effects.append(
                    Effect(
                        read.partition,
                        read.offset,
                        read.value_id % 3,
                        read.value_id % 100 + chance.choice([0, 0, 0, 2]),
                        at_us,
                        read.group,
                        read.consumer,
                        read.topic,
                    )
                )
    for partition in (0, 1):
        if chance.random() < 0.7:
            for _ in range(2):
                topic = chance.choice(["orders", "orders", "mirror"])
                offset = chance.randrange(14)
                trace.commits.append(Commit(partition, offset, group="readers", topic=topic))


def _transact(chance: random.Random, trace: SmallTrace) -> None:
    """Put the rows into transactions, of which some are aborted, open, or not in the trace."""
    for number in range(1, chance.randint(2, 7)):
        begun_us = chance.randrange(60)
        decided_us = chance.choice([None, begun_us + chance.randrange(20)])
        trace.transactions.append(
            Transaction(
                number,
                chance.choice(["a", "a", "b"]),
                chance.randrange(4),
                chance.choice(["committed", "committed", "committed", "aborted", "open"]),
                None,
                chance.choice([None, begun_us - chance.randrange(20)]),
                begun_us,
                decided_us,
                chance.choice([None, begun_us + chance.randrange(20, 60)]),
            )
        )

    def some() -> int | None:
        return chance.choice([None, 99, *(one.transaction for one in trace.transactions)])

    for index, send in enumerate(trace.sends):
        if chance.random() < 0.8:
            one = chance.choice(trace.transactions)
            named = chance.choice([one.transaction] * 8 + [None, 99])
            trace.sends[index] = send._replace(
                transactional_id=one.transactional_id, epoch=one.epoch, transaction=named
            )
    levels = [None, None, None, "read_committed", "read_uncommitted"]
    trace.reads[:] = [read._replace(isolation=chance.choice(levels)) for read in trace.reads]
    trace.effects[:] = [effect._replace(transaction=some()) for effect in trace.effects]
    trace.commits[:] = [
        commit._replace(transaction=some(), held=chance.choice([None, None, True, False]))
        for commit in trace.commits
    ]
    for _ in range(chance.randrange(3)):
        place = chance.randrange(2), chance.randrange(14), chance.randrange(60)
        trace.commits.append(
            Commit(*place, "copiers", transaction=some(), held=chance.choice([None, True, False]))
        )


def _numbered_anew() -> SmallTrace:
    """The numbers of one producer start again: its records 1 and 1 again, of which the later sent
    one, or the one of the higher value, lies first.
    """
    sends = [
        Send(0, sequence, value, 0, offset)
        for sequence, value, offset in [(0, 10, 0), (1, 11, 2), (1, 12, 1), (2, 13, 3)]
    ]
    reads = [Read(0, 1, 0, send.offset or 0, send.value_id) for send in sends]
    return SmallTrace(sends=sends, reads=reads)


def _passed_by(copied: bool) -> SmallTrace:
    """One of two readers skips an aborted record whose response was lost."""
    sends = [Send(0, number, number, 0, number) for number in range(3)]
    lost = sends[1]._replace(outcome="unknown", offset=None, transactional_id="a", epoch=0)
    sends[1] = lost._replace(transaction=1)
    if copied:  # where it was read may be where this one stored it
        sends.append(lost._replace(attempt=2, transaction=2))
    transactions = [
        Transaction(1, "a", 0, "aborted", "coordinator", 0, 0, 5, 6),
        Transaction(2, "a", 0, "committed", "producer", 0, 7, 8, 9),
    ]
    reads = [Read(0, 1, 0, offset, offset, "all", 50) for offset in range(3)]
    reads += [Read(0, 1, 0, offset, offset, "committed", 50) for offset in (0, 2)]
    return SmallTrace(sends=sends, reads=reads, transactions=transactions)


def _applied_twice_at_once() -> list[SmallTrace]:
    effects = [Effect(0, 0, 7, version, 5) for version in (3, 1, 2)]
    return [SmallTrace(effects=effects[n:] + effects[:n]) for n in range(3)]


BY_HAND = {
    "numbered anew": _numbered_anew(),
    "aborted": _passed_by(copied=False),
    "sent again elsewhere": _passed_by(copied=True),
    **{f"applied {n}": trace for n, trace in enumerate(_applied_twice_at_once())},
}
"""Regressions: both engines have the oracle's verdicts on traces that were once judged wrongly."""


@spark_exhaustively
@pytest.mark.parametrize("split", [2, 10**9], ids=["split and stitched", "not split"])
@settings(
    max_examples=1,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes a job per step
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seeds=st.lists(st.integers(0, 2**48), min_size=150, max_size=150, unique=True))
def test_any_trace_gets_the_verdicts_of_the_oracle(
    engine: Engine, split: int, seeds: list[int]
) -> None:
    traces = {f"run-{seed}": random_trace(seed) for seed in seeds} | BY_HAND
    found = audited(engine, traces, split=split, split_us=split * 7)
    for run_id, trace in traces.items():
        assert found[run_id] == Oracle(trace).found(), (run_id, split)


def test_records_of_one_number_have_no_order_among_them() -> None:
    found = Oracle(BY_HAND["numbered anew"]).found()
    assert not [key for key in found if key[0] in ("nonmonotonic_send", "retry_reorder")]


@pytest.mark.parametrize("name", ["aborted", "sent again elsewhere"])
def test_reader_beyond_an_aborted_record_skips_nothing(name: str) -> None:
    found = Oracle(BY_HAND[name]).found()
    told = ["committed"] * (name == "sent again elsewhere")
    assert [key[1] for key in found if key[0] == "poll_skip"] == told


def test_input_applied_twice_at_once_counts_in_version_order() -> None:
    for n in range(3):
        found = Oracle(BY_HAND[f"applied {n}"]).found()
        assert not [key for key in found if key[0] == "key_order_violation"]


def test_random_traces_cover_every_anomaly_and_verdict() -> None:
    seen = {key[::2][:2] for seed in range(400) for key in Oracle(random_trace(seed)).found()}
    assert {anomaly for anomaly, _ in seen} == set(ANOMALIES)
    only_violated = {"nonmonotonic_send", "effect_duplicate", "zombie_write"}
    assert {name for name, verdict in seen if verdict == "violation"} == (
        set(ANOMALIES) - {"unseen", "failed_send"}
    )
    assert {name for name, verdict in seen if verdict == "indeterminate"} == (
        set(ANOMALIES) - only_violated - {"inconsistent_offset", "failed_send"}
    )
    assert {name for name, verdict in seen if verdict == "permitted"} == (
        set(ANOMALIES)
        - only_violated
        - {"unseen", "offset_without_result", "result_without_offset"}
    )
