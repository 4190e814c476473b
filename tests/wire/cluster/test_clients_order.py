"""The order of a real producer's records after a refusal, which depends on its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from kafka import KafkaProducer

from purgatory.cluster import ThreadedCluster
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import leader_of

VALUES = [b"%02d" % number for number in range(40)]
ONE_RECORD_PER_REQUEST = {"linger.ms": 0, "batch.num.messages": 1, "retry.backoff.ms": 20}


Refuse = Callable[[], object]


def send_with_librdkafka(
    servers: str, topic: str, settings: Mapping[str, Any], refuse: Refuse
) -> None:
    """Send the values, and have one refused while there are more on the way."""
    producer = Producer({"bootstrap.servers": servers, **ONE_RECORD_PER_REQUEST, **settings})
    delivered: list[bytes] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None
        delivered.append(message.value() or b"")
        if len(delivered) == 3:
            refuse()

    for value in VALUES:
        producer.produce(topic, value, partition=0, on_delivery=note)
    assert producer.flush(30) == 0
    assert sorted(delivered) == VALUES


def send_with_kafka_python(
    servers: str, topic: str, settings: Mapping[str, Any], refuse: Refuse
) -> None:
    """The same with kafka-python."""
    options = {"linger_ms": 0, "batch_size": 0, "retry_backoff_ms": 20, "retries": 10, **settings}
    producer = KafkaProducer(bootstrap_servers=servers.split(","), **options)
    try:
        sent = [producer.send(topic, value, partition=0) for value in VALUES]
        sent[2].get(30)
        refuse()
        for one in sent:
            one.get(30)
    finally:
        producer.close()


@pytest.mark.parametrize(
    ("send", "settings", "in_order"),
    [
        (send_with_librdkafka, {"max.in.flight": 5, "enable.idempotence": False}, False),
        (send_with_librdkafka, {"max.in.flight": 5, "enable.idempotence": True}, True),
        (
            send_with_kafka_python,
            {"max_in_flight_requests_per_connection": 1, "enable_idempotence": False},
            True,
        ),
    ],
    ids=["five in flight", "idempotent", "one in flight"],
)
def test_refused_record_is_overtaken_only_if_settings_permit_it(
    cluster: ThreadedCluster, name: str, send: Any, settings: dict[str, Any], in_order: bool
) -> None:
    cluster.create_topic(name)
    leader = cluster.call(lambda: leader_of(cluster.running, name))
    followers = [broker for broker in (1, 2, 3) if broker != leader]
    slow = [cluster.fault.slow_follower(broker, lag_ms=10) for broker in followers]
    refused = []
    try:
        send(
            cluster.bootstrap_servers,
            name,
            {"acks": "all", **settings},
            lambda: refused.append(cluster.fault.refuse_produces(leader, count=1)),
        )
    finally:
        for fault in [*slow, *refused]:
            fault.end()
    assert [fault.uses for fault in refused] == [1]
    read = ConfluentClient(cluster.bootstrap_servers).read(name, 0, len(VALUES))
    found = [record.value for record in read]
    assert sorted(found) == VALUES, "neither lost nor twice"
    assert (found == VALUES) is in_order, found
