"""A client of bare frames: its requests and the times of responses are exact."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from tests.wire.cluster.wire_values import read_response, record_batch, request_frame

PRODUCE, FETCH, METADATA, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 0, 1, 3, 32, 44
_VERSIONS = {PRODUCE: 8, FETCH: 11, METADATA: 8, DESCRIBE_CONFIGS: 4, INCREMENTAL_ALTER_CONFIGS: 1}
_TIMEOUT_S = 60.0


class WireClient:
    """One connection to one broker. Times are read off the monotonic clock, in seconds."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked: list[tuple[int, int]] = []
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    # Sending.

    def send(self, api_key: int, values: Mapping[str, Any]) -> float:
        """Send a request, and return when: just before."""
        self._next_id += 1
        frame = request_frame(api_key, _VERSIONS[api_key], self._next_id, values)
        self._asked.append((api_key, self._next_id))
        sent_s = time.monotonic()
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        return sent_s

    def send_fetch(self, topic: str, offset: int, min_bytes: int, max_wait_ms: int) -> float:
        """Ask for partition 0 from an offset on."""
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
        }
        fetch = {
            "replica_id": -1,
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": min_bytes,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
        }
        return self.send(FETCH, fetch)

    def send_produce(self, topic: str, value: bytes, acks: int, timeout_ms: int) -> float:
        """Send a batch with one record to partition 0."""
        data = [{"index": 0, "records": record_batch([value])}]
        produce = {
            "acks": acks,
            "timeout": timedelta(milliseconds=timeout_ms),
            "topic_data": [{"name": topic, "partition_data": data}],
        }
        return self.send(PRODUCE, produce)

    def send_without_answer(self, topic: str, value: bytes) -> None:
        """Send a batch with one record to partition 0, with acks=0."""
        self.send_produce(topic, value, acks=0, timeout_ms=10_000)
        self._asked.pop()

    # Responses.

    def receive(self) -> tuple[float, Any]:
        """Wait for the next answer; return when it was there, and its body."""
        length = int.from_bytes(self._read(4), "big")
        frame = self._read(length)
        came_s = time.monotonic()
        api_key, correlation_id = self._asked.pop(0)
        answered, body = read_response(api_key, _VERSIONS[api_key], frame)
        assert answered == correlation_id, "answers come in order"
        return came_s, body

    def receive_fetched(self) -> tuple[float, bytes]:
        """Wait for the answer to a fetch; return when it was there, and the records."""
        came_s, body = self.receive()
        (topic,) = body.responses
        (partition,) = topic.partitions
        assert partition.error_code == 0, partition
        return came_s, bytes(partition.records or b"")

    def receive_produced(self) -> tuple[float, int]:
        """Wait for the answer to a produce; return when it was there, and the error code."""
        came_s, body = self.receive()
        (topic,) = body.responses
        (partition,) = topic.partition_responses
        return came_s, int(partition.error_code)

    def produce(self, topic: str, value: bytes) -> float:
        """Send a record with acks=all; return when it was acknowledged."""
        self.send_produce(topic, value, acks=-1, timeout_ms=10_000)
        came_s, code = self.receive_produced()
        assert code == 0, f"error {code}"
        return came_s

    def round_trip(self) -> None:
        """Ask something that is answered at once: all earlier responses of the broker are sent."""
        self.send(METADATA, {"topics": []})
        self.receive()

    @property
    def has_answer(self) -> bool:
        """Whether something can be received now."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(count)
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
