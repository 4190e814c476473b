"""The command ``purgatory capture``: captures a database's changes into a topic."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from purgatory.cli import options
from purgatory.cli.exit_status import INTERRUPTED, INVALID_CHANGE, exit_status


@click.command()
@options.option(
    "--from",
    "source",
    required=True,
    metavar="mysql://USER:PASSWORD@HOST:PORT[/DATABASE]",
    help="A MariaDB or MySQL with a row-based binlog.",
    envvar="PURGATORY_CAPTURE_FROM",
)
@options.bootstrap_option(required=True)
@options.option(
    "--topic",
    default="changes",
    help="The topic of changes; TOPIC.positions has the binlog position.",
)
@options.option("--only", metavar="A,B", help="Only these tables: TABLE or DATABASE.TABLE.")
@options.number_option(
    "--partitions", least=1, default=6, help="Partitions of the topic, if it is created."
)
@options.option(
    "--max-record-bytes",
    type=click.IntRange(1_024, 2**30),
    default=16 * 2**20,
    metavar="BYTES",
    help="The largest record of the topic, if it is created.",
)
@options.flag("--snapshot", "Start a new topic with the existing rows.")
@options.flag(
    "--ignore-cascades",
    "Capture without the rows that ON DELETE CASCADE and the like change outside of the binlog.",
)
@options.once
@options.client
def capture(
    source: str,
    bootstrap: str,
    topic: str,
    only: str | None,
    partitions: int,
    max_record_bytes: int,
    snapshot: bool,
    ignore_cascades: bool,
    once: bool,
    client: Sequence[str],
) -> None:
    """Capture a database's changes as Maxwell's JSON, each once and in order.

    The next run with the same topic resumes where this one ended.
    """
    from purgatory.cdc.capture import (
        CaptureConfig,
        CaptureError,
        KafkaSettings,
        TableFilter,
        UnsupportedChangeError,
        capture_changes,
        parse_source_address,
    )

    try:
        address = parse_source_address(source)
        names = frozenset(name.strip() for name in (only or "").split(",") if name.strip())
        config = CaptureConfig(
            source=address,
            kafka=KafkaSettings(bootstrap, options.client_settings(client)),
            topic=topic,
            tables=TableFilter(address.database, names),
            partitions=partitions,
            max_record_bytes=max_record_bytes,
            snapshot=snapshot,
            once=once,
            ignore_cascades=ignore_cascades,
        )
        sent = capture_changes(config)
    except CaptureError as error:
        print(f"purgatory capture: {error}", file=sys.stderr)
        status = INVALID_CHANGE if isinstance(error, UnsupportedChangeError) else exit_status(error)
        raise click.exceptions.Exit(status) from None
    except KeyboardInterrupt:
        print(
            "purgatory capture: interrupted; it resumes from here when started again",
            file=sys.stderr,
        )
        raise click.exceptions.Exit(INTERRUPTED) from None
    print(f"{sent} record{'' if sent == 1 else 's'} sent to {config.topic}")
