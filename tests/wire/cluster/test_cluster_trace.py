"""Sends and reads in a cluster's trace, as brokers observe them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    RecordBatch,
    TopicPartition,
)
from purgatory.trace.table_rows import ReadRow, SendRow
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.wire_values import record_batch

PLACE = TopicPartition("orders", 0)
OUTCOME, ERROR, ANSWERED_AT, OFFSET = 7, 8, 10, 13


class Rows:
    """The written rows."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, ...]] = []
        self.sends: list[tuple[Any, ...]] = []
        self.reads: list[tuple[Any, ...]] = []
        self.commits: list[tuple[Any, ...]] = []
        self.transactions: list[tuple[Any, ...]] = []

    def operation(self, row: tuple[Any, ...]) -> None:
        self.operations.append(row)

    def send(self, row: tuple[Any, ...]) -> None:
        self.sends.append(row)

    def read(self, row: tuple[Any, ...]) -> None:
        self.reads.append(row)

    def commit(self, row: tuple[Any, ...]) -> None:
        self.commits.append(row)

    def transaction(self, row: tuple[Any, ...]) -> None:
        self.transactions.append(row)

    def told(self) -> list[tuple[int, str, str | None, bool]]:
        """Return each send's attempt, outcome, error and whether its answer came at some time."""
        return [
            (row[3], row[OUTCOME], row[ERROR], row[ANSWERED_AT] is not None) for row in self.sends
        ]


class Client:
    """Produces, and is answered."""

    def __init__(self, trace: ClusterTrace, name: str = "shop") -> None:
        self.trace = trace
        self.name = name
        self.connection: Any = SimpleNamespace(is_cut=False)
        self.requests = 0
        self.epoch = self.base_sequence = self.producer_id = -1
        self.offset = 7

    def produce(
        self, value: bytes, error: ErrorCode = ErrorCode.NONE, acks: int = -1, arrives: bool = True
    ) -> None:
        request, batch = self._request(value, acks)
        answer = PartitionProduceResponse(error, base_offset=self.offset)
        came_us = self.trace.now_us()
        self.trace.record_append(
            self.connection, request, {PLACE: [batch]}, {PLACE: answer}, came_us
        )
        if acks:
            self.trace.record_delivery(self.connection, request, arrives)

    def fetch(self, *values: bytes, arrives: bool = True) -> None:
        self.requests += 1
        request: Any = SimpleNamespace(
            client_id=self.name, correlation_id=self.requests, body=SimpleNamespace()
        )
        payload = record_batch(list(values))
        batch = RecordBatch(0, len(values), len(payload), payload=payload)
        answer = PartitionFetchResponse(ErrorCode.NONE, batches=(batch,))
        self.trace.record_fetch(self.connection, request, {PLACE: answer}, {PLACE: 1})
        self.trace.record_delivery(self.connection, request, arrives)

    def leave_while_it_waits(self, value: bytes) -> None:
        request, batch = self._request(value, acks=-1)
        self.trace.record_abandoned(request, {PLACE: [batch]}, self.trace.now_us())
        self.leave(cut=False)

    def _request(self, value: bytes, acks: int) -> tuple[Any, RecordBatch]:
        self.requests += 1
        payload = record_batch([value])
        request = SimpleNamespace(
            client_id=self.name,
            correlation_id=self.requests,
            body=SimpleNamespace(acks=acks, transactional_id=None),
        )
        batch = RecordBatch(
            0,
            1,
            len(payload),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.base_sequence,
            payload=payload,
        )
        return request, batch

    def leave(self, cut: bool) -> None:
        self.connection.is_cut = cut
        self.trace.record_close(self.connection)


@pytest.fixture(name="rows")
def fixture_rows() -> Rows:
    return Rows()


@pytest.fixture(name="trace")
def fixture_trace(rows: Rows) -> ClusterTrace:
    return ClusterTrace(rows)


def test_acknowledged_send_is_recorded_with_its_response(trace: ClusterTrace, rows: Rows) -> None:
    Client(trace).produce(b"a")
    trace.close()
    assert rows.told() == [(1, "ok", None, True)]


def test_acks_0_send_is_recorded_at_once(trace: ClusterTrace, rows: Rows) -> None:
    Client(trace).produce(b"a", acks=0)
    assert rows.told() == [(1, "ok", None, False)]


def test_send_with_a_lost_response_has_an_unknown_outcome(trace: ClusterTrace, rows: Rows) -> None:
    Client(trace).produce(b"a", arrives=False)
    assert rows.told() == [(1, "unknown", "answer lost", False)]


def test_waiting_produce_of_a_gone_client_is_unknown(trace: ClusterTrace, rows: Rows) -> None:
    client = Client(trace)
    client.leave_while_it_waits(b"a")
    Client(trace).produce(b"a")
    trace.close()
    assert rows.told() == [(1, "unknown", "answer lost", False), (2, "ok", None, True)]
    assert rows.sends[0][OFFSET] is None


def test_cut_just_after_a_response_makes_its_outcome_unknown(
    trace: ClusterTrace, rows: Rows
) -> None:
    cut, other = Client(trace), Client(trace, "other")
    cut.produce(b"a")
    other.produce(b"b")
    cut.leave(cut=True)
    trace.close()
    assert rows.told() == [(1, "unknown", "answer lost", False), (1, "ok", None, True)]


def test_cut_spares_a_connection_with_a_reused_id(trace: ClusterTrace, rows: Rows) -> None:
    client = Client(trace)
    client.produce(b"a")
    client.leave(cut=False)
    client.produce(b"b")  # as if by another connection, whose `id` is that of the one before
    client.leave(cut=True)
    trace.close()
    assert rows.told() == [(1, "ok", None, True), (1, "unknown", "answer lost", False)]


def test_client_that_closes_its_connection_has_its_responses(
    trace: ClusterTrace, rows: Rows
) -> None:
    client = Client(trace)
    client.produce(b"a")
    client.leave(cut=False)
    trace.close()
    assert rows.told() == [(1, "ok", None, True)]


def test_resent_record_makes_the_first_outcome_unknown(trace: ClusterTrace, rows: Rows) -> None:
    client, again = Client(trace), Client(trace)  # one client, on a new connection
    client.produce(b"a")
    client.leave(cut=False)
    again.produce(b"a")
    trace.close()
    assert rows.told() == [(1, "unknown", "sent again", False), (2, "ok", None, True)]


def test_equal_record_of_another_client_is_no_resend(trace: ClusterTrace, rows: Rows) -> None:
    Client(trace).produce(b"a")
    Client(trace, "other").produce(b"a")
    trace.close()
    assert [row[OUTCOME] for row in rows.sends] == ["ok", "ok"]


def test_refused_send_stays_refused_after_a_resend(trace: ClusterTrace, rows: Rows) -> None:
    client = Client(trace)
    client.produce(b"a", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    client.produce(b"a")
    trace.close()
    assert rows.told() == [
        (1, "fail", "NOT_LEADER_OR_FOLLOWER", True),
        (2, "ok", None, True),
    ]


def test_timed_out_acks_all_is_unknown_with_a_response(trace: ClusterTrace, rows: Rows) -> None:
    Client(trace).produce(b"a", ErrorCode.REQUEST_TIMED_OUT)
    trace.close()
    assert rows.told() == [(1, "unknown", "REQUEST_TIMED_OUT", True)]


def test_send_is_written_ten_seconds_after_its_response(
    trace: ClusterTrace, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 0
    monkeypatch.setattr(trace, "now_us", lambda: now_us)
    client = Client(trace)
    client.produce(b"a")
    now_us = 10_000_000
    client.produce(b"b")
    assert rows.told() == []
    now_us = 10_000_001
    client.produce(b"c")
    assert rows.told() == [(1, "ok", None, True)]
    client.leave(cut=False)
    Client(trace).produce(b"a")  # too late to take it back: the two can't be distinguished
    trace.close()
    assert rows.told() == [(1, "ok", None, True)] * 4
    last = SendRow(*rows.sends[-1])
    assert (last.value_id != rows.sends[0][5], last.equal_to) == (True, rows.sends[0][5])


def test_resend_window_is_measured_by_the_clock(
    trace: ClusterTrace, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 0
    monkeypatch.setattr(trace, "now_us", lambda: now_us)
    Client(trace).produce(b"a")
    now_us = 15_000_000  # and no other record came since
    Client(trace).produce(b"a")
    trace.close()
    assert rows.told() == [(1, "ok", None, True)] * 2


@pytest.mark.parametrize("producers", [1, 2])
def test_sequence_numbers_distinguish_equal_records(
    trace: ClusterTrace, rows: Rows, producers: int
) -> None:
    clients = [Client(trace) for _ in range(producers)]
    for number in range(4):
        client = clients[number % producers]
        client.producer_id, client.epoch = 7 + number % producers, 0
        client.base_sequence = number // producers
        client.produce(b"up")
    clients[-1].produce(b"up")  # once more under the same number
    trace.close()
    sends = [SendRow(*row) for row in rows.sends]
    assert len({send.value_id for send in sends}) == 4
    assert [send.attempt for send in sends].count(2) == 1
    assert sends[-1].value_id == sends[-2].value_id
    told = [send.equal_to for send in sends[1:4]]
    assert told == ([None] * 3 if producers == 1 else [send.value_id for send in sends[:3]])


def test_equal_records_on_one_connection_are_different_records(
    trace: ClusterTrace, rows: Rows
) -> None:
    client = Client(trace)
    for _ in range(3):
        client.produce(b"up")
    trace.close()
    sends = [SendRow(*row) for row in rows.sends]
    assert rows.told() == [(1, "ok", None, True)] * 3
    assert [send.sequence for send in sends] == [0, 1, 2]
    assert [send.equal_to for send in sends] == [None, *(send.value_id for send in sends[:2])]


def test_read_identifies_one_of_equal_records(trace: ClusterTrace, rows: Rows) -> None:
    client = Client(trace)
    client.produce(b"up")
    client.offset = 8
    client.produce(b"up")
    client.fetch(b"before", *[b"up"] * 9)
    trace.close()
    sends, reads = [SendRow(*row) for row in rows.sends], [ReadRow(*row) for row in rows.reads]
    at = {read.offset: read.value_id for read in reads}
    assert [at[send.offset or 0] for send in sends] == [send.value_id for send in sends]
    assert sends[0].value_id != sends[1].value_id


def test_undelivered_records_are_no_reads_and_begin_a_reading(
    trace: ClusterTrace, rows: Rows
) -> None:
    client = Client(trace)
    for arrives in (True, True, False, True):
        client.fetch(b"before", b"asked for", arrives=arrives)
    first, second, third = (ReadRow(*row).reading for row in rows.reads)
    assert first == second
    assert second != third


def test_records_are_dropped_five_minutes_after_their_last_send(
    trace: ClusterTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 0
    monkeypatch.setattr(trace, "now_us", lambda: now_us)
    client = Client(trace)
    for second in range(1_000):
        now_us = second * 1_000_000
        client.produce(b"%d" % second)
        client.produce(b"again and again")
    assert len(trace._sent) <= 302


def test_sequence_continues_in_a_new_producer_epoch(trace: ClusterTrace, rows: Rows) -> None:
    client = Client(trace)
    client.producer_id = 7

    def send(value: bytes, epoch: int, base_sequence: int, arrives: bool = True) -> None:
        client.epoch, client.base_sequence = epoch, base_sequence
        client.produce(value, arrives=arrives)

    for number, value in enumerate([b"a", b"b", b"c"]):
        send(value, 0, number, arrives=number < 1)
    send(b"b", 1, 0)  # not known to be stored: these come first
    send(b"c", 1, 1)
    send(b"d", 1, 2)
    send(b"e", 2, 0)
    trace.close()
    order = {row[5]: row[2] for row in rows.sends}
    assert sorted(order.values()) == [0, 1, 2, 3, 4], "of five values"
    assert [row[2] for row in rows.sends if row[3] == 2] == [1, 2], "the same when sent again"


def test_refetched_records_are_not_reported_as_processed_twice(
    trace: ClusterTrace, rows: Rows
) -> None:
    client = Client(trace)
    for _ in range(2):
        client.fetch(b"before", b"asked for", b"next")
    assert [(row[2], row[5], row[8]) for row in rows.reads] == [
        (1, 1, False),
        (1, 2, False),
        (2, 1, False),
        (2, 2, False),
    ]


def test_operations_are_recorded_with_their_partitions(trace: ClusterTrace, rows: Rows) -> None:
    config = ClusterConfig(brokers=2, topics=[TopicSpec("orders")])
    with ThreadedCluster(config, trace) as cluster:
        client = ConfluentClient(cluster.bootstrap_servers)
        client.produce("orders", [b"a", b"b"], acks="all")
        assert len(client.read("orders", 0, 2)) == 2
    told = {(row[1], row[9], str(row[10][0])) for row in rows.operations if row[1] != "Heartbeat"}
    assert ("Produce", "producer", "orders-0") in told
    assert ("Fetch", "follower", "orders-0") in told
    assert {key for purgatory, _, key in told if purgatory == "Fetch"} == {"orders-0"}


@pytest.mark.parametrize(
    ("purgatory", "kind"),
    [
        ("Produce", "producer"),
        ("DeleteRecords", "admin"),
        ("ElectLeader", "admin"),
        ("Topic", "admin"),
        ("AlterAcls", "admin"),
        ("Rebalance", "member"),
        ("Sync", "member"),
        ("Heartbeat", "member"),
        ("TransactionMarker", "transaction"),
        ("TransactionTimeout", "transaction"),
        ("ShareFetch", "consumer"),
    ],
)
def test_operation_has_the_kind_of_its_requester(purgatory: str, kind: str) -> None:
    rows: Any = Rows()
    operation: Any = SimpleNamespace(delay_ms=5, _op_keys=("a", "b"))
    ClusterTrace(rows).record_completed(1, purgatory, operation, "expired", 0)
    [row] = rows.operations
    assert (row.purgatory, row.kind, row.keys) == (purgatory, kind, 2)
