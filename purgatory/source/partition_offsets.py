"""Offsets by partition, as the checkpoint keeps them: {"orders": {"0": 12, "1": 7}}.

The form is the one of Spark's own Kafka source. Its order is fixed: Spark compares it as text.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import InputPartition

from purgatory.kafka.topic_partition import TopicPartition

Offsets = dict[TopicPartition, int]
"""Where each partition is, or is to be, read on."""

OffsetsDocument = dict[str, dict[str, int]]
"""The same as the checkpoint has it."""


class OffsetRange(InputPartition):
    """What one task reads: the offsets from `start` up to, and without, `end` of a partition."""

    def __init__(self, of: TopicPartition, start: int, end: int) -> None:
        self.of = of
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"OffsetRange({self.of}, {self.start}, {self.end})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRange) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.of, self.start, self.end))


def to_document(offsets: Mapping[TopicPartition, int]) -> OffsetsDocument:
    """Return offsets as the checkpoint keeps them, in the order of topics and partitions."""
    document: OffsetsDocument = {}
    for of in sorted(offsets):
        document.setdefault(of.topic, {})[str(of.partition)] = offsets[of]
    return document


def from_document(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets that a checkpoint has."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }
