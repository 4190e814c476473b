"""A capture from its start to its end: recovery, snapshot, then streaming from the binlog."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace

import pymysql
from confluent_kafka import KafkaError, KafkaException, Producer

from purgatory.cdc.capture.binlog import BinlogReader, SchemaStatement, Transaction
from purgatory.cdc.capture.checkpoint import Checkpoint, RecoveredPosition, recover_position
from purgatory.cdc.capture.errors import CaptureError, cluster_error, source_error
from purgatory.cdc.capture.kafka import (
    ClientErrors,
    KafkaSettings,
    ensure_topics,
    largest_record_bytes,
)
from purgatory.cdc.capture.position import Position, RecordPosition
from purgatory.cdc.capture.publisher import ChunkLimits, Publisher, Sender
from purgatory.cdc.capture.records import CapturedRecord, broadcast_record, row_record
from purgatory.cdc.capture.snapshot import Resnapshots, Snapshot, table_records
from purgatory.cdc.capture.source import (
    SourceAddress,
    TableFilter,
    captured_tables,
    check_beginning,
    check_settings,
    connect,
    current_position,
    describe_table,
    error_text,
    is_mariadb,
    logs_cascades,
    missing_tables,
    unlogged_cascade,
    unlogged_engine,
)
from purgatory.cdc.ddl.statements import SchemaChange

MAX_RECORD_BYTES = 16 * 2**20
"""The largest record of a topic that is created: the largest that `purgatory apply` accepts."""

_DEFINING_KINDS = ("table-create", "table-alter")


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """The tables to capture, and the topic.

    Args:
        partitions: of ``topic``, if it is created.
        max_record_bytes: the largest record of ``topic``, if it is created.
        snapshot: start with the existing rows, if the topic has no position yet.
        once: stop at the end of the binlog.
        ignore_cascades: capture tables whose foreign keys change rows without the binlog.
    """

    source: SourceAddress
    kafka: KafkaSettings
    topic: str = "changes"
    tables: TableFilter = field(default_factory=TableFilter)
    partitions: int = 6
    max_record_bytes: int = MAX_RECORD_BYTES
    snapshot: bool = False
    once: bool = False
    ignore_cascades: bool = False


def capture_changes(config: CaptureConfig) -> int:
    """Capture until stopped, or, with ``once``, up to the current end of the binlog.

    A capture resumes behind the records in the topic; without any, at the end of the binlog. Each
    change is in the topic once, in order within its key's partition, even if processes are killed.

    Returns:
        The number of records that were sent.

    Raises:
        CaptureError: it can't start or continue; a restart resumes behind the records in the topic.
    """
    try:
        return _capture(config)
    except KafkaException as error:
        first = error.args[0]
        words = first.str() if isinstance(first, KafkaError) else first
        raise cluster_error(f"the Kafka client failed: {words}", first) from None


def _capture(config: CaptureConfig) -> int:
    with connect(config.source) as connection:
        lower_case = check_settings(connection)
        if lower_case:
            config = replace(config, tables=config.tables.in_lower_case())
        captured_tables(connection, config.tables)
        current = current_position(connection)
        if logs_cascades(connection):
            config = replace(config, ignore_cascades=True)
    partitions = ensure_topics(
        config.kafka, config.topic, config.partitions, config.max_record_bytes
    )
    client_errors = ClientErrors()
    largest_bytes = largest_record_bytes(config.kafka, config.topic)
    settings = config.kafka.producer(client_errors, largest_bytes)
    producer = Producer(settings)
    limits = ChunkLimits.from_settings(settings, largest_bytes) if config.kafka.idempotent else None
    try:
        recovered = recover_position(config.kafka, producer, config.topic, partitions)
        with Sender(producer, client_errors, config.topic, limits) as sender:
            publisher = Publisher(producer, sender, config.topic, recovered)
            reader = BinlogReader(
                config.source,
                current,
                config.tables,
                config.once,
                lower_case,
                ignore_cascades=config.ignore_cascades,
            )
            reader.begin_at(_start(config, publisher, recovered, reader))
            _stream_changes(config, publisher, reader)
    except BaseException:
        # Queued records must not be appended while the next capture already runs.
        producer.purge()
        raise
    return publisher.sent


def _stream_changes(config: CaptureConfig, publisher: Publisher, reader: BinlogReader) -> None:
    # The position that was sent last, and the number of its records.
    sent = RecordPosition(reader.start.number, 0)
    resnapshots = Resnapshots(config.source)
    while True:
        for item in reader.items():
            due = resnapshots.position
            if due is not None and item.position.number > due.number:
                _send_resnapshots(publisher, resnapshots, sent)
            match item:
                case Transaction():
                    sent = RecordPosition(item.position.number, len(item.rows))
                    _send_transaction(publisher, item)
                case SchemaStatement():
                    changes = [
                        new for change in item.changes for new in resnapshots.record_change(change)
                    ]
                    sent = RecordPosition(item.position.number, len(changes))
                    _send_schema(config.source, publisher, replace(item, changes=changes))
            _resend_due(publisher, resnapshots, sent, reader.read_position)
            publisher.poll()
            if not resnapshots.is_pending and publisher.checkpoint_is_due(reader.resume_position):
                _store(publisher, reader)
        _resend_due(publisher, resnapshots, sent, reader.read_position)
        if not resnapshots.is_pending:
            break
    _store(publisher, reader)


def _store(publisher: Publisher, reader: BinlogReader) -> None:
    position = reader.resume_position
    publisher.store(position, reader.origin(position))


def _resend_due(
    publisher: Publisher, resnapshots: Resnapshots, sent: RecordPosition, read_to: Position
) -> None:
    while resnapshots.is_due(read_to):
        _send_resnapshots(publisher, resnapshots, sent)


def _send_resnapshots(publisher: Publisher, resnapshots: Resnapshots, sent: RecordPosition) -> None:
    position = resnapshots.position
    assert position is not None, "rows are due"
    first = _next_xoffset(publisher, position)
    if sent.position == position.number:
        first = max(first, sent.xoffset)
    for record in resnapshots.records(first):
        publisher.send(record)


def _start(
    config: CaptureConfig, publisher: Publisher, recovered: RecoveredPosition, reader: BinlogReader
) -> Position:
    checkpoint = recovered.checkpoint
    _check_names(config, is_new=checkpoint is None)
    if checkpoint is not None:
        _check_origin(config, checkpoint, reader)
        _check_unlogged(config, is_new=False)
        if not checkpoint.snapshot_open:
            return checkpoint.position
    if checkpoint is None:
        if any(position is not None for position in recovered.last_positions):
            raise CaptureError(
                f"topic {config.topic} has changes, but {config.topic}.positions has no position: "
                "capture into a new topic"
            )
        if not config.snapshot:
            with connect(config.source) as connection:
                check_beginning(connection, config.tables)
            _check_unlogged(config, is_new=True)
            # Stored before the first change, so that none is lost if this process ends now.
            _store(publisher, reader)
            return reader.start
    earlier = None if checkpoint is None else checkpoint.position
    return _snapshot(config, publisher, earlier, reader)


def _check_names(config: CaptureConfig, *, is_new: bool) -> None:
    """Refuse a new topic of tables that do not exist.

    The binlog may have the last changes of a table that was dropped since.
    """
    with connect(config.source) as connection:
        told = missing_tables(connection, config.tables)
    if told and is_new:
        raise CaptureError(told)
    if told:
        print(f"purgatory capture: {told} any more", file=sys.stderr)


def _check_unlogged(config: CaptureConfig, *, is_new: bool) -> None:
    """Refuse a new topic of tables that change outside of the binlog: by engine or foreign key.

    A later engine or key has a stop in the topic. An older topic may lack such changes, which is
    said.
    """
    with connect(config.source) as connection:
        for what, find in (("engines", unlogged_engine), ("foreign keys", unlogged_cascade)):
            if find is unlogged_cascade and config.ignore_cascades:
                continue
            try:
                reason = find(connection, config.tables)
            except pymysql.Error as error:
                message = f"the source's {what} can't be read: {error_text(error)}"
                if is_new:
                    raise source_error(message, error) from None
                told = f"{config.topic} may lack changes: {message}"
            else:
                if is_new and reason:
                    raise CaptureError(reason)
                told = reason and f"{config.topic} may lack changes of {reason}"
            if told:
                print(f"purgatory capture: {told}", file=sys.stderr)


def _check_origin(config: CaptureConfig, checkpoint: Checkpoint, reader: BinlogReader) -> None:
    """Check that the binlog is the one of the last capture, and not of a server made anew."""
    position, known = checkpoint.position, checkpoint.origin
    found = reader.origin(position)
    if known not in (None, found):
        raise CaptureError(
            f"{position.file} of {config.source} is another file than the one that was captured "
            f"into {config.topic} up to {position} (by server@time made: {found}, not {known}): "
            "the source was made anew, or is another server; begin a new topic with --snapshot"
        )


def _snapshot(
    config: CaptureConfig, publisher: Publisher, earlier: Position | None, reader: BinlogReader
) -> Position:
    """Send all rows, at the position of the first attempt, from which the binlog is then read.

    A later attempt reads later rows: the changes in between come again from the binlog, which ends
    with the same rows, and deletes those that were deleted meanwhile.
    """
    with Snapshot(config.source, config.tables) as snapshot:
        position = earlier or snapshot.position
        if earlier is None:
            _check_unlogged(config, is_new=True)
        origin = reader.origin(position)
        publisher.store(position, origin, snapshot_open=True)
        xoffset = _next_xoffset(publisher, position)
        for table in snapshot.tables:
            names = {"database": table.database, "table": table.table}
            # Rows alone don't have the types of their columns. An interrupted attempt may have left
            # copies in some partitions, so each copy takes effect by itself.
            definition = {"snapshot": True, "def": table.definition()}
            ts = int(time.time())
            publisher.send(
                broadcast_record("table-create", position, xoffset, ts, **names, **definition)
            )
            rows = snapshot.rows(table)
            for record in table_records(table.database, table.table, rows, position, xoffset + 1):
                publisher.send(record)
                xoffset = record.position.xoffset + 1
        publisher.store(position, origin)
    return position


def _next_xoffset(publisher: Publisher, position: Position) -> int:
    numbers = [
        last.xoffset
        for last in publisher.last_positions
        if last is not None and last.position == position.number
    ]
    return max(numbers) + 1 if numbers else 0


def _send_transaction(publisher: Publisher, transaction: Transaction) -> None:
    position = transaction.position
    last = len(transaction.rows) - 1
    for xoffset, row in enumerate(transaction.rows):
        publisher.send(
            row_record(row, position, xoffset, xid=position.number, commit=xoffset == last)
        )
    transaction.rows.clear()


def _send_schema(source: SourceAddress, publisher: Publisher, statement: SchemaStatement) -> None:
    try:
        with connect(source) as connection:
            for xoffset, change in enumerate(statement.changes):
                publisher.send(_schema_record(connection, statement, xoffset, change))
    except pymysql.Error as error:
        message = f"what {statement.sql[:200]} changed can't be described: {error_text(error)}"
        raise source_error(message, error) from None


def _schema_record(
    connection: pymysql.connections.Connection,
    statement: SchemaStatement,
    xoffset: int,
    change: SchemaChange,
) -> CapturedRecord:
    if is_mariadb(connection):
        change = change.with_json_as_text()
    definition = change.definition()
    if definition is None and change.kind in _DEFINING_KINDS and change.table is not None:
        # The source's current definition, for readers that use it as Maxwell's do.
        name = change.new_name or (change.database, change.table)
        description = describe_table(connection, *name)
        definition = None if description is None else description.definition()
    return broadcast_record(
        change.kind,
        statement.position,
        xoffset,
        statement.ts,
        database=change.database,
        # Maxwell uses an altered table's old name; the new one is in the definition.
        table=change.table,
        old=None if change.new_name is None else {"table": change.table},
        sql=statement.sql,
        steps=change.all_steps,
        **{"if": "absent" if change.if_absent else None, "def": definition},
    )
