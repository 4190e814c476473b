"""Producers of bare requests: plain, idempotent and transactional ones, in any version.

A batch is sent again until it is acknowledged, or its producer is fenced.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from purgatory.cluster.records import new_batch, packed_batch, records_data
from purgatory.kafka.errors import ErrorCode
from tests.world.wire_client import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TRANSACTION,
    TXN_OFFSET_COMMIT,
    NoAnswerError,
    WireClient,
)
from tests.world.wire_members import GROUP_ID, TOPIC

TRANSACTIONAL_ID, SIDE_TOPIC = "writer", "side"
INTERVAL_S = 2.5
_RECORDS, _KEYS = 2, 7
_TIMEOUT = timedelta(seconds=10)
_TRANSACTION_TIMEOUT = timedelta(seconds=30)
_AGAIN_S = 0.3
_TRANSACTIONAL = 0x10
_IMPLICIT_VERSION = 12
"""From this version of Produce on, leaders add partitions to transactions."""
_BATCHED_ADD_VERSION = 4
_IMPLICIT_OFFSETS_VERSION = 5

_AGAIN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""Errors after which a producer tries again."""


class GaveUpError(Exception):
    """A producer that can't go on with its id, or its transaction."""


def batch_of(
    name: str, first: int, producer: tuple[int, int, int] = (-1, -1, -1), attributes: int = 0
) -> bytes:
    """Return a batch of numbered records.

    Args:
        name: the producer's.
        first: the number of the first record.
        producer: its id and epoch, and the batch's sequence.
    """
    numbers = range(first, first + _RECORDS)
    rows = [(b"%d" % (one % _KEYS), f"{name} {one}".encode()) for one in numbers]
    now_ms = time.time_ns() // 1_000_000
    header = [0, 0, 0, 2, 0, attributes, _RECORDS - 1, now_ms, now_ms, *producer, _RECORDS]
    return packed_batch(header, records_data(new_batch(rows))).to_bytes()


class WireProducer:
    """A producer to all partitions of the topic.

    Args:
        client: its connections.
        kind: "plain", "idempotent" or "transactional".
        commits: whether its transactions commit offsets of the readers' group, too.
    """

    def __init__(self, client: WireClient, kind: str, commits: bool) -> None:
        self._client = client
        self._kind = kind
        self._commits = commits
        self._id = (-1, -1)
        self._sequences: dict[int, int] = {}
        self._number = 0
        self._transactions = 0
        self.acknowledged = 0
        self._stops = False

    def stop(self) -> None:
        """End after the current batches."""
        self._stops = True

    async def run(self) -> None:
        """Send batches until it is stopped."""
        while not self._stops:
            try:
                if self._kind != "plain" and self._id[0] < 0:
                    await self._initialize()
                if self._kind == "transactional":
                    await self._transact()
                else:
                    await self._send_all()
            except (GaveUpError, NoAnswerError):
                self._id = (-1, -1)
                self._client.forget()
                await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(INTERVAL_S)

    async def _initialize(self) -> None:
        transactional_id = TRANSACTIONAL_ID if self._kind == "transactional" else None
        asked = {
            "transactional_id": transactional_id,
            "transaction_timeout": _TRANSACTION_TIMEOUT,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        while True:
            if transactional_id is None:
                broker = await self._client.leader(TOPIC, 0)
                answer = await self._client.ask(broker, INIT_PRODUCER_ID, asked)
            else:
                answer = await self._ask(INIT_PRODUCER_ID, asked)
            if answer.error_code == ErrorCode.NONE:
                self._id = (answer.producer_id, answer.producer_epoch)
                self._sequences.clear()
                return
            self._check(answer.error_code)
            await asyncio.sleep(_AGAIN_S)

    async def _send_all(self) -> None:
        count = (await self._client.refresh([TOPIC])).get(TOPIC, 0)
        numbers = [self._number + _RECORDS * one for one in range(count)]
        self._number += _RECORDS * count
        sending = [self._send(one, number) for one, number in enumerate(numbers)]
        ended = await asyncio.gather(*sending, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _send(self, partition: int, number: int) -> None:
        """Send a batch until it is acknowledged.

        Raises:
            GaveUpError: its id, or its transaction, is of no use any more.
        """
        sequence = self._sequences.get(partition, 0) if self._kind != "plain" else -1
        attributes = _TRANSACTIONAL if self._kind == "transactional" else 0
        records = batch_of(self._client.client_id, number, (*self._id, sequence), attributes)
        while True:
            code = await self._produce(partition, records)
            if code == ErrorCode.NONE:
                self.acknowledged += _RECORDS
                self._sequences[partition] = sequence + _RECORDS
                return
            if code is not None:
                self._check(code)
            self._client.forget()
            await asyncio.sleep(_AGAIN_S)

    async def _produce(self, partition: int, records: bytes) -> int | None:
        """Send a batch, and return the error code; None: there was no answer."""
        try:
            leader = await self._client.leader(TOPIC, partition)
            of_topic = {
                "name": TOPIC,
                "topic_id": self._client.topic_ids.get(TOPIC),
                "partition_data": [{"index": partition, "records": records}],
            }
            asked = {
                "acks": -1,
                "timeout": _TIMEOUT,
                "topic_data": [of_topic],
                "transactional_id": TRANSACTIONAL_ID if self._kind == "transactional" else None,
            }
            answer = await self._client.ask(leader, PRODUCE, asked)
        except NoAnswerError:
            return None
        return int(answer.responses[0].partition_responses[0].error_code)

    def _check(self, code: int) -> None:
        if code not in _AGAIN:
            raise GaveUpError(f"{self._client.client_id}: {ErrorCode(code).name}")

    # Transactions.

    async def _transact(self) -> None:
        """Commit a transaction, or abort it: each fourth."""
        self._transactions += 1
        commits = self._transactions % 4 != 0
        if self._client.version(PRODUCE) < _IMPLICIT_VERSION:
            await self._add_partitions()
        await self._send_all()
        if self._commits:
            await self._commit_offset(self._transactions + (0 if commits else 1_000_000))
        asked = {**self._transaction, "committed": commits}
        while True:
            try:
                answer = await self._ask(END_TXN, asked)
            except NoAnswerError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if answer.error_code == ErrorCode.NONE:
                break
            self._check(answer.error_code)
            await asyncio.sleep(_AGAIN_S)
        if getattr(answer, "producer_id", -1) >= 0:
            self._id = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()

    @property
    def _transaction(self) -> dict[str, Any]:
        return {
            "transactional_id": TRANSACTIONAL_ID,
            "producer_id": self._id[0],
            "producer_epoch": self._id[1],
        }

    async def _add_partitions(self) -> None:
        count = (await self._client.refresh([TOPIC])).get(TOPIC, 0)
        topics = [{"name": TOPIC, "partitions": list(range(count))}]
        asked = {
            "v3_and_below_transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_producer_id": self._id[0],
            "v3_and_below_producer_epoch": self._id[1],
            "v3_and_below_topics": topics,
        }
        while True:
            answer = await self._ask(ADD_PARTITIONS, asked)
            codes = {
                one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            }
            if codes <= {ErrorCode.NONE}:
                return
            for code in codes - {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}:
                self._check(code)
            self._client.forget()
            await asyncio.sleep(_AGAIN_S)

    async def _commit_offset(self, offset: int) -> None:
        group = {**self._transaction, "group_id": GROUP_ID}
        if self._client.version(TXN_OFFSET_COMMIT) < _IMPLICIT_OFFSETS_VERSION:
            added = await self._ask(ADD_OFFSETS, group)
            self._check_end(added.error_code)
        partition = {"partition_index": 0, "committed_offset": offset}
        topics = [{"name": SIDE_TOPIC, "partitions": [partition]}]
        asked = {**group, "generation_id": -1, "topics": topics}
        answer = await self._client.ask_coordinator(GROUP_ID, 0, TXN_OFFSET_COMMIT, asked)
        self._check_end(answer.topics[0].partitions[0].error_code)

    def _check_end(self, code: int) -> None:
        """Give the transaction up at any error: the next one begins with a new epoch."""
        if code != ErrorCode.NONE:
            raise GaveUpError(f"{self._client.client_id}: {ErrorCode(code).name}")

    async def _ask(self, api_key: int, values: dict[str, Any]) -> Any:
        answer = await self._client.ask_coordinator(TRANSACTIONAL_ID, TRANSACTION, api_key, values)
        if getattr(answer, "error_code", 0) in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ):
            self._client.forget_coordinator(TRANSACTIONAL_ID, TRANSACTION)
        return answer
