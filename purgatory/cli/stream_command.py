"""The command `purgatory stream`: windowed waits and the audit, from published topics."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import exit_on_error
from purgatory.cli.options import whole_number
from purgatory.settings.typed_duration import Duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory.pipeline.stream.metrics import StreamMetrics
    from purgatory.pipeline.stream.sinks import StreamConfig


def stream(
    bootstrap: options.Bootstrap,
    out: options.Out,
    prefix: Annotated[
        str, typer.Option(help="The topics are PREFIX.operations, PREFIX.sends, PREFIX.reads.")
    ] = "purgatory",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the checkpoint; by default checkpoint in --out.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[Duration, options.window_option()] = Duration("10s"),
    watermark: Annotated[
        Duration, options.duration_option("How late a row may be, behind the newest one.")
    ] = Duration("30s"),
    state_ttl: Annotated[
        Duration,
        options.duration_option(
            "How long a record stays in the state after that: as long as producers retry."
        ),
    ] = Duration("2min"),
    metrics_port: options.MetricsPort = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Also write the results to the topics TOPIC.waits and TOPIC.order.",
            show_default=False,
        ),
    ] = None,
    most_rows: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, 10**9),
            metavar="N",
            help="Maximum number of rows in a batch.",
        ),
    ] = 400_000,
    client: options.Client = None,
    master: options.Master = "local[*]",
    once: options.Once = False,
) -> None:
    """Follow a cluster or a simulation that publishes: windowed waits, and records out of order."""
    settings = options.client_settings(client)
    options.validate_consumer_settings({"bootstrap.servers": bootstrap, **settings})
    with exit_on_error("stream", "written results are kept"):
        from purgatory.pipeline.stream.sinks import StreamConfig

        config = StreamConfig(
            out=out,
            checkpoint=checkpoint or out / "checkpoint",
            window_us=window.us,
            watermark_delay_us=watermark.us,
            state_ttl_us=state_ttl.us,
            to_topic=to_topic,
            bootstrap_servers=bootstrap,
            client=settings,
            once=once,
        )
        _run(config, prefix, most_rows, master, metrics_port)


def _run(
    config: StreamConfig, prefix: str, most_rows: int, master: str, metrics_port: int | None
) -> None:
    from purgatory.pipeline.engines.spark.session import spark_session
    from purgatory.pipeline.stream.metrics import StreamMetrics
    from purgatory.pipeline.stream.rows import check_topics, topic_records
    from purgatory.pipeline.stream.sinks import check_folders, open_sinks
    from purgatory.pipeline.stream.stream import JAVA_OPTIONS, SETTINGS, run_queries

    if master.startswith("sc://"):
        raise typer.BadParameter(
            "a Spark Connect server can't run it; give local[N] or spark://HOST:PORT",
            param_hint="--master",
        )
    check_folders(config)
    check_topics(config.bootstrap_servers, prefix, config.client)
    sinks = open_sinks(config)
    metrics = StreamMetrics()
    with ExitStack() as stack:
        if metrics_port is not None:
            _serve(stack, metrics, metrics_port)
        session: SparkSession = stack.enter_context(
            spark_session(master, java_options=JAVA_OPTIONS, settings=SETTINGS)
        )
        stop = _stop_on_signals(stack)
        print(f"results: {config.out}", file=sys.stderr, flush=True)
        records = topic_records(session, config.bootstrap_servers, prefix, most_rows, config.client)
        run_queries(session, records, config, sinks, metrics, stop)


def _serve(stack: ExitStack, metrics: StreamMetrics, port: int) -> None:
    from purgatory.pipeline.errors import OutputError
    from purgatory.pipeline.stream.metrics import ADDRESS, serve_metrics

    try:
        at = stack.enter_context(serve_metrics(metrics, port))
    except OSError as error:
        raise OutputError(f"--metrics-port {port}: can't be used: {error}") from error
    print(f"metrics: http://{ADDRESS}:{at}/metrics", file=sys.stderr, flush=True)


def _stop_on_signals(stack: ExitStack) -> threading.Event:
    """Return an event that SIGINT and SIGTERM set: they are the usual end of this command."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        return stop

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        stack.callback(signal.signal, number, signal.signal(number, handle))
    return stop
