"""The steps of a transaction over the wire: codes by version, hanging transactions, persistence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.api import response_future
from purgatory.cluster.coordinator_records import TransactionsRecords
from purgatory.kafka import (
    TRANSACTIONS_TOPIC,
    ErrorCode,
    ProducerIdentity,
    TopicPartition,
    TransactionCoordinator,
    TransactionEntry,
    TransactionRecord,
    TransactionResult,
    TransactionState,
)
from purgatory.kafka.transactions.transaction_metadata import LAST_EPOCH
from tests.wire.cluster.conftest import eventually
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

FETCH, LIST_OFFSETS, COORDINATOR, INIT, ADD, ADD_OFFSETS, END, MARKERS, COMMIT = (
    1, 2, 10, 22, 24, 25, 26, 27, 28
)  # fmt: skip
OUT = TopicPartition("out", 0)
OTHERS = [{"name": "out", "partitions": [0]}]
Main = Callable[[Cluster, RawClient], Awaitable[None]]

_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_longs = st.integers(-1, 2**63 - 1)
_partitions = st.builds(TopicPartition, _names, st.integers(0, 2**31 - 1))
_records = st.builds(
    TransactionRecord,
    st.sampled_from([state for state in TransactionState if state.value != "PrepareEpochFence"]),
    _longs,
    st.integers(-1, 2**15 - 1),
    st.integers(1, 2**31 - 1),
    st.frozensets(_partitions, max_size=5),
    _longs,
    _longs,
    _longs,
    st.just(-1),  # this one is not stored
    _longs,
    st.integers(0, 2),
    st.just(False),  # nor is this
)


@settings(max_examples=100)
@given(st.lists(st.tuples(_names, st.none() | _records), min_size=1, max_size=5))
def test_records_of_transactional_ids_round_trip(entries: list[TransactionEntry]) -> None:
    codec = TransactionsRecords()
    assert list(codec.entries(codec.batch(entries))) == entries


@pytest.mark.parametrize("how", list(TransactionResult))
def test_marker_has_producer_result_and_coordinator_epoch(how: TransactionResult) -> None:
    marker = TransactionsRecords().marker(ProducerIdentity(2**40, 7), how, 12)
    assert (marker.producer_id, marker.producer_epoch, marker.base_sequence) == (2**40, 7, -1)
    assert (marker.control, marker.coordinator_epoch) == (how, 12)
    assert marker.transactional
    assert marker.size_bytes == 78, "as Kafka's"


def _run(main: Main, **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(**{"brokers": 1, "topics": [TopicSpec("out")], **options})
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            await main(cluster, client)

    asyncio.run(run())


async def _init(client: RawClient, timeout_ms: int = 60_000, **more: Any) -> ProducerIdentity:
    values = {"transactional_id": "t", "transaction_timeout": timedelta(milliseconds=timeout_ms)}
    answer = await client.ask(INIT, 4, {**values, "producer_id": -1, "producer_epoch": -1, **more})
    assert answer.error_code == 0, answer
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def _of(producer: ProducerIdentity, **more: Any) -> dict[str, Any]:
    return {"transactional_id": "t", **producer._asdict(), **more}


async def _add(client: RawClient, producer: ProducerIdentity, version: int = 3) -> int:
    v3 = {f"v3_and_below_{name}": value for name, value in _of(producer, topics=OTHERS).items()}
    answer = await client.ask(ADD, version, v3)
    [topic] = answer.results_by_topic_v3_and_below
    return int(topic.results_by_partition[0].partition_error_code)


async def _produce(
    client: RawClient,
    producer: ProducerIdentity,
    value: bytes,
    sequence: int = 0,
    *,
    version: int = 9,
    transactional_id: str | None = "t",
) -> int:
    records = record_batch([value], producer.producer_id, sequence, producer.producer_epoch, True)
    data = [{"name": "out", "partition_data": [{"index": 0, "records": records}]}]
    values = {"acks": -1, "timeout": timedelta(seconds=10), "topic_data": data}
    answer = await client.ask(0, version, {"transactional_id": transactional_id, **values})
    return int(answer.responses[0].partition_responses[0].error_code)


async def _end(client: RawClient, producer: ProducerIdentity, version: int = 3) -> int:
    answer = await client.ask(END, version, _of(producer, committed=True))
    return int(answer.error_code)


async def _stable_end(client: RawClient) -> int:
    asked = [{"name": "out", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = await client.ask(LIST_OFFSETS, 7, {"isolation_level": 1, "topics": asked})
    return int(answer.topics[0].partitions[0].offset)


def test_fenced_producer_gets_the_error_code_of_its_version() -> None:
    async def main(_: Cluster, client: RawClient) -> None:
        first = await _init(client)
        await _init(client)
        for version in range(5):
            fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
            assert await _end(client, first, version) == fenced
            if version < 4:
                assert await _add(client, first, version) == fenced
                answer = await client.ask(ADD_OFFSETS, version, _of(first, group_id="g"))
                assert answer.error_code == fenced
        for version, code in ((3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, fenced)):
            answer = await client.ask(INIT, version, _of(first, transaction_timeout=_SECOND))
            assert answer.error_code == code
            assert answer.producer_id == -1

    _run(main)


_SECOND = timedelta(seconds=1)


async def _end_anew(
    client: RawClient, producer: ProducerIdentity, committed: bool = True
) -> tuple[int, ProducerIdentity]:
    answer = await client.ask(END, 5, _of(producer, committed=committed))
    return int(answer.error_code), ProducerIdentity(answer.producer_id, answer.producer_epoch)


async def _commit_offset(client: RawClient, producer: ProducerIdentity, version: int) -> int:
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    topics = [{"name": "out", "partitions": [partition]}]
    asked = _of(producer, group_id="g", generation_id=-1, member_id="", topics=topics)
    answer = await client.ask(COMMIT, version, asked)
    return int(answer.topics[0].partitions[0].error_code)


def test_leaders_add_partitions_and_each_end_raises_the_epoch() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        first = producer = await _init(client)
        for committed in (True, False, True):
            assert await _produce(client, producer, b"0", version=12) == 0
            assert await _produce(client, producer, b"1", 1, version=12) == 0
            assert await _commit_offset(client, producer, 5) == 0
            code, following = await _end_anew(client, producer, committed)
            assert code == 0
            assert following == (producer.producer_id, producer.producer_epoch + 1)
            # A producer without the response retries; late batches are refused.
            assert await _end_anew(client, producer, committed) == (0, following)
            late = await _produce(client, producer, b"late", 2, version=12)
            assert late == ErrorCode.INVALID_PRODUCER_EPOCH
            assert await _commit_offset(client, producer, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
            producer = following
        code, following = await _end_anew(client, producer)
        assert (code, following) == (ErrorCode.INVALID_TXN_STATE, (-1, -1)), "there is none"
        code, following = await _end_anew(client, producer, committed=False)
        assert (code, following.producer_epoch) == (0, producer.producer_epoch + 1)
        assert (await _end_anew(client, first))[0] == ErrorCode.PRODUCER_FENCED
        # A marker for each of three, two records for each.
        assert await _stable_end(client) == 9

    _run(main)


def test_killed_coordinator_does_not_block_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        producer = await _init(client)
        with monkeypatch.context() as patch:
            patch.setattr(response_future, "_COORDINATOR_TIMEOUT_S", 0.1)
            patch.setattr(TransactionCoordinator, "add_partitions", lambda *_: None)
            code = await _produce(client, producer, b"0", version=12)
            assert code == ErrorCode.NOT_ENOUGH_REPLICAS
            code = await _commit_offset(client, producer, 5)
            assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await _produce(client, producer, b"0", version=12) == 0
        assert (await _end_anew(client, producer))[0] == 0

    _run(main)


def test_the_last_epoch_is_followed_by_a_new_id() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _init(client)
        transactions = cluster.brokers[1].transactions
        known = transactions._state_manager.find("t")
        assert known is not None
        known.record = known.record._replace(producer_epoch=LAST_EPOCH)
        producer = ProducerIdentity(known.record.producer_id, LAST_EPOCH)
        assert await _produce(client, producer, b"last", version=12) == 0
        code, following = await _end_anew(client, producer)
        assert (code, following.producer_epoch) == (0, 0)
        assert following.producer_id != producer.producer_id
        assert await _end_anew(client, producer) == (0, following)
        late = await _produce(client, producer, b"late", 1, version=12)
        assert late == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await _produce(client, following, b"first", version=12) == 0
        assert (await _end_anew(client, following))[0] == 0
        assert await _stable_end(client) == 4

    _run(main)


@pytest.mark.parametrize("version", range(5))
def test_clients_get_the_results_of_transactions(version: int) -> None:
    async def main(_: Cluster, client: RawClient) -> None:
        software = {"client_software_name": "t", "client_software_version": "1"}
        answer = await client.ask(18, version, software if version >= 3 else {})
        if version >= 3:
            levels = {known.name: known.max_version_level for known in answer.finalized_features}
            assert levels["transaction.version"] == 2
            supported = {known.name for known in answer.supported_features}
            assert ("transaction.version" in supported) == (version >= 4)

    _run(main)


def test_a_record_outside_of_any_transaction_opens_none() -> None:
    async def main(_: Cluster, client: RawClient) -> None:
        producer = await _init(client)
        assert await _produce(client, producer, b"early") == ErrorCode.INVALID_TXN_STATE
        assert await _add(client, producer) == 0
        assert await _produce(client, producer, b"in time") == 0
        assert await _produce(client, producer, b"more", 1, transactional_id="other") == 0, (
            "it isn't asked for each batch"
        )
        assert await _end(client, producer) == 0
        assert await _stable_end(client) == 3
        assert await _produce(client, producer, b"late", 2) == ErrorCode.INVALID_TXN_STATE
        offsets = _of(producer, group_id="g", topics=_committing(5))
        answer = await client.ask(COMMIT, 3, offsets)
        code = answer.topics[0].partitions[0].error_code
        assert code == ErrorCode.INVALID_TXN_STATE
        assert await _stable_end(client) == 3

    _run(main)


def _committing(offset: int) -> list[dict[str, Any]]:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    return [{"name": "out", "partitions": [partition]}]


def test_pending_offsets_are_unstable_on_request() -> None:
    async def main(_: Cluster, client: RawClient) -> None:
        async def fetched(stable: bool, topics: Any = None) -> tuple[int, int]:
            asked = {"group_id": "g", "topics": topics, "require_stable": stable}
            [topic] = (await client.ask(9, 7, asked)).topics
            return topic.partitions[0].error_code, topic.partitions[0].committed_offset

        named = [{"name": "out", "partition_indexes": [0]}]
        producer = await _init(client)
        added = await client.ask(ADD_OFFSETS, 3, _of(producer, group_id="g"))
        assert added.error_code == 0
        offsets = _of(producer, group_id="g", topics=_committing(5))
        answer = await client.ask(COMMIT, 3, offsets)
        assert answer.topics[0].partitions[0].error_code == 0
        assert await fetched(False, named) == (0, -1)
        assert await fetched(True, named) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        asked = {"group_id": "g", "topics": None, "require_stable": True}
        assert (await client.ask(9, 7, asked)).topics == (), "no offset is committed yet"
        assert await _end(client, producer) == 0
        assert await fetched(True) == (0, 5)

    _run(main)


def test_transactions_are_described_and_listed() -> None:
    async def main(_: Cluster, client: RawClient) -> None:
        producer = await _init(client, 5_000)
        assert await _add(client, producer) == 0
        assert await _produce(client, producer, b"x") == 0
        answer = await client.ask(65, 0, {"transactional_ids": ["t", "none", ""]})
        one, unknown, empty = answer.transaction_states
        assert (one.transaction_state, one.producer_id) == ("Ongoing", producer.producer_id)
        assert one.transaction_timeout == timedelta(seconds=5)
        assert one.transaction_start_time.year > 2000
        assert [(topic.topic, topic.partitions) for topic in one.topics] == [("out", (0,))]
        assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert empty.error_code == ErrorCode.INVALID_REQUEST

        async def listed(**filters: Any) -> list[str]:
            answer = await client.ask(66, 2, {"duration_filter": -1, **filters})
            assert answer.error_code == 0
            return [one.transactional_id for one in answer.transaction_states]

        assert await listed() == ["t"]
        assert await listed(state_filters=["Ongoing"], producer_id_filters=[producer[0]]) == ["t"]
        assert await listed(state_filters=["Empty"]) == []
        assert await listed(producer_id_filters=[1]) == []
        assert await listed(duration_filter=60_000) == []
        assert await listed(duration_filter=0, transactional_id_pattern="[a-z]") == ["t"]
        assert await listed(transactional_id_pattern="x.*") == []
        for pattern in ("(", "(?=t).*", r"(t)\1"):  # as RE2 refuses them
            wrong = await client.ask(66, 2, {"transactional_id_pattern": pattern})
            assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        await _init(client, transactional_id="a" * 100 + "!")
        assert await listed(transactional_id_pattern="(a+)+b") == [], "within linear time"
        odd = await client.ask(66, 0, {"state_filters": ["Odd"]})
        assert odd.unknown_state_filters == ("Odd",)
        asked = {"topics": [{"name": "out", "partition_indexes": [0, 9]}]}
        known, missing = (await client.ask(61, 0, asked)).topics[0].partitions
        [active] = known.active_producers
        assert ProducerIdentity(active.producer_id, active.producer_epoch) == producer
        assert (active.last_sequence, active.current_txn_start_offset) == (0, 0)
        assert active.last_timestamp > 0
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # The last transaction's begin stays, as does the time of its marker.
        assert (await _end_anew(client, producer))[0] == 0
        ended = (await client.ask(65, 0, {"transactional_ids": ["t"]})).transaction_states[0]
        assert ended.transaction_state == "CompleteCommit"
        assert ended.transaction_start_time == one.transaction_start_time
        assert await listed(duration_filter=0, state_filters=["CompleteCommit"]) == ["t"]
        [marked] = (await client.ask(61, 0, asked)).topics[0].partitions[0].active_producers
        assert (marked.producer_epoch, marked.last_sequence) == (producer.producer_epoch + 1, -1)
        assert marked.last_timestamp >= active.last_timestamp

    _run(main)


def test_write_txn_markers_ends_a_hanging_transaction() -> None:
    async def main(_: Cluster, client: RawClient) -> None:
        producer = await _init(client)
        await _add(client, producer)
        await _produce(client, producer, b"x")
        assert await _stable_end(client) == 0
        marker = {
            **producer._asdict(),
            "transaction_result": False,
            "coordinator_epoch": 5,
            "topics": [{"name": "out", "partition_indexes": [0, 9]}],
        }
        [written] = (await client.ask(MARKERS, 1, {"markers": [marker]})).markers
        codes = [one.error_code for one in written.topics[0].partitions]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await _stable_end(client) == 2

    _run(main)


def test_marker_in_the_coordinators_log_does_not_prevent_a_start() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        producer = await _init(client)
        topics = [{"name": TRANSACTIONS_TOPIC, "partition_indexes": [0]}]
        marker = {**producer._asdict(), "transaction_result": True, "topics": topics}
        [written] = (await client.ask(MARKERS, 1, {"markers": [marker]})).markers
        assert written.topics[0].partitions[0].error_code == 0
        await cluster.kill(1)
        await cluster.revive(1)
        async with await RawClient.to(cluster) as again:
            assert (await _init(again)).producer_id == producer.producer_id

    _run(main, transactions_partitions=1)


def test_the_coordinator_of_a_transactional_id_is_found() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        answer = await client.ask(COORDINATOR, 2, {"key": "t", "key_type": 1})
        assert (answer.error_code, answer.node_id) == (0, 1)
        assert cluster.controller.topics[TRANSACTIONS_TOPIC].internal
        answer = await client.ask(COORDINATOR, 2, {"key": "t", "key_type": 7})
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    _run(main)


def test_open_transaction_is_committed_after_a_restart(tmp_path: Path) -> None:
    producers: list[ProducerIdentity] = []

    async def begin(_: Cluster, client: RawClient) -> None:
        producers.append(await _init(client))
        await _add(client, producers[0])
        await _produce(client, producers[0], b"x")

    async def end(_: Cluster, client: RawClient) -> None:
        assert await _stable_end(client) == 0
        assert await _end(client, producers[0]) == 0
        assert await _stable_end(client) == 2
        again = await _init(client)
        assert again == (producers[0].producer_id, producers[0].producer_epoch + 1)

    _run(begin, data_dir=tmp_path)
    _run(end, data_dir=tmp_path)


def test_transaction_is_aborted_at_its_timeout() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        producer = await _init(client, timeout_ms=300)
        await _add(client, producer)
        await _produce(client, producer, b"x")
        log = cluster.brokers[1].manager.partition(OUT)
        assert log is not None
        await eventually(lambda: log.last_stable_offset == 2)
        assert await _end(client, producer) == ErrorCode.PRODUCER_FENCED

    _run(main)


def test_markers_wait_while_the_link_is_cut() -> None:
    async def main(cluster: Cluster, _: RawClient) -> None:
        cluster.transactions_partitions()
        state = cluster.controller.state_of(
            cluster.brokers[1].transactions.coordinator_partition("t")
        )
        assert state is not None
        # The broker has no replica of the transactions topic.
        [leader] = set(cluster.brokers) - set(state.replicas)
        cluster.controller.create_assigned_topic("out", [(leader,)], {})
        async with (
            await RawClient.to(cluster, state.leader) as asking,
            await RawClient.to(cluster, leader) as writing,
        ):
            producer = await _init(asking)
            await _add(asking, producer)
            await _produce(writing, producer, b"x")
            coordinator = cluster.brokers[state.leader].transactions
            with cluster.fault.cut_link(state.leader, leader):
                ending = asyncio.ensure_future(_end(asking, producer))
                await eventually(
                    lambda: coordinator.describe("t").state is TransactionState.PREPARE_COMMIT
                )
                assert await _stable_end(writing) == 0
                assert not ending.done()
            assert await ending == 0
            assert await _stable_end(writing) == 2

    _run(main, brokers=4, topics=[])


def test_markers_go_to_the_new_leader() -> None:
    async def main(cluster: Cluster, _: RawClient) -> None:
        cluster.transactions_partitions()
        state = cluster.controller.state_of(
            cluster.brokers[1].transactions.coordinator_partition("t")
        )
        assert state is not None
        [leader] = set(cluster.brokers) - set(state.replicas)
        other = next(one for one in state.replicas if one != state.leader)
        cluster.controller.create_assigned_topic("out", [(leader, other)], {})
        async with (
            await RawClient.to(cluster, state.leader) as asking,
            await RawClient.to(cluster, leader) as writing,
            await RawClient.to(cluster, other) as reading,
        ):
            producer = await _init(asking)
            await _add(asking, producer)
            await _produce(writing, producer, b"x")
            coordinator = cluster.brokers[state.leader].transactions
            with cluster.fault.cut_link(state.leader, leader):
                ending = asyncio.ensure_future(_end(asking, producer))
                await eventually(
                    lambda: coordinator.describe("t").state is TransactionState.PREPARE_COMMIT
                )
                cluster.controller.reassign(OUT, (other, leader))
                cluster.controller.elect_preferred()
                assert await ending == 0, "though the link is still cut"
                assert coordinator.describe("t").state is TransactionState.COMPLETE_COMMIT
                assert await _stable_end(reading) == 2

    _run(main, brokers=4, topics=[])
