"""Applies topics in this process, without Java: read a batch of records, apply it, repeat.

The records come from the reader of the data source, and are applied by the code that also runs in
Spark's tasks (`apply_batches`). Both engines resume from the target, in whose transactions the
offsets are stored, so one may continue where the other one was stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from purgatory.cdc.apply.applier import Applier
from purgatory.cdc.apply.exactly_once import Applied
from purgatory.cdc.apply.options import TopicSettings
from purgatory.cdc.change import Record
from purgatory.cdc.errors import ChangesError, TransientError
from purgatory.cdc.targets import Target, open_target
from purgatory.source.broker_client import BrokerClient
from purgatory.source.errors import SourceError, with_advice
from purgatory.source.options import parse_options
from purgatory.source.stream_reader import PurgatoryStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition", "offset", "key", "value")
"""The columns of the source that applying needs."""

RESTART_ADVICE = "To begin anew, delete the topic's rows in the target's table purgatory_offsets"

_POLL_INTERVAL_S = 0.2


def apply_topics(
    settings: TopicSettings,
    *,
    connect: Callable[[str], Target] = open_target,
    progress: Callable[[Applied], None] = lambda applied: None,
) -> Applied:
    """Apply topics until interrupted, or, with `once`, up to their current ends.

    Args:
        connect: opens a target by its URL.
        progress: called with the result of each batch.

    Raises:
        ChangesError: the brokers or the target are unreachable, records to be read are gone, or a
            change can't be applied and has to stop the run.
    """
    try:
        if settings.once:
            check_topics(settings)
        with open_applier(settings, connect) as applier:
            source, total = resume(applier, settings)
            reader = PurgatoryStreamReader(parse_options(source))
            try:
                for batches in _micro_batches(reader, settings.once):
                    applied = Applied()
                    try:
                        for result in apply_batches(applier, batches, settings.by_transaction):
                            applied += result
                    finally:
                        if applied != Applied():
                            progress(applied)
                    total += applied
            finally:
                reader.stop()
    except SourceError as error:
        kind = TransientError if error.is_transient else ChangesError
        raise kind(f"the stream failed: {with_advice(str(error), RESTART_ADVICE)}") from error
    return total


def _micro_batches(reader: PurgatoryStreamReader, once: bool) -> Iterator[Iterator[pa.RecordBatch]]:
    offsets = reader.initialOffset()
    if once:
        reader.prepareForTriggerAvailableNow()
    while True:
        ends = reader.latestOffset(offsets, reader.getDefaultReadLimit())
        if ranges := reader.partitions(offsets, ends):
            yield (batch.select(COLUMNS) for range_ in ranges for batch in reader.read(range_))
        elif once:
            return
        else:
            time.sleep(_POLL_INTERVAL_S)
        offsets = ends


# Functions that Spark's engine shares.


def check_topics(settings: TopicSettings) -> None:
    """Check that the topics exist. A stream waits for a topic to be created; `once`, it can't.

    Raises:
        ChangesError: one doesn't.
        SourceError: the brokers are unreachable.
    """
    options = parse_options({**settings.client, "subscribe": ",".join(settings.topics)})
    client = BrokerClient(options)
    try:
        existing = {partition.topic for partition in client.partitions(options.subscription)}
    finally:
        client.close()
    missing_topics = [topic for topic in settings.topics if topic not in existing]
    if missing_topics:
        raise ChangesError(f"there is no topic {missing_topics[0]}: create it, or correct --topic")


def open_applier(
    settings: TopicSettings, connect: Callable[[str], Target], *, prepare: bool = True
) -> Applier:
    """Connect to the target; `prepare` creates its own tables if needed."""
    return Applier(
        partial(connect, settings.target_url),
        settings.options,
        retry_for_s=settings.retry_for_s,
        prepare=prepare,
    )


def resume(applier: Applier, settings: TopicSettings) -> tuple[dict[str, str], Applied]:
    """Apply the complete groups that an earlier run left pending.

    Returns:
        The source's options, to read from the target's offsets; and what was applied.
    """
    applied = Applied()
    offsets = applier.next_offsets(settings.topics)
    for topic in settings.topics:
        applied += applier.drain_pending(topic, by_transaction=settings.by_transaction)
    source = {
        **settings.client,
        "subscribe": ",".join(settings.topics),
        "startingOffsets": json.dumps(offsets) if offsets else "earliest",
        "maxOffsetsPerTrigger": str(settings.max_records),
    }
    return source, applied


def apply_batches(
    applier: Applier, batches: Iterable[pa.RecordBatch], by_transaction: bool
) -> Iterator[Applied]:
    """Apply Arrow batches with the columns `COLUMNS`, each in a transaction; yield each result.

    By transaction, all batches are applied together.

    Raises:
        ChangesError: the target is unreachable, or a change has to stop the run.
    """
    if by_transaction:
        yield applier.apply_transactions(
            [record for batch in batches for record in _records(batch)]
        )
        return
    for batch in batches:
        for (topic, partition), records in groupby(
            _records(batch), key=lambda record: record.topic_partition
        ):
            yield applier.apply_batch(topic, partition, list(records))


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    return map(Record, *(column.to_pylist() for column in batch.columns))
