"""Results in a topic, as JSON, each once however often a batch is repeated.

Each record says which batch it is of and its number in it. A job that starts reads the last record
of the topic's partition 0, where all are, and goes on behind it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory.analysis.errors import FaultError, OutputError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_TIMEOUT_S = 30.0
_HEAD = ("batch", "number")


class ResultTopic:
    """Writes results to one topic, of which it is the only writer.

    Args:
        bootstrap_servers: of the cluster.
        topic: made with one partition if it isn't there.
        client: more settings, as librdkafka names them.

    Raises:
        OutputError: nobody answers, or the topic's last record is none of these results.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, client: Mapping[str, str] | None = None
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self.topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "purgatory-stream",
            "log_level": 0,
            **(client or {}),
        }
        try:
            self._make()
            self._last = self._find_last()
            self._producer = Producer({**self._settings, "enable.idempotence": True})
        except KafkaException as error:
            told = f"--to-topic {topic}: {bootstrap_servers} can't be used: {error.args[0].str()}"
            raise (FaultError if error.args[0].retriable() else OutputError)(told) from error

    @property
    def last_batch(self) -> int:
        """The batch of the last result that it has; -1 if it has none."""
        return self._last[0]

    def write(self, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write a batch's rows, those that aren't there; return how many. Waits for them.

        Args:
            batch: its number, higher than the one before, or the same again.
            rows: in an order that is the same each time.

        Raises:
            FaultError: they were not all acknowledged.
        """
        failures: list[str] = []

        def note(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error.str())

        written = 0
        for number, row in enumerate(rows):
            if (batch, number) <= self._last:
                continue
            document = {**dict(zip(_HEAD, (batch, number), strict=True)), **row}
            value = json.dumps(document, default=_as_text, ensure_ascii=False)
            self._producer.produce(self.topic, value, partition=0, on_delivery=note)
            self._producer.poll(0)
            written += 1
        left = self._producer.flush(_TIMEOUT_S)
        if left or failures:
            reason = failures[0] if failures else f"no answer within {_TIMEOUT_S:g} s"
            raise FaultError(f"--to-topic {self.topic}: results were not taken: {reason}")
        if written:
            self._last = (batch, len(rows) - 1)
        return written

    def _make(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient(self._settings)
        if self.topic not in admin.list_topics(timeout=_TIMEOUT_S).topics:
            for made in admin.create_topics([NewTopic(self.topic, 1, -1)]).values():
                made.result(_TIMEOUT_S)

    def _find_last(self) -> tuple[int, int]:
        """Return the batch and number of the last record; (-1, -1) if there is none."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._settings, "group.id": "purgatory-stream"})
        try:
            place = TopicPartition(self.topic, 0)
            first, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
            if end <= first:
                return -1, -1
            consumer.assign([TopicPartition(self.topic, 0, end - 1)])
            value = self._next_value(consumer)
        finally:
            consumer.close()
        try:
            row = json.loads(value or b"")
            return int(row[_HEAD[0]]), int(row[_HEAD[1]])
        except (ValueError, TypeError, KeyError):
            raise OutputError(
                f"--to-topic {self.topic}: its last record is no result of this command: name a "
                "topic that nobody else writes to"
            ) from None

    def _next_value(self, consumer: Consumer) -> bytes | None:
        """Return the next record's; what may pass, such as a lost connection, is waited out."""
        reason = f"no answer within {_TIMEOUT_S:g} s"
        give_up_s = time.monotonic() + _TIMEOUT_S
        while (left_s := give_up_s - time.monotonic()) > 0:
            message = consumer.poll(left_s)
            error = None if message is None else message.error()
            if error is not None:
                reason = error.str()
            elif message is not None:
                return message.value()
        raise FaultError(f"--to-topic {self.topic}: its last record can't be read: {reason}")


def check_result_topic(topic: ResultTopic, checkpoint: Path) -> None:
    """Refuse a topic with results of another checkpoint: ours would be taken for repeated ones.

    Args:
        topic: of one query.
        checkpoint: the folder where this query keeps how far it is.

    Raises:
        OutputError: saying what is there and what to do.
    """
    begun = (int(path.name) for path in checkpoint.glob("offsets/*") if path.name.isdecimal())
    if topic.last_batch > max(begun, default=-1):
        raise OutputError(
            f"--to-topic {topic.topic}: has results up to batch {topic.last_batch}, and "
            f"{checkpoint} does not know of them: name the checkpoint that goes with them, or "
            "another topic"
        )


def _as_text(value: Any) -> str:
    return str(value.isoformat())
