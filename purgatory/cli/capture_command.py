"""The command ``purgatory capture``: captures a database's changes into a topic."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import INTERRUPTED, INVALID_CHANGE, exit_status


def capture(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="mysql://USER:PASSWORD@HOST:PORT[/DATABASE]",
            help="A MariaDB or MySQL with a row-based binlog.",
            envvar="PURGATORY_CAPTURE_FROM",
        ),
    ],
    bootstrap: options.Bootstrap,
    topic: Annotated[
        str, typer.Option(help="The topic of changes; TOPIC.positions has the binlog position.")
    ] = "changes",
    only: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these tables: TABLE or DATABASE.TABLE."),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of the topic, if it is created.")
    ] = 6,
    max_record_bytes: Annotated[
        int,
        typer.Option(
            min=1_024,
            max=2**30,
            metavar="BYTES",
            help="The largest record of the topic, if it is created.",
        ),
    ] = 16 * 2**20,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="Start a new topic with the existing rows."),
    ] = False,
    once: options.Once = False,
    client: options.Client = None,
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
        )
        sent = capture_changes(config)
    except CaptureError as error:
        print(f"purgatory capture: {error}", file=sys.stderr)
        status = INVALID_CHANGE if isinstance(error, UnsupportedChangeError) else exit_status(error)
        raise typer.Exit(status) from None
    except KeyboardInterrupt:
        print(
            "purgatory capture: interrupted; it resumes from here when started again",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED) from None
    print(f"{sent} record{'' if sent == 1 else 's'} sent to {config.topic}")
