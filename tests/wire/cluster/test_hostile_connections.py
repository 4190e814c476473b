"""Clients that send rubbish, too much, or read nothing: they are cut off, the others continue."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.api.registry import SUPPORTED
from purgatory.cluster.listeners import PLAINTEXT
from purgatory.cluster.protocol.connection import Connection, FairScheduler
from purgatory.cluster.protocol.memory_pool import Limits, MemoryPool
from tests.wire.cluster.conftest import eventually
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch, request_frame

_API_VERSIONS = request_frame(18, 0, 1)
_METADATA = request_frame(3, 1, 1, {"topics": [{"name": "t"}]})

_METADATA_FRAME = len(_METADATA).to_bytes(4, "big") + _METADATA

_RUBBISH = {
    "a length of 2 GiB": struct.pack(">i", 2**31 - 1),
    "a length of -1": struct.pack(">i", -1),
    "the least length": struct.pack(">i", -(2**31)),
    "an empty frame": struct.pack(">i", 0),
    "a frame shorter than a header": struct.pack(">i", 3) + b"abc",
    "an unknown API": struct.pack(">ihhih", 10, 12_345, 0, 1, -1),
    "an unknown version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "an API that no client may use": struct.pack(">ihhih", 10, 4, 0, 1, -1),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS client's hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "two bad requests at once": struct.pack(">i", 0) * 2,
    "a bad request and a bad length": struct.pack(">ii", 0, -1),
}


def _run(main: Callable[[Cluster], Awaitable[None]], limits: Limits = Limits()) -> None:  # noqa: B008
    async def run() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t")], limits=limits)
        async with Cluster(config) as cluster:
            await main(cluster)

    uvloop.run(run())


async def _send_until_it_is_not_read(
    cluster: Cluster, client: RawClient, frame: bytes
) -> Connection:
    """Send requests until the broker reads no more of them; return its side of the connection."""

    async def send() -> None:
        while True:
            client.send(frame)
            await client.writer.drain()

    port = client.writer.get_extra_info("sockname")[1]
    connections = cluster.brokers[1]._connections
    (served,) = [one for one in connections if one.peer.endswith(f":{port}")]
    sending = asyncio.create_task(send())
    await eventually(lambda: not served._reading)
    sending.cancel()
    return served


@pytest.mark.parametrize("data", _RUBBISH.values(), ids=_RUBBISH.keys())
def test_garbage_closes_its_connection_with_one_log_line(data: bytes) -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as other, await RawClient.to(cluster) as bad:
            await other.ask(18, 0)
            with capture_logs() as lines:
                bad.writer.write(data)
                assert await bad.wait_closed() == b""
                await eventually(lambda: cluster.brokers[1].connection_count == 1)
            assert [line["event"] for line in lines] == ["bad_request"]
            assert lines[0]["reason"]
            await other.ask(18, 0)

    _run(main)


def test_requests_before_garbage_are_served_and_none_behind_it() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            with capture_logs() as lines:
                client.send(_API_VERSIONS)
                await client.receive()
                client.send(b"")
                client.send(_API_VERSIONS)
                assert await client.wait_closed() == b""
            assert len(lines) == 1

    _run(main)


def test_incomplete_request_waits_and_leaves_nothing_behind() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            whole = len(_API_VERSIONS).to_bytes(4, "big") + _API_VERSIONS
            for byte in whole:
                client.writer.write(bytes([byte]))
                await client.writer.drain()
                await asyncio.sleep(0)
            await client.receive()
            client.writer.write(whole[:-1])
            await client.writer.drain()
        with capture_logs() as lines:
            await eventually(lambda: cluster.brokers[1].connection_count == 0)
        assert lines == []
        assert cluster.brokers[1]._held.total == 0

    _run(main)


_chunks = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(lambda body: len(body).to_bytes(4, "big") + body, st.binary(max_size=40)),
        st.builds(
            lambda api, version, body: (
                struct.pack(">ihhih", 10 + len(body), api, version, 1, -1) + body
            ),
            st.integers(-1, 80),
            st.integers(-1, 15),
            st.binary(max_size=40),
        ),
        st.just(len(_METADATA).to_bytes(4, "big") + _METADATA),
    ),
    max_size=4,
)


def test_hostile_bytes_neither_disturb_other_clients_nor_raise() -> None:
    with asyncio.Runner() as runner:
        cluster = Cluster(ClusterConfig(brokers=1, topics=[TopicSpec("t")]))
        runner.run(cluster.start())

        async def send(chunks: list[bytes]) -> None:
            async with await RawClient.to(cluster) as other, await RawClient.to(cluster) as bad:
                bad.writer.write(b"".join(chunks))
                bad.writer.write_eof()
                await bad.wait_closed()
                await other.ask(18, 0)
            await eventually(lambda: cluster.brokers[1].connection_count == 0)
            assert cluster.brokers[1]._held.total == 0

        @settings(max_examples=150)
        @given(_chunks)
        def check(chunks: list[bytes]) -> None:
            with capture_logs() as lines:
                runner.run(send(chunks))
            events = [line["event"] for line in lines if line["event"] != "compacted"]
            assert events in ([], ["bad_request"])

        check()
        runner.run(cluster.stop())


def _produce(records: bytes) -> dict[str, Any]:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    return {"acks": -1, "timeout": timedelta(seconds=1), "topic_data": data}


_BATCH = record_batch([b"one", b"two"])


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", 87),
        (b"abc", 87),
        (_BATCH[:-1], 87),
        (_BATCH[:8] + struct.pack(">i", 2**31 - 1) + _BATCH[12:], 87),
        (_BATCH[:8] + struct.pack(">i", -1) + _BATCH[12:], 2),
        (_BATCH[:-1] + bytes([_BATCH[-1] ^ 1]), 2),
        (_BATCH[:17] + bytes([_BATCH[17] ^ 1]) + _BATCH[18:], 2),
        (_BATCH[:16] + b"\x01" + _BATCH[17:], 87),
        (_BATCH[:57] + struct.pack(">i", 2**31 - 1) + _BATCH[61:], 2),
        (record_batch([b"x"], producer_id=7, base_sequence=0, epoch=-1), 87),
        (record_batch([b"x"], producer_id=7, base_sequence=-1, epoch=0), 87),
        (record_batch([bytes(1_100_000)]), 10),
    ],
    ids=[
        "no records",
        "too short",
        "torn",
        "a length of 2 GiB",
        "a length of -1",
        "a wrong record",
        "a wrong checksum",
        "an old format",
        "a wrong count",
        "a producer without epoch",
        "a producer without sequence",
        "too large",
    ],
)
def test_invalid_records_are_refused_and_the_connection_stays(records: bytes, code: int) -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            answer = await client.ask(0, 9, _produce(records))
            assert answer.responses[0].partition_responses[0].error_code == code
            answer = await client.ask(0, 9, _produce(_BATCH))
            answered = answer.responses[0].partition_responses[0]
            assert (answered.error_code, answered.base_offset) == (0, 0)

    _run(main)


def test_produce_to_an_internal_topic_is_refused() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.offsets_partitions()
        own = _produce(_BATCH)
        own["topic_data"][0]["name"] = "__consumer_offsets"
        async with await RawClient.to(cluster) as client:
            answer = await client.ask(0, 9, own)
            assert answer.responses[0].partition_responses[0].error_code == 17

    _run(main)


def test_long_error_message_fits_into_old_responses() -> None:
    long = "x" * 32_767
    topic = {"name": long, "num_partitions": 1, "replication_factor": 1}
    config = {"resource_type": 2, "resource_name": long}

    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            [created] = (await client.ask(19, 2, {"topics": [topic]})).topics
            [altered] = (await client.ask(33, 0, {"resources": [config]})).responses
        assert (created.error_code, altered.error_code) == (17, 17)
        assert 900 < len(created.error_message) <= 1_000

    _run(main)


def test_client_with_many_queued_requests_is_not_read_from() -> None:
    async def main(cluster: Cluster) -> None:
        async with (
            await RawClient.to(cluster, 1, True) as client,
            await RawClient.to(cluster) as other,
        ):
            partitions = [{"partition": 0, "partition_max_bytes": 1}]
            wait = {
                "max_wait": timedelta(seconds=60),
                "min_bytes": 1,
                "topics": [{"topic": "t", "partitions": partitions}],
            }
            client.send(request_frame(1, 4, 1, wait))
            await _send_until_it_is_not_read(cluster, client, _METADATA)
            # The held bytes are the limit, plus those of one read.
            assert cluster.brokers[1]._held.total < 10_000 + 2 * 262_144
            await other.ask(18, 0)

    _run(main, Limits(queued_bytes=10_000))


def test_client_that_reads_no_responses_is_not_served() -> None:
    async def main(cluster: Cluster) -> None:
        async with (
            await RawClient.to(cluster, 1, True) as client,
            await RawClient.to(cluster) as other,
        ):
            await other.ask(0, 9, _produce(record_batch([bytes(1_000_000)])))
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            partitions = [{"partition": 0, "partition_max_bytes": 1}]
            read_it = request_frame(1, 4, 1, {"topics": [{"topic": "t", "partitions": partitions}]})
            served = await _send_until_it_is_not_read(cluster, client, read_it)
            await eventually(lambda: served._writable is not None)
            assert served._transport is not None
            assert served._transport.get_write_buffer_size() < 1_200_000
            assert served._held_bytes < 10_000 + 2 * 262_144
            await other.ask(18, 0)
        await eventually(lambda: cluster.brokers[1].connection_count == 0)
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if "Connection._work" in repr(task)]

    _run(main, Limits(queued_bytes=10_000))


def _connection(held: MemoryPool, limits: Limits) -> Connection:
    """Return a connection to whose requests there is no answer."""
    serve = AsyncMock(return_value=None)
    return Connection(
        serve, AsyncMock(), SUPPORTED, limits, held, FairScheduler(), lambda _: True, lambda _: None
    )


def _untaken(held: MemoryPool, limits: Limits, size: int) -> tuple[Connection, MagicMock]:
    """Return a connection whose client doesn't take an answer of so many bytes."""
    connection = _connection(held, limits)
    transport = MagicMock(is_closing=lambda: False, get_write_buffer_size=lambda: size)
    transport.abort = lambda: asyncio.get_running_loop().call_soon(connection.connection_lost, None)
    connection.connection_made(transport)
    connection.pause_writing()
    return connection, transport


def test_unread_responses_are_held_up_to_a_limit() -> None:
    async def main() -> None:
        held, limits = MemoryPool(), Limits(held_bytes=1_000_000)
        with capture_logs() as lines:
            clients = []
            for _ in range(10):
                clients.append(_untaken(held, limits, 300_000)[0])
                await asyncio.sleep(0)
                assert held.total <= 1_000_000
        assert [line["event"] for line in lines] == ["unread_response_dropped"] * 7
        assert [one.is_cut for one in clients] == [True] * 7 + [False] * 3, "longest first"
        clients[7].resume_writing()
        assert held.total == 600_000
        for client in clients[8:]:
            client.abort()
        await eventually(lambda: (held.total, held.unsent) == (0, {}))
        clients[7].abort()
        await eventually(lambda: all(client._task is None for client in clients))

    asyncio.run(main())


def test_sending_client_is_not_cut_for_others_responses() -> None:
    async def main() -> None:
        held, limits = MemoryPool(), Limits(held_bytes=1_000_000)
        hoards, _ = _untaken(held, limits, 1_000_000)
        asks = _connection(held, limits)
        asks.connection_made(MagicMock(is_closing=lambda: False))
        asks.data_received(_METADATA_FRAME)
        assert hoards.is_cut and not asks.is_cut
        await eventually(lambda: held.total == 0)
        asks.connection_lost(None)
        await eventually(lambda: asks._task is None and hoards._task is None)

    asyncio.run(main())


def test_incomplete_requests_are_held_up_to_a_limit() -> None:
    async def main(cluster: Cluster) -> None:
        begun = (900_000).to_bytes(4, "big") + bytes(400_000)
        clients = [await RawClient.to(cluster) for _ in range(4)]
        with capture_logs() as lines:
            for client in clients:
                client.writer.write(begun)
            await eventually(lambda: cluster.brokers[1].connection_count < 4)
        assert {line["event"] for line in lines} == {"bad_request"}
        assert cluster.brokers[1]._held.total <= 1_000_000
        for client in clients:
            client.writer.transport.abort()
        await eventually(lambda: cluster.brokers[1].connection_count == 0)
        assert cluster.brokers[1]._held.total == 0
        async with await RawClient.to(cluster) as client:
            await client.ask(18, 0)

    _run(main, Limits(frame_bytes=1_000_000, held_bytes=1_000_000))


def test_client_beyond_the_limit_is_refused_until_another_leaves() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as one:
            async with await RawClient.to(cluster) as two:
                await one.ask(18, 0)
                await two.ask(18, 0)
                with capture_logs() as lines:
                    async with await RawClient.to(cluster) as three:
                        assert await three.wait_closed() == b""
                assert [line["event"] for line in lines] == ["too_many_connections"]
                await one.ask(18, 0)
            await eventually(lambda: cluster.brokers[1].connection_count == 1)
            async with await RawClient.to(cluster) as four:
                await four.ask(18, 0)

    _run(main, Limits(connections=2))


def test_clients_can_not_exceed_the_limit_of_partitions() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            many = {"name": "many", "num_partitions": 2**31 - 1, "replication_factor": 1}
            answer = await client.ask(19, 6, {"topics": [many]})
            assert answer.topics[0].error_code == 44
            assert "may have 10000 partitions" in answer.topics[0].error_message
            answer = await client.ask(
                37, 3, {"topics": [{"name": "t", "count": 10_001}], "timeout": timedelta(seconds=5)}
            )
            assert answer.results[0].error_code == 44
            some = {"name": "some", "num_partitions": 9_990, "replication_factor": 1}
            assert (await client.ask(19, 6, {"topics": [some]})).topics[0].error_code == 0
            names = [{"name": f"auto-{number}"} for number in range(20)]
            answer = await client.ask(3, 8, {"topics": names, "allow_auto_topic_creation": True})
            codes = [topic.error_code for topic in answer.topics]
            assert codes == [0] * 9 + [3] * 11
            await client.ask(20, 5, {"topic_names": ["some"], "timeout": timedelta(seconds=5)})
            assert cluster.controller.partition_count == 10
            answer = await client.ask(
                3, 8, {"topics": names[-1:], "allow_auto_topic_creation": True}
            )
            assert answer.topics[0].error_code == 0

    _run(main)


def test_topic_that_is_requested_many_times_is_returned_once() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            answer = await client.ask(3, 8, {"topics": [{"name": "t"}] * 10_000})
            assert [topic.name for topic in answer.topics] == ["t"]

    _run(main)


def test_connection_accepted_during_a_kill_is_cut() -> None:
    async def main(cluster: Cluster) -> None:
        broker = cluster.brokers[1]
        accepted = broker._new_connection(PLAINTEXT)
        await cluster.kill(1)
        transport = MagicMock()
        transport.get_extra_info.return_value = None
        accepted.connection_made(transport)  # the event loop gets to it only now
        transport.abort.assert_called_once_with()
        assert broker.connection_count == 0

    _run(main)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", range(4))
def test_socket_accepted_by_the_loop_during_a_kill_is_closed(
    turns: int, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        async with Cluster(ClusterConfig(brokers=1)) as cluster:
            broker = cluster.brokers[1]
            clients = [socket.create_connection((broker.host, broker.port)) for _ in range(20)]
            for _ in range(turns):  # they are accepted, then made connections, one after the other
                await asyncio.sleep(0)
            await cluster.kill(1)
            for _ in range(20):
                await asyncio.sleep(0)
            for client in clients:
                with client, suppress(ConnectionResetError):
                    client.settimeout(60)  # the loop stands still: nothing closes it
                    assert client.recv(1) == b""

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    gc.collect()  # a socket that was left open would be told of


def _with_manual_clock(cluster: Cluster) -> list[float]:
    now_s = [1_000.0]
    cluster.scheduler.now_s = lambda: now_s[0]
    return now_s


@pytest.mark.parametrize("begun", [b"\0", _METADATA_FRAME[:5], _METADATA_FRAME[:-1]])
@pytest.mark.parametrize("before", [b"", _METADATA_FRAME])
def test_request_that_stays_incomplete_closes_its_connection(before: bytes, begun: bytes) -> None:
    async def main(cluster: Cluster) -> None:
        now_s = _with_manual_clock(cluster)
        broker = cluster.brokers[1]
        async with await RawClient.to(cluster) as other, await RawClient.to(cluster) as client:
            await other.ask(18, 0)
            client.writer.write(before)
            if before:
                await client.receive()
            client.writer.write(begun)
            await eventually(lambda: any(one._unread for one in broker._connections))
            now_s[0] += 60
            broker.cut_idle_connections()
            assert broker.connection_count == 2
            client.writer.write(b"\0" if begun == b"\0" else b"")  # slowly on: that is no help
            now_s[0] += 1
            with capture_logs() as lines:
                broker.cut_idle_connections()
                assert await client.wait_closed() == b""
            assert [line["event"] for line in lines] == ["bad_request"]
            assert "it has to be whole after 60 s" in lines[0]["reason"]
            await eventually(lambda: broker.connection_count == 1)
            assert broker._held.total == 0
            await other.ask(18, 0)

    _run(main)


def test_incomplete_requests_time_out() -> None:
    async def main(cluster: Cluster) -> None:
        clients = [await RawClient.to(cluster) for _ in range(50)]
        for client in clients:
            client.writer.write(_METADATA_FRAME[:-1])
        for client in clients:
            async with client:
                assert await client.wait_closed() == b""
        await eventually(lambda: cluster.brokers[1].connection_count == 0)
        assert cluster.brokers[1]._held.total == 0

    _run(main, Limits(frame_s=0.3))


def test_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    async def main(cluster: Cluster) -> None:
        now_s = _with_manual_clock(cluster)
        broker = cluster.brokers[1]
        async with await RawClient.to(cluster) as waiting, await RawClient.to(cluster) as idle:
            await idle.ask(18, 0)
            poll = {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}
            waiting.send(
                request_frame(1, 4, 1, {**poll, "max_wait": timedelta(days=1), "min_bytes": 9})
            )
            await eventually(lambda: broker.purgatories[1].num_delayed == 1)
            now_s[0] += 600
            broker.cut_idle_connections()
            assert broker.connection_count == 2
            now_s[0] += 1
            with capture_logs() as lines:
                broker.cut_idle_connections()
                assert await idle.wait_closed() == b""
            assert [line["event"] for line in lines] == ["idle_connection_closed"]
            await eventually(lambda: broker.connection_count == 1)

    _run(main)


@pytest.mark.slow
def test_client_that_reads_no_response_for_ten_minutes_is_closed() -> None:
    async def main(cluster: Cluster) -> None:
        now_s = _with_manual_clock(cluster)
        async with await RawClient.to(cluster, 1, True) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            served = await _send_until_it_is_not_read(cluster, client, _METADATA)
            await eventually(lambda: served._writable is not None)
            now_s[0] += 601
            cluster.brokers[1].cut_idle_connections()
            await eventually(lambda: cluster.brokers[1].connection_count == 0)
            assert cluster.brokers[1]._held.total == 0

    _run(main, Limits(queued_bytes=10_000))
