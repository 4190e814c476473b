"""The command ``purgatory apply``: applies a database's change log to another, exactly once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from purgatory.cli import options
from purgatory.cli.exit_status import INVALID_CHANGE, TRANSIENT_FAILURE, exit_on_error, exit_status
from purgatory.cli.options import PATH

if TYPE_CHECKING:
    from purgatory.cdc.apply.applier import Applier
    from purgatory.cdc.apply.exactly_once import Applied
    from purgatory.cdc.apply.options import ApplyOptions, TopicSettings
    from purgatory.cdc.formats import LogFormat

ApplyEngine = Literal["spark", "local"]


@click.command()
@click.argument(
    "files",
    nargs=-1,
    type=PATH,
    metavar="[FILE]...",
    help="Files of changes (lines of Maxwell's JSON), instead of a topic.",
)
@options.option(
    "--to",
    default="",
    show_default=False,
    metavar="URL",
    help="sqlite:///PATH or postgresql://USER@HOST/DATABASE.",
)
@options.bootstrap_option()
@options.option("--topic", multiple=True, help="A topic of changes; may be given again.")
@options.option(
    "--format",
    "log_format",
    type=click.Choice(["auto", "maxwell", "debezium"]),
    default="auto",
    help="The format of the changes: Maxwell's JSON, which purgatory capture writes, or "
    "Debezium's; auto looks at each.",
)
@options.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    help="Apply topics with Spark, a task for each partition, or in this process, without "
    "Java. By default Spark, or this process where Java is missing.",
)
@options.option(
    "--atomicity",
    type=click.Choice(["row", "transaction"]),
    default="row",
    help="Commit changes row by row, as they are read, or as whole transactions of the source.",
)
@options.once
@options.flag("--audit-log", "Record reads, effects and commits in the target, for --trace.")
@options.trace_folder
@options.strict
@options.flag("--no-create", "Create no tables and no columns.")
@options.option(
    "--skip-ddl",
    multiple=True,
    metavar="TOPIC:PARTITION:OFFSET",
    help="Skip a schema change that you applied to the target by hand; may be given again.",
)
@options.option("--tables", type=PATH, metavar="FILE.toml", help="Names, keys and types of tables.")
@options.client
@options.number_option(
    "--batch", least=1, default=100_000, help="The maximum number of records in a micro-batch."
)
@options.master
def apply(
    files: Sequence[Path],
    to: str,
    bootstrap: str | None,
    topic: Sequence[str],
    log_format: LogFormat,
    engine: ApplyEngine | None,
    atomicity: str,
    once: bool,
    audit_log: bool,
    trace: Path | None,
    strict: bool,
    no_create: bool,
    skip_ddl: Sequence[str],
    tables: Path | None,
    client: Sequence[str],
    batch: int,
    master: str,
) -> None:
    """Apply a database's change log to another database, exactly once."""
    _check(files, to, bootstrap, topic)
    if trace is not None and not audit_log:
        raise click.BadParameter("needs --audit-log, from the first run on", param_hint="--trace")
    if trace is not None and not (files or once):
        raise click.BadParameter("is written at the end: give --once", param_hint="--trace")
    client_settings = {"bootstrap.servers": bootstrap or "", **options.client_settings(client)}
    if bootstrap:
        options.validate_consumer_settings(client_settings)
    with _exit_on_error():
        from purgatory.cdc.apply.options import ApplyOptions, TopicSettings, load_tables

        apply_options = ApplyOptions(
            create=not no_create,
            audit_log=audit_log,
            stop_on_quarantine=strict,
            skip_ddl=frozenset(map(_parse_offset, skip_ddl)),
            tables=load_tables(tables) if tables is not None else {},
            log_format=log_format,
        )
        by_transaction = atomicity == "transaction"
        if files:
            applied = _apply_files(files, to, apply_options, by_transaction)
        else:
            settings = TopicSettings(
                tuple(topic),
                to,
                {f"kafka.{name}": value for name, value in client_settings.items()},
                apply_options,
                by_transaction=by_transaction,
                once=once,
                max_records=batch,
            )
            applied = _apply_topics(settings, engine, master)
        if trace is not None:
            with _open_applier(to, apply_options) as applier:
                applier.write_trace(trace, trace.name)
    print(_summary(applied))


def _check(files: Sequence[Path], to: str, bootstrap: str | None, topic: Sequence[str]) -> None:
    if not to:
        raise click.BadParameter(
            "is missing: give sqlite:///PATH or postgresql://USER@HOST/DATABASE", param_hint="--to"
        )
    if bool(files) == bool(bootstrap or topic):
        raise click.BadParameter("give either files, or --bootstrap and --topic")
    if not files and not (bootstrap and topic):
        raise click.BadParameter("--bootstrap and --topic belong together")


@contextmanager
def _exit_on_error() -> Iterator[None]:
    from purgatory.cdc.errors import ChangesError, QuarantineStopError

    with exit_on_error("apply", "committed changes stay, and the next run continues behind them"):
        try:
            yield
        except QuarantineStopError as error:
            print(f"purgatory apply: stopped at {error}", file=sys.stderr)
            raise click.exceptions.Exit(INVALID_CHANGE) from None
        except ChangesError as error:
            print(f"purgatory apply: {error}", file=sys.stderr)
            raise click.exceptions.Exit(exit_status(error)) from None


def _parse_offset(text: str) -> str:
    from purgatory.cdc.errors import ChangesError

    topic, partition, offset = ["", "", *text.rsplit(":", 2)][-3:]
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise ChangesError(f"--skip-ddl {text}: write TOPIC:PARTITION:OFFSET, as in the message")
    return text


def _open_applier(to: str, apply_options: ApplyOptions) -> Applier:
    from purgatory.cdc.apply.applier import Applier
    from purgatory.cdc.targets import open_target

    return Applier(partial(open_target, to), apply_options)


def _apply_files(
    files: Sequence[Path], to: str, apply_options: ApplyOptions, by_transaction: bool
) -> Applied:
    from purgatory.cdc.apply.exactly_once import Applied
    from purgatory.cdc.apply.files import apply_file

    total = Applied()
    truncated: list[str] = []
    with _open_applier(to, apply_options) as applier:
        for path in files:
            total += apply_file(
                applier, path, by_transaction=by_transaction, on_truncated=truncated.append
            )
    if truncated:
        print(_summary(total))
        for message in truncated:
            print(
                f"purgatory apply: {message}; run it again when the rest is there", file=sys.stderr
            )
        raise click.exceptions.Exit(TRANSIENT_FAILURE)
    return total


def _apply_topics(settings: TopicSettings, engine: ApplyEngine | None, master: str) -> Applied:
    # Spark takes half a minute to start, and its workers need these modules: report a missing one
    # before.
    import_module("confluent_kafka")
    if settings.target_url.startswith("postgres"):
        import_module("psycopg")
    if (engine or _available_engine(master)) == "local":
        from purgatory.cdc.apply.local_engine import apply_topics

        return apply_topics(settings, progress=_show_progress)
    from purgatory.cdc.apply.spark_engine import apply_stream
    from purgatory.pipeline.engines.spark.session import spark_session
    from purgatory.stream.stream import JAVA_OPTIONS, STREAM_SETTINGS, warm_up

    spark_settings = dict(STREAM_SETTINGS)
    if master.startswith("local"):  # workers of a cluster may get this package sent
        spark_settings["spark.python.daemon.module"] = "purgatory.cdc.apply.daemon"
    with (
        spark_session(master, java_options=JAVA_OPTIONS, settings=spark_settings) as session,
        warm_up(session),
    ):
        return apply_stream(session, settings, progress=_show_progress)


def _available_engine(master: str) -> ApplyEngine:
    if not master.startswith("local"):
        return "spark"
    try:
        import_module("pyspark")
    except ImportError:
        print(
            "purgatory apply: PySpark is missing, so this process applies the changes "
            "(--engine local)",
            file=sys.stderr,
        )
        return "local"
    from purgatory.pipeline.engines.spark.java import find_java_home
    from purgatory.pipeline.errors import SessionEndedError, SessionError

    try:
        find_java_home(os.environ)
    except SessionEndedError:
        return "spark"  # Java is installed: its start reports the error
    except SessionError:
        print(
            "purgatory apply: Spark finds no Java 17 or later, so this process applies the changes "
            "(--engine local)",
            file=sys.stderr,
        )
        return "local"
    return "spark"


def _show_progress(applied: Applied) -> None:
    print(_summary(applied), file=sys.stderr, flush=True)


def _summary(applied: Applied) -> str:
    text = f"{applied.applied:,} applied, {applied.quarantined:,} quarantined"
    if applied.skipped:
        text += f", {applied.skipped:,} skipped (applied before)"
    if applied.pending > 0:
        text += f", {applied.pending:,} pending"
    return text
