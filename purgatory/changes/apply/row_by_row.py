"""Changes row by row: each record takes effect by itself, in the order of its partition."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory.changes.apply.apply_options import ApplyOptions
from purgatory.changes.apply.exactly_once import Applied, BadChangeMetError, Writer, stopped
from purgatory.changes.apply.set_aside import Quarantined
from purgatory.changes.apply.target_schema import SchemaMovedError
from purgatory.changes.apply.transactions import settle
from purgatory.changes.errors import StoppedOnBadError
from purgatory.changes.record import Record
from purgatory.changes.targets.target import Target

_DEFAULTS = ApplyOptions()


def apply_batch(
    target: Target,
    topic: str,
    partition: int,
    records: Iterable[Record],
    options: ApplyOptions = _DEFAULTS,
) -> Applied:
    """Apply consecutive records of one partition in one transaction of the target.

    Args:
        target: prepared (`Target.prepare`).
        topic, partition: which all the records are of.
        records: by rising offsets; those that were applied before are skipped.
        options: how.

    Returns:
        What became of them.

    Raises:
        StoppedOnBadError: asked to stop, it met a change that can't be applied; what is before it
            has been committed.
        Exception: what the target's driver raises; then nothing has happened.
    """
    return apply_rows(Writer(target, options), topic, partition, records)


def apply_rows(writer: Writer, topic: str, partition: int, records: Iterable[Record]) -> Applied:
    """Do as `apply_batch` over a connection that is there."""
    batch = writer.parse(records)
    writer.note_reads(batch)
    bad: Quarantined | None = None
    while True:
        try:
            writer.plan_rows(batch)
            applied = writer.commit(topic, partition, batch)
            break
        except BadChangeMetError as met:
            bad = met.bad
            batch.items = [item for item in batch.items if item.record.offset < bad.offset]
        except SchemaMovedError:
            continue
    if bad is not None:
        raise StoppedOnBadError(stopped(bad))
    if applied.pending:
        applied += settle(writer, topic, by_transaction=False)
    return applied
