"""The clients of the cluster's benchmark: a raw one that costs little, and librdkafka's.

Run as a process of its own, so that it does not share the interpreter with what it measures::

    python -m tests.benchmarks.cluster_clients KIND HOST:PORT,... SECONDS_OR_COUNT
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import sys
import time
from itertools import count
from typing import Any

from crc32c import crc32c

TOPIC = "bench"
FLOODED_TOPIC = "flooded"
_WARM_UP = 30
CONNECTIONS = 200
VALUE = b"x" * 100

_PRODUCE, _FETCH, _METADATA = 0, 1, 3
_PRODUCE_VERSION, _FETCH_VERSION, _METADATA_VERSION = 7, 11, 1
_UNREAD_S = 0.2
_TRANSACTIONAL = 0x10


def record_batch(value: bytes, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """Return a batch of one record, in a transaction where it has a producer's id."""
    # attributes, time and offset deltas 0, no key, the value, no headers
    record = b"\0\0\0\x01" + _varint(len(value)) + value + b"\0"
    body = _varint(len(record)) + record
    now_ms = 1_700_000_000_000
    attributes = _TRANSACTIONAL if producer_id >= 0 else 0
    who = producer_id, epoch, sequence, 1
    checked = struct.pack(">hiqqqhii", attributes, 0, now_ms, now_ms, *who) + body
    rest = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(rest)) + rest


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def string(text: str | None) -> bytes:
    """Return a text, or null, as it is written before compact strings."""
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text.encode()


def _request(api_key: int, version: int, number: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, number, 5) + b"bench"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_request(
    number: int, partition: int, batch: bytes, transactional_id: str | None = None
) -> bytes:
    """Return a produce with acks=all."""
    head = string(transactional_id) + struct.pack(">hii", -1, 30_000, 1) + string(TOPIC)
    return _request(
        _PRODUCE,
        _PRODUCE_VERSION,
        number,
        head + struct.pack(">iii", 1, partition, len(batch)) + batch,
    )


def fetch_request(
    number: int, partition: int, offset: int, max_wait_ms: int, topic: str = TOPIC
) -> bytes:
    """Return a fetch that waits for one byte."""
    head = struct.pack(">iiiibii", -1, max_wait_ms, 1, 1 << 20, 0, 0, -1)
    named = struct.pack(">ih", 1, len(topic)) + topic.encode()
    one = struct.pack(">iiiqqi", 1, partition, -1, offset, -1, 1 << 20)
    return _request(_FETCH, _FETCH_VERSION, number, head + named + one + struct.pack(">ih", 0, 0))


def metadata_request() -> bytes:
    """Return a request for the brokers alone."""
    return _request(_METADATA, _METADATA_VERSION, 1, struct.pack(">i", 0))


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read one answer, without its length."""
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _address(servers: list[str], partition: int) -> tuple[str, int]:
    # The first topic's partitions are led by the brokers in turn.
    host, _, port = servers[partition % len(servers)].rpartition(":")
    return host, int(port)


async def produce_rate(servers: list[str], seconds: float) -> dict[str, float]:
    """Send produces over many connections, one at a time on each."""
    batch = record_batch(VALUE)
    done = 0
    until = time.monotonic() + seconds

    async def work(number: int) -> None:
        nonlocal done
        partition = number % len(servers)
        reader, writer = await asyncio.open_connection(*_address(servers, partition))
        sent = 0
        while time.monotonic() < until:
            writer.write(produce_request(sent, partition, batch))
            data = await answer(reader)
            assert struct.unpack_from(">i", data)[0] == sent, "answers come in order"
            sent += 1
            done += 1
        writer.close()

    start = time.monotonic()
    await asyncio.gather(*(work(number) for number in range(CONNECTIONS)))
    return {"per_s": done / (time.monotonic() - start)}


async def wake_ms(servers: list[str], rounds: int) -> dict[str, list[float]]:
    """Append to a partition on which a fetch waits, and measure until it is answered."""
    producer_in, producer = await asyncio.open_connection(*_address(servers, 0))
    consumer_in, consumer = await asyncio.open_connection(*_address(servers, 0))
    batch = record_batch(VALUE)
    producer.write(produce_request(0, 0, batch))
    data = await answer(producer_in)
    (offset,) = struct.unpack_from(">q", data, 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2)
    waits = []
    for number in range(rounds):
        offset += 1
        consumer.write(fetch_request(number, 0, offset, 30_000))
        await asyncio.sleep(0.01)  # it waits by now
        start = time.monotonic()
        producer.write(produce_request(number, 0, batch))
        await answer(consumer_in)
        waits.append((time.monotonic() - start) * 1e3)
        await answer(producer_in)
    return {"ms": sorted(waits)}


async def idle(
    servers: list[str], count: int, seconds: float, max_wait_ms: int
) -> dict[str, float]:
    """Have consumers wait for what does not come; say when all do."""
    readers = []
    for number in range(count):
        reader, writer = await asyncio.open_connection(*_address(servers, 0))
        readers.append((reader, writer))
        writer.write(fetch_request(number, 0, 0, max_wait_ms))

    async def again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while True:
            await answer(reader)
            number += 1
            writer.write(fetch_request(number, 0, 0, max_wait_ms))

    tasks = [asyncio.ensure_future(again(*one)) for one in readers]
    print("ready", flush=True)
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    return {"consumers": count}


def librdkafka_rate(servers: str, messages: int) -> dict[str, float]:
    """Send messages by one idempotent producer of librdkafka with acks=all."""
    from confluent_kafka import KafkaError, Message, Producer

    config: dict[str, Any] = {"acks": "all", "enable.idempotence": True, "linger.ms": 5}
    producer = Producer({**config, "bootstrap.servers": servers})
    delivered = 0

    def count(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        delivered += error is None

    producer.produce(TOPIC, VALUE)  # the topic, the connections, the producer's id
    producer.flush(30)
    start = time.monotonic()
    for _ in range(messages):
        while True:
            try:
                producer.produce(TOPIC, VALUE, on_delivery=count)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(60) == 0
    spent_s = time.monotonic() - start
    assert delivered == messages
    return {"per_s": messages / spent_s}


def serve_mock() -> None:
    """Be librdkafka's mock cluster: print where it listens, until standard input ends."""
    from confluent_kafka import Producer

    owner = Producer({"test.mock.num.brokers": 3, "log_level": 3})
    brokers = owner.list_topics(TOPIC, 30).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    sys.stdin.read()


def consume_rate(servers: str, messages: int) -> dict[str, float]:
    """Read so many messages of all partitions by one consumer of librdkafka, from the start."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    partitions = consumer.list_topics(TOPIC, 30).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in partitions])
    assert consumer.consume(1, 30)
    read, start = 0, time.monotonic()
    while read < messages:
        found = consumer.consume(10_000, 30)
        assert found, f"no more than {read} messages"
        read += len(found)
    spent_s = time.monotonic() - start
    consumer.close()
    return {"per_s": read / spent_s}


def leader_of(servers: str, partition: int) -> str:
    """Return where a partition's leader listens."""
    from confluent_kafka.admin import AdminClient

    told = AdminClient({"bootstrap.servers": servers}).list_topics(TOPIC, 30)
    leader = told.brokers[told.topics[TOPIC].partitions[partition].leader]
    return f"{leader.host}:{leader.port}"


def one_by_one_us(server: str, requests: int) -> dict[str, float]:
    """Send produces with acks=all over one connection, one at a time."""
    host, _, port = server.rpartition(":")
    batch = record_batch(VALUE)
    waits = []
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        for number in range(requests):
            start_ns = time.perf_counter_ns()
            connection.sendall(produce_request(number, 0, batch))
            (length,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(length)
            waits.append((time.perf_counter_ns() - start_ns) / 1e3)
            code_at = 4 + 4 + 2 + len(TOPIC) + 4 + 4
            assert struct.unpack_from(">h", answer, code_at)[0] == 0
    return {"p50_us": sorted(waits)[requests // 2]}


def flood(servers: str, messages: int, acks: int, at_once: int = 1) -> dict[str, float]:
    """Send messages by librdkafka, as many in a request, and requests under way, as it likes."""
    from confluent_kafka import Producer

    config = {"acks": acks, "batch.num.messages": at_once, "linger.ms": 0 if at_once == 1 else 5}
    producer = Producer({**config, "bootstrap.servers": servers})
    # No two are alike: who looks into them takes others for what was sent again.
    first = time.time_ns()
    values = (b"%0*d" % (len(VALUE), first + number) for number in range(messages))
    producer.produce(FLOODED_TOPIC, next(values))
    producer.flush(60)
    print("ready", flush=True)
    start_s = time.monotonic()
    for value in values:
        while True:
            try:
                producer.produce(FLOODED_TOPIC, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(120) == 0
    return {"sent": messages, "per_s": messages / (time.monotonic() - start_s)}


def ask_and_never_read(servers: list[str], fetched: str) -> None:
    """Ask each broker for what it has, until it takes no more; then begin with new connections.

    Args:
        servers: whom to ask.
        fetched: "metadata", which are small answers, or "records", which are large.
    """
    while True:
        connections = []
        for server in servers:
            host, _, port = server.rpartition(":")
            connection = socket.create_connection((host, int(port)))
            connection.setblocking(False)
            connections.append(connection)
        if fetched == "metadata":
            asked = metadata_request() * 100
        else:
            one = (fetch_request(1, partition, 0, 0, FLOODED_TOPIC) for partition in range(3))
            asked = b"".join(one) * 30
        while True:
            _, takers, _ = select.select([], connections, [], _UNREAD_S)
            if not takers:
                break
            for connection in takers:
                connection.send(asked)  # what is sent of it: a torn request is never looked at
        for connection in connections:
            connection.close()


def acknowledged_ms(servers: str) -> dict[str, list[float]]:
    """Send a message with acks=all every 5 ms, one at a time, until a line is read; and say how
    long librdkafka took for each, from the call to the report."""
    from confluent_kafka import Producer

    producer = Producer({"acks": "all", "linger.ms": 0, "bootstrap.servers": servers})
    waits: list[float] = []
    for number in count():
        start_s = time.monotonic()
        producer.produce(TOPIC, VALUE, partition=number % 3)
        assert producer.flush(60) == 0
        if number >= _WARM_UP:
            waits.append((time.monotonic() - start_s) * 1e3)
        elif number == _WARM_UP - 1:
            print("ready", flush=True)
        if select.select([sys.stdin], [], [], 0.005)[0]:
            break
    return {"ms": sorted(waits)}


def main(kind: str, servers: str, *numbers: str) -> None:
    addresses = servers.split(",")
    if kind == "produce":
        result: Any = asyncio.run(produce_rate(addresses, float(numbers[0])))
    elif kind == "wake":
        result = asyncio.run(wake_ms(addresses, int(numbers[0])))
    elif kind == "idle":
        count, seconds, max_wait_ms = numbers
        result = asyncio.run(idle(addresses, int(count), float(seconds), int(max_wait_ms)))
    elif kind == "flood":
        result = flood(servers, *map(int, numbers))
    elif kind == "mock":
        serve_mock()
        return
    elif kind == "never-read":
        ask_and_never_read(addresses, numbers[0])
        return
    elif kind == "consume":
        result = consume_rate(servers, int(numbers[0]))
    elif kind == "one":
        result = one_by_one_us(leader_of(servers, 0), int(numbers[0]))
    elif kind == "acknowledged":
        result = acknowledged_ms(servers)
    else:
        result = librdkafka_rate(servers, int(numbers[0]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
