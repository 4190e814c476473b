"""The command ``purgatory apply``: a change log into a database, exactly once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.exit_status import BAD_CHANGE, FAULT_PASSES, status_of
from purgatory.cli.one_line_errors import one_line_errors

if TYPE_CHECKING:
    from purgatory.cdc.apply.applier import Applier
    from purgatory.cdc.apply.options import ApplyOptions
    from purgatory.cdc.apply.writer import Applied


def apply(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files of changes (lines of Maxwell's JSON), not a topic."
        ),
    ] = None,
    to: Annotated[
        str, typer.Option(metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/DATABASE.")
    ] = "",
    bootstrap: options.OptionalBootstrap = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic of changes; may be given again.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(help="row: as they come; transaction: whole transactions of the source only."),
    ] = "row",
    once: options.Once = False,
    effects: Annotated[
        bool, typer.Option("--effects", help="Write down what was done, for --trace.")
    ] = False,
    trace: options.TraceFolder = None,
    strict: options.Strict = False,
    no_create: Annotated[
        bool, typer.Option("--no-create", help="Make no tables and no columns.")
    ] = False,
    passed: Annotated[
        list[str] | None,
        typer.Option(
            "--pass",
            metavar="TOPIC:PARTITION:OFFSET",
            help="A change of a schema that you made in the target by hand; may be given again.",
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Names, keys and types of tables."),
    ] = None,
    client: options.Client = None,
    batch: Annotated[
        int, typer.Option(min=1, help="How many records one micro-batch has at most.")
    ] = 100_000,
    master: options.Master = "local[*]",
) -> None:
    """Apply a database's change log to another database, exactly once."""
    _check(files, to, bootstrap, topic, by, trace, effects)
    if effects and trace is not None and not (files or once):
        raise typer.BadParameter("is written at the end: give --once", param_hint="--trace")
    of_client = {"bootstrap.servers": bootstrap or "", **options.client_settings(client)}
    if bootstrap:
        options.check_consumer(of_client)
    with _one_line_errors():
        from purgatory.cdc.apply.options import ApplyOptions, load_tables

        how = ApplyOptions(
            create=not no_create,
            effects=effects,
            stop_on_bad=strict,
            passed=frozenset(map(_place, passed or ())),
            tables=load_tables(tables) if tables is not None else {},
        )
        if files:
            applied = _apply_files(files, to, how, by == "transaction")
        else:
            from purgatory.cdc.apply.spark_engine import StreamSettings

            settings = StreamSettings(
                tuple(topic or ()),
                to,
                {f"kafka.{name}": value for name, value in of_client.items()},
                how,
                by_transaction=by == "transaction",
                once=once,
                most_records=batch,
            )
            applied = _apply_topics(settings, master)
        if trace is not None:
            with _applier(to, how) as applier:
                applier.write_trace(trace, trace.name)
    print(_told(applied))


def _check(
    files: list[Path] | None,
    to: str,
    bootstrap: str | None,
    topic: list[str] | None,
    by: str,
    trace: Path | None,
    effects: bool,
) -> None:
    if not to:
        raise typer.BadParameter(
            "is missing: give sqlite:///PATH or postgresql://USER@HOST/DATABASE", param_hint="--to"
        )
    if by not in ("row", "transaction"):
        raise typer.BadParameter(f"{by!r} is neither row nor transaction", param_hint="--by")
    if bool(files) == bool(bootstrap or topic):
        raise typer.BadParameter("give either files, or --bootstrap and --topic")
    if not files and not (bootstrap and topic):
        raise typer.BadParameter("--bootstrap and --topic belong together")
    if trace is not None and not effects:
        raise typer.BadParameter("needs --effects, from the first run on", param_hint="--trace")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from purgatory.cdc.errors import ChangesError, StoppedOnBadError

    with one_line_errors("apply", "what is committed stays, and the next run goes on behind it"):
        try:
            yield
        except StoppedOnBadError as error:
            print(f"purgatory apply: stopped at {error}", file=sys.stderr)
            raise typer.Exit(BAD_CHANGE) from None
        except ChangesError as error:
            print(f"purgatory apply: {error}", file=sys.stderr)
            raise typer.Exit(status_of(error)) from None


def _place(text: str) -> str:
    from purgatory.cdc.errors import ChangesError

    topic, partition, offset = ["", "", *text.rsplit(":", 2)][-3:]
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise ChangesError(f"--pass {text}: write TOPIC:PARTITION:OFFSET, as the message has it")
    return text


def _applier(to: str, how: ApplyOptions) -> Applier:
    from purgatory.cdc.apply.applier import Applier
    from purgatory.cdc.targets import open_target

    return Applier(partial(open_target, to), how)


def _apply_files(files: list[Path], to: str, how: ApplyOptions, by_transaction: bool) -> Applied:
    from purgatory.cdc.apply.local_engine import apply_file
    from purgatory.cdc.apply.writer import Applied

    total = Applied()
    cut: list[str] = []
    with _applier(to, how) as applier:
        for path in files:
            total += apply_file(applier, path, by_transaction=by_transaction, on_cut=cut.append)
    if cut:
        print(_told(total))
        for end in cut:
            print(f"purgatory apply: {end}; run it again when the rest is there", file=sys.stderr)
        raise typer.Exit(FAULT_PASSES)
    return total


def _apply_topics(settings: object, master: str) -> Applied:
    from purgatory.analysis.spark.session import spark_session
    from purgatory.cdc.apply.local_engine import CatchUp
    from purgatory.cdc.apply.spark_engine import StreamSettings, apply_stream
    from purgatory.live.quick_start import JAVA_OPTIONS, STREAM_SETTINGS, warmed_up

    assert isinstance(settings, StreamSettings), "made above"
    # Spark takes half a minute to start, and its workers need these: what is missing is said now.
    import_module("confluent_kafka")
    if settings.target_url.startswith("postgres"):
        import_module("psycopg")
    of_spark = dict(STREAM_SETTINGS)
    if master.startswith("local"):  # elsewhere the workers may have this package sent to them
        of_spark["spark.python.daemon.module"] = "purgatory.cdc.apply.daemon"
    catch_up = CatchUp(settings, progress=_tell)
    with (
        # On a cluster, the work is for its machines.
        catch_up.beside() if master.startswith("local") else nullcontext(),
        spark_session(master, java_options=JAVA_OPTIONS, settings=of_spark) as session,
        warmed_up(session),
    ):
        catch_up.end()
        return catch_up.total + apply_stream(session, settings, progress=_tell)


def _tell(applied: Applied) -> None:
    print(_told(applied), file=sys.stderr, flush=True)


def _told(applied: Applied) -> str:
    text = f"{applied.applied:,} applied, {applied.quarantined:,} set aside"
    if applied.skipped:
        text += f", {applied.skipped:,} skipped that were there"
    if applied.pending > 0:
        text += f", {applied.pending:,} waiting for what comes before them"
    return text
