"""A few kilobytes that say they are gigabytes: refused, in every codec, and never there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cramjam
import pytest

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.errors import SwollenBatchError
from purgatory.cluster.log_validator import validated
from purgatory.cluster.protocol.memory_pool import Limits
from purgatory.cluster.records import (
    MAX_DECOMPRESSED_BYTES,
    DecompressionBudget,
    compressed,
    packed_batch,
    raw_records,
    read_records,
    recompressed,
)
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

MIB = 1024 * 1024
_VALUES = [b"%d of some values that look alike" % number for number in range(50)]
_T = TopicPartition("t", 0)


def _gzip_members(size_bytes: int) -> bytes:
    make = zlib.compressobj(9, zlib.DEFLATED, 31)
    member = make.compress(bytes(MIB)) + make.flush()
    return member * (size_bytes // MIB)


def _gzip_stream(size_bytes: int) -> bytes:
    """One stream, whose end nobody reaches: it has none."""
    make = zlib.compressobj(9, zlib.DEFLATED, 31)
    first, again = (make.compress(bytes(MIB)) + make.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (size_bytes // MIB - 1)


def _frames(compress: Callable[[bytes], Any]) -> Callable[[int], bytes]:
    def bomb(size_bytes: int) -> bytes:  # frame behind frame, none of which is large
        return bytes(compress(bytes(16 * MIB))) * (size_bytes // (16 * MIB))

    return bomb


def _one_frame(compressor: Callable[[], Any]) -> Callable[[int], bytes]:
    def bomb(size_bytes: int) -> bytes:
        make = compressor()
        for _ in range(size_bytes // (16 * MIB)):
            make.compress(bytes(16 * MIB))
        return bytes(make.finish())

    return bomb


def _xerial(size_bytes: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    framed = len(block).to_bytes(4, "big") + block
    return b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1, 0, 0, 0, 1]) + framed * (size_bytes // MIB)


def _snappy_that_says_so(size_bytes: int) -> bytes:
    """Only its length says it: there is nothing behind it."""
    said = bytearray()
    while size_bytes > 0x7F:
        said.append(size_bytes & 0x7F | 0x80)
        size_bytes >>= 7
    return bytes([*said, size_bytes, 0, 0])


BOMBS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "gzip": (1, _gzip_stream),
    "gzip-members": (1, _gzip_members),
    "snappy": (2, _snappy_that_says_so),
    "snappy-xerial": (2, _xerial),
    "lz4": (3, _one_frame(lambda: cramjam.lz4.Compressor(block_linked=False))),
    "lz4-frames": (3, _frames(partial(compressed, 3))),
    "zstd": (4, _one_frame(cramjam.zstd.Compressor)),
    "zstd-frames": (4, _frames(cramjam.zstd.compress)),
}


def batch_of(codec: int, data: bytes, record_count: int = 1) -> RecordBatch:
    """Return a batch with this behind its header, whatever it is."""
    header = [0, 0, 0, 2, 0, codec, record_count - 1, 0, 0, -1, -1, -1, record_count]
    return packed_batch(header, data)


def open_each_in_little_memory() -> None:
    """Open each bomb in a fork, where its half gigabyte doesn't fit; called in a process."""
    for name in BOMBS:
        if not os.fork():
            _open_in_little_memory(name)
            sys.stdout.flush()
            os._exit(0)
        os.wait()


def _open_in_little_memory(name: str) -> None:
    import resource

    codec, bomb = BOMBS[name]
    batch = batch_of(codec, bomb(512 * MIB))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + 2 * MAX_DECOMPRESSED_BYTES + 64 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        recompressed(batch, 0, None)
    except SwollenBatchError as error:
        print(name, error)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits a process's memory")
def test_decompression_bombs_take_bounded_memory() -> None:
    code = (
        "from tests.processes.cluster import test_swollen_batches as it;"
        "it.open_each_in_little_memory()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    refused = re.findall("^(\\S+) .*come out of a compressed batch", done.stdout, re.MULTILINE)
    assert refused == list(BOMBS), done.stderr


@pytest.mark.parametrize("codec", range(1, 5))
def test_batch_above_the_decompression_limit_is_refused(codec: int) -> None:
    data = b"0123456789" * 1000
    batch = batch_of(codec, compressed(codec, data))
    for most, fits in ((10_100, True), (10_099, False), (100, False), (0, False)):
        room = DecompressionBudget(most)
        if fits:
            assert recompressed(batch, 0, None, room).to_bytes()[61:] == data
            assert room.remaining_bytes == 0
        with pytest.raises(SwollenBatchError):
            recompressed(batch, 0, None, room)


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("cut", [1, 5, -1, -9])
def test_invalid_compressed_data_differ_from_too_large_ones(codec: int, cut: int) -> None:
    data = compressed(codec, bytes(range(256)) * 40)[:cut]
    with pytest.raises(ValueError, match="decompressed") as caught:
        recompressed(batch_of(codec, data), 0, None)
    assert not isinstance(caught.value, SwollenBatchError)


def test_many_records_count_for_more_than_their_bytes() -> None:
    record = b"\x0c\0\0\0\x01\x01\0"
    batch = batch_of(4, compressed(4, record * 2_000_000), 2_000_000)
    assert batch.size_bytes < 10_000
    with pytest.raises(SwollenBatchError, match="2000000 compressed records"):
        next(read_records(batch))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 20,  # records without a length
        b"\x0b\0\0\0\x01\x01\0",  # a length below 0: the same record again and again
        b"\x80" * 1000 + b"\x01",  # a number of 7,000 bits
        b"\x0c\0\0\0\x01\x01",  # one byte is missing
        b"\x0c\0\0\0\x20\x01\0",  # a key behind the record's end
        b"\x0c\0\0\x04\x01\x01\0",  # the offset of a later batch
        b"\x0c\0\0\x01\x01\x01\0",  # and of an earlier one
        b"\x1e\0" + b"\xff" * 9 + b"\x03\0\x01\x01\0",  # at a time before all times
    ],
)
def test_invalid_records_are_refused(data: bytes) -> None:
    for codec in (0, 4):
        batch = batch_of(codec, compressed(codec, data))
        with pytest.raises(ValueError, match=r".") as caught:
            list(read_records(batch))
        assert not isinstance(caught.value, SwollenBatchError)


_LATE_MS = 2**60
"""A time at which no record is ahead: the times of none need be looked at."""


def test_batches_of_a_request_share_its_limit() -> None:
    config = LogConfig(codec=0)
    batch = recompressed(RecordBatch.from_bytes(record_batch(_VALUES)), 4, None)
    inside = len(recompressed(batch, 0, None).to_bytes()) - 61
    room = DecompressionBudget(3 * inside)
    assert len(validated([batch] * 3, config, _T, lambda: _LATE_MS, room)) == 3
    with pytest.raises(KafkaError) as caught:
        validated([batch], config, _T, lambda: _LATE_MS, room)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression.type": "uncompressed"},
        {"cleanup.policy": "compact"},
        {"message.timestamp.before.max.ms": "1000"},
    ],
)
def test_broker_refuses_a_decompression_bomb_and_keeps_running(settings: dict[str, str]) -> None:
    async def main() -> None:
        config = ClusterConfig(
            brokers=1, topics=[TopicSpec("t")], limits=Limits(frame_bytes=8 * MIB)
        )
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            cluster.controller.change_topic_settings("t", settings)
            for codec, bomb in BOMBS.values():
                data = bomb(16 * MIB)
                if len(data) < MIB:
                    assert await _produced(client, batch_of(codec, data)) == 10
            for codec in range(1, 5):
                code = await _produced(client, batch_of(codec, b"none"))
                assert code == ErrorCode.UNKNOWN_SERVER_ERROR
            good = recompressed(RecordBatch.from_bytes(record_batch(_VALUES)), 4, None)
            assert await _produced(client, good) in (0, 32, 87)  # old, or without keys

    asyncio.run(main())


def test_lookup_by_time_does_not_decompress_a_bomb() -> None:
    async def main() -> None:
        async with (
            Cluster(ClusterConfig(brokers=1, topics=[TopicSpec("t")])) as cluster,
            await RawClient.to(cluster) as client,
        ):
            partition = cluster.brokers[1].manager.partition(_T)
            assert partition is not None
            # As a log may have it that another broker wrote: a produce is looked into.
            partition.append_as_leader([batch_of(4, BOMBS["zstd"][1](256 * MIB))])
            asked = {"partition_index": 0, "timestamp": 0, "current_leader_epoch": -1}
            topics = [{"name": "t", "partitions": [asked]}]
            answer = await client.ask(2, 7, {"replica_id": -1, "topics": topics})
            assert answer.topics[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
            topics = [{"name": "t", "partitions": [asked] * 2}] * 50  # once and again in a request
            answer = await client.ask(2, 7, {"replica_id": -1, "topics": topics})
            told = {one.error_code for topic in answer.topics for one in topic.partitions}
            assert told == {ErrorCode.INVALID_REQUEST}

    asyncio.run(main())


async def _produced(client: RawClient, batch: RecordBatch) -> int:
    data = [{"index": 0, "records": batch.to_bytes()}]
    asked = {"acks": -1, "topic_data": [{"name": "t", "partition_data": data}]}
    answer = await client.ask(0, 9, asked)
    [partition] = answer.responses[0].partition_responses
    return int(partition.error_code)


def test_raw_records_are_checked_alike() -> None:
    with pytest.raises(ValueError, match="a record of"):
        list(raw_records(batch_of(0, b"\x0b\0\0\0\x01\x01\0")))
