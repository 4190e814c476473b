"""One batch of a partition at a time: with several, idempotence does not prevent duplicates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from purgatory.cdc.capture import CaptureError, KafkaSettings
from purgatory.cdc.capture.kafka import ClientErrors
from purgatory.cdc.capture.publisher import ChunkLimits, Sender
from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.cluster.api import produce as produce_api

LARGEST_BYTES = 1_000_000
ROUNDS = 3
PIPELINED = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 5}
"""Settings under which librdkafka certainly has several batches in flight."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[ThreadedCluster]:
    """Three brokers, of which followers take a while: batches are under way for that long."""
    config = ClusterConfig(min_insync_replicas=2, follower_lag_ms=5)
    with ThreadedCluster(config) as cluster:
        yield cluster


class BatchesOfChunks:
    """Counts the batches of each partition that come to the brokers, chunk by chunk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chunks: list[Counter[int]] = []
        validated, send_chunk = produce_api._validated, Sender._send_chunk

        def counted(broker: Any, place: Any, *rest: Any) -> Any:
            batches = validated(broker, place, *rest)
            self.chunks[-1][place.partition] += len(batches)
            return batches

        def noted(sending: Sender, chunk: Any) -> None:
            self.chunks.append(Counter())
            send_chunk(sending, chunk)

        monkeypatch.setattr(produce_api, "_validated", counted)
        monkeypatch.setattr(Sender, "_send_chunk", noted)


def sender(
    kafka: ThreadedCluster, topic: str, extra: Mapping[str, Any], pipelined: bool = False
) -> Sender:
    """The capture's own sender, or one with several batches of a partition under way."""
    client_errors = ClientErrors()
    wanted = KafkaSettings(kafka.bootstrap_servers, extra)
    settings = wanted.producer(client_errors, LARGEST_BYTES)
    limits = None if pipelined else ChunkLimits.from_settings(settings, LARGEST_BYTES)
    more = PIPELINED if pipelined else {}
    return Sender(Producer({**settings, **more}), client_errors, topic, limits)


def stored(kafka: ThreadedCluster, topic: str, partitions: int) -> list[list[bytes]]:
    """The values in each partition."""
    settings = {"group.id": "test", "fetch.wait.max.ms": 10}  # or each partition waits for the last
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    found: list[list[bytes]] = []
    for number in range(partitions):
        part = TopicPartition(topic, number, 0)
        end = consumer.get_watermark_offsets(part, timeout=30)[1]
        consumer.assign([part])
        values: list[bytes] = []
        while len(values) < end:
            values += [bytes(message.value() or b"") for message in consumer.consume(end, 5)]
        found.append(values)
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("extra", "pipelined"),
    [
        ({}, False),
        ({"batch.num.messages": "7"}, False),
        ({"batch.size": "9000", "compression.type": "gzip"}, False),
        ({"queue.buffering.max.messages": "5"}, False),
        ({}, True),
    ],
)
def test_chunk_is_one_undivided_batch_per_partition(
    kafka: ThreadedCluster,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    extra: Mapping[str, Any],
    pipelined: bool,
) -> None:
    topic = f"topic-{abs(hash(request.node.name))}"
    kafka.create_topic(topic, 2)
    rng = random.Random(1)
    sent: list[list[bytes]] = [[], []]
    batches = BatchesOfChunks(monkeypatch)
    sending = sender(kafka, topic, extra, pipelined)
    for number in range(400):
        # Many small ones, and some of which two don't fit into one batch.
        size = 400_000 if number % 50 == 49 else rng.choice([10, 10, 3_000])
        partition = rng.randrange(2)
        value = str(number).encode().ljust(size, b".")
        sending.send(partition, None, value)
        sent[partition].append(value)
    with sending:
        sending.flush()
    assert stored(kafka, topic, 2) == sent
    most = max(max(chunk.values()) for chunk in batches.chunks)
    if pipelined:
        assert most > 100
    else:
        assert most == 1
        assert len(batches.chunks) > 4


def send_amid_faults(kafka: ThreadedCluster, topic: str, pipelined: bool) -> list[list[bytes]]:
    """Refusals in partition 0 while responses to batches of partition 1 are lost."""
    kafka.create_topic(topic, 2)
    leaders = kafka.call(
        lambda: [kafka.running.controller.topics[topic].partitions[n].leader for n in (0, 1)]
    )
    assert leaders[0] != leaders[1]
    extra = {"retry.backoff.ms": "100"}
    with sender(kafka, topic, extra, pipelined) as sending:
        for number in range(ROUNDS):
            with (
                kafka.fault.lose_responses(leaders[1], count=1, api="produce") as lost,
                kafka.fault.refuse_produces(leaders[0], count=1) as refused,
            ):
                for part in range(20):
                    for partition in (1, 0):
                        sending.send(partition, None, b"%d %d" % (number, part))
                sending.flush()
                assert (lost.uses, refused.uses) == (1, 1)
    return stored(kafka, topic, 2)


def test_refusal_and_lost_response_cause_no_duplicates(
    kafka: ThreadedCluster,
) -> None:
    expected = [b"%d %d" % (number, part) for number in range(ROUNDS) for part in range(20)]
    assert send_amid_faults(kafka, "one-batch", pipelined=False) == [expected, expected]


def test_several_batches_in_flight_cause_losses_and_duplicates(
    kafka: ThreadedCluster,
) -> None:
    refused, lost = send_amid_faults(kafka, "pipelined", pipelined=True)
    # A new producer may begin with its second batch, as in Kafka; the client takes the refusal of
    # the first one, sent again, for a duplicate's.
    assert sorted({*lost} - {*refused}) == [b"0 0"]
    assert len(refused) == len(set(refused)) == 20 * ROUNDS - 1
    assert len(lost) > len(set(lost)) == 20 * ROUNDS


def test_capture_stops_sending_at_a_refused_record(
    kafka: ThreadedCluster,
) -> None:
    kafka.create_topic("refused", 1)
    sending = sender(kafka, "refused", {})
    for size in (1, 2, LARGEST_BYTES + 1, 3):
        sending.send(0, b"key", b"x" * size)
    with sending, pytest.raises(CaptureError, match=r"raise max\.message\.bytes"):
        sending.flush()
    assert [len(value) for value in stored(kafka, "refused", 1)[0]] == [1, 2]


@pytest.mark.parametrize("name", ["linger.ms", "delivery.timeout.ms"])
def test_idempotent_producer_refuses_unsafe_settings(
    name: str,
) -> None:
    with pytest.raises(CaptureError, match=f"--client {name}: leave it out"):
        KafkaSettings("127.0.0.1:1", {name: "5"})
    other = KafkaSettings("127.0.0.1:1", {name: "5", "enable.idempotence": "false"})
    assert other.producer(ClientErrors(), LARGEST_BYTES)[name] == "5"
