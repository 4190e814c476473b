"""The audit of transactions through a proxy that injects faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster, TopicSpec
from purgatory.kafka import ErrorCode
from purgatory.pipeline.jobs.audit.client_settings import (
    ConsumerSettings,
    ProducerSettings,
    RunConfiguration,
)
from purgatory.proxy import ProxyConfig, ThreadedProxy
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_python_client import KafkaPythonClient
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.test_transaction_steps import _commit_offset, _end_anew, _init, _produce
from tests.wire.cluster.transactional_run import (
    COMMITTED,
    CONSUMERS,
    PRODUCERS,
    RESULTS,
    UNCOMMITTED,
    copy_in_transactions,
    create_topics,
    producer,
    read_results,
    take_over,
)
from tests.wire.cluster.wire_values import CLIENT_ID

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONFIGURATION = RunConfiguration(
    [
        *(ProducerSettings(**one) for one in PRODUCERS),
        ProducerSettings(CLIENT_ID, idempotence=True),
    ],
    [ConsumerSettings(**one) for one in CONSUMERS],
)
Found = dict[tuple[str, str | None, str], int]


@pytest.fixture
def proxy(brokers: int) -> Iterator[ThreadedProxy]:
    """A proxy in front of a cluster of its own, with the topics of the clients."""
    groups = GroupConfig(initial_rebalance_delay_ms=0)
    config = ClusterConfig(brokers=brokers, topics=[TopicSpec("out")], groups=groups)
    with ThreadedCluster(config) as cluster:
        create_topics(cluster)
        to = cluster.bootstrap_servers.split(",")
        with ThreadedProxy(ProxyConfig(to=to), recorded=True) as running:
            yield running


def found_in(proxy: ThreadedProxy) -> Found:
    """The number of cases of each anomaly that an audit finds, by group and verdict."""
    findings = proxy.audit(CONFIGURATION)
    assert not findings.undecided
    return {(one.anomaly, one.group, one.verdict): one.count for one in findings}


@pytest.mark.parametrize("brokers", [3])
def test_lost_messages_break_no_transaction(proxy: ThreadedProxy) -> None:
    begin = proxy.fault
    faults = [
        begin.lose_responses(api="InitProducerId", client_id="copier", count=1),
        begin.lose_responses(api="AddPartitionsToTxn", count=1),
        begin.return_error(
            api="AddPartitionsToTxn", error="CONCURRENT_TRANSACTIONS", count=1, skip=4
        ),
        begin.lose_responses(api="Produce", client_id="copier", count=2),
        begin.lose_requests(api="Produce", client_id="copier", count=1, skip=5),
        begin.lose_responses(api="AddOffsetsToTxn", count=1),
        begin.lose_responses(api="TxnOffsetCommit", count=1),
        begin.return_error(
            api="TxnOffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS", count=1, skip=3
        ),
        begin.lose_responses(api="EndTxn", client_id="copier", count=1, skip=1),
    ]
    copy_in_transactions(proxy)
    take_over(proxy)
    assert not any(fault.active for fault in faults), "each was injected"
    # Two copies of each of 8 inputs, and the successor's record; of 11 tries 3 were aborted.
    assert len(read_results(proxy, COMMITTED)) == 17
    assert len(read_results(proxy, UNCOMMITTED)) == 24
    assert found_in(proxy) == {
        ("aborted_read", "copier", "permitted"): 6,
        ("aborted_read", "zombie", "permitted"): 1,
    }


@pytest.mark.parametrize("brokers", [3])
def test_unknown_commit_is_undecided_and_a_duplicate_beside_it_found(
    proxy: ThreadedProxy,
) -> None:
    zombie = producer(proxy, "zombie", **{"transactional.id": "t", "socket.timeout.ms": 1000})
    zombie.begin_transaction()
    zombie.produce(RESULTS, b"who knows", partition=0)
    zombie.flush(30)
    with proxy.fault.lose_responses(api="EndTxn"), pytest.raises(KafkaException):
        zombie.commit_transaction(1)
    # The new producer of the id aborts nothing: the commit was executed.
    producer(proxy, "successor", **{"transactional.id": "t"})
    # The configuration claims idempotence wrongly.
    source = producer(proxy, "source", **{"enable.idempotence": False})
    with proxy.fault.lose_responses(api="Produce", count=1):
        source.produce(RESULTS, b"twice", partition=0)
        source.flush(30)
    assert read_results(proxy, COMMITTED) == [b"who knows", b"twice", b"twice"]
    assert found_in(proxy) == {
        ("duplicate", "source", "violation"): 1,
        ("lost_ack_duplicate", "source", "violation"): 1,
    }


@pytest.mark.parametrize("brokers", [1])
def test_transactions_begin_with_their_first_records(proxy: ThreadedProxy) -> None:
    async def run() -> None:
        host, port = proxy.bootstrap_servers.split(":")
        async with RawClient(*await asyncio.open_connection(host, int(port))) as client:
            identity = await _init(client)
            for number, committed in enumerate((True, False, True)):
                for sequence in range(2):
                    value = b"%d of %d" % (sequence, number)
                    assert await _produce(client, identity, value, sequence, version=12) == 0
                assert await _commit_offset(client, identity, 5) == 0
                code, identity = await _end_anew(client, identity, committed)
                assert code == 0
            code, identity = await _end_anew(client, identity, committed=False)
            assert code == 0, "there is none, and the epoch is another all the same"
            with proxy.fault.return_error(api="Produce", error="NOT_LEADER_OR_FOLLOWER", count=1):
                refused = await _produce(client, identity, b"refused", version=12)
                assert refused == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await _produce(client, identity, b"open", version=12) == 0

    asyncio.run(run())
    servers = proxy.bootstrap_servers
    assert len(ConfluentClient(servers).read("out", 0, 4)) == 4
    # By default it shows what is aborted, and open.
    assert len(KafkaPythonClient(servers).read("out", 0, 7)) == 7
    assert found_in(proxy) == {
        ("aborted_read", CLIENT_ID, "permitted"): 2,
        ("failed_send", CLIENT_ID, "permitted"): 1,
    }
