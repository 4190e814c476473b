"""The command ``purgatory stream``: live waits and the live audit, from published topics."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.one_line_errors import one_line_errors
from purgatory.cli.report_file import check_stream_report
from purgatory.cli.whole_number import whole_number
from purgatory.settings.typed_duration import Duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory.pipeline.stream.metrics import LiveMetrics
    from purgatory.pipeline.stream.sinks import LiveJobs


def stream(
    bootstrap: options.Bootstrap,
    out: options.Out,
    prefix: Annotated[
        str, typer.Option(help="The topics are PREFIX.operations, PREFIX.sends, PREFIX.reads.")
    ] = "purgatory",
    report: options.ReportFile = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Where it keeps how far it is; by default the folder checkpoint in --out.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[Duration, options.window_option()] = Duration("10s"),
    late: Annotated[
        Duration, options.duration_option("How much later than others a row may come.")
    ] = Duration("30s"),
    remember: Annotated[
        Duration,
        options.duration_option(
            "How long a record is remembered: as long as producers try to deliver it."
        ),
    ] = Duration("2min"),
    metrics_port: options.MetricsPort = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Write the results to TOPIC.waits and TOPIC.order of the cluster, too.",
            show_default=False,
        ),
    ] = None,
    most_rows: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, 10**9),
            metavar="N",
            help="How many rows a batch takes.",
        ),
    ] = 400_000,
    client: options.Client = None,
    master: options.Master = "local[*]",
    once: options.Once = False,
) -> None:
    """Follow what a cluster or a simulation publishes: windowed waits, and what is out of order."""
    settings = options.client_settings(client)
    check_stream_report(report)
    options.check_consumer({"bootstrap.servers": bootstrap, **settings})
    with one_line_errors("stream", "what was written is kept"):
        from purgatory.pipeline.stream.sinks import LiveJobs

        jobs = LiveJobs(
            out=out,
            checkpoint=checkpoint or out / "checkpoint",
            window_us=window.us,
            late_us=late.us,
            remember_us=remember.us,
            to_topic=to_topic,
            bootstrap_servers=bootstrap,
            client=settings,
            once=once,
        )
        _run(jobs, prefix, most_rows, master, metrics_port, report)


def _run(
    jobs: LiveJobs,
    prefix: str,
    most_rows: int,
    master: str,
    metrics_port: int | None,
    report: Path | None,
) -> None:
    from purgatory.pipeline.engines.spark.session import spark_session
    from purgatory.pipeline.stream.metrics import LiveMetrics
    from purgatory.pipeline.stream.rows import check_topics, topic_records
    from purgatory.pipeline.stream.sinks import check_folders, open_places
    from purgatory.pipeline.stream.stream import JAVA_OPTIONS, SETTINGS, run_jobs
    from purgatory.pipeline.stream.stream_page import StreamReport

    if master.startswith("sc://"):
        raise typer.BadParameter(
            "a Spark Connect server can't run it; give local[N] or spark://HOST:PORT",
            param_hint="--master",
        )
    check_folders(jobs)
    check_topics(jobs.bootstrap_servers, prefix, jobs.client)
    places = open_places(jobs)
    metrics = LiveMetrics()
    with ExitStack() as stack:
        if metrics_port is not None:
            _serve(stack, metrics, metrics_port)
        session: SparkSession = stack.enter_context(
            spark_session(master, java_options=JAVA_OPTIONS, settings=SETTINGS)
        )
        stop = _stopped_by_signals(stack)
        print(f"results: {jobs.out}", file=sys.stderr, flush=True)
        if report is not None:
            print(f"report: {report}", file=sys.stderr, flush=True)
        records = topic_records(session, jobs.bootstrap_servers, prefix, most_rows, jobs.client)
        page = None if report is None else StreamReport(report, prefix, jobs)
        run_jobs(session, records, jobs, places, metrics, stop, page)


def _serve(stack: ExitStack, metrics: LiveMetrics, port: int) -> None:
    from purgatory.pipeline.errors import OutputError
    from purgatory.pipeline.stream.metrics import ADDRESS, served

    try:
        at = stack.enter_context(served(metrics, port))
    except OSError as error:
        raise OutputError(f"--metrics-port {port} cannot be had: {error}") from error
    print(f"metrics: http://{ADDRESS}:{at}/metrics", file=sys.stderr, flush=True)


def _stopped_by_signals(stack: ExitStack) -> threading.Event:
    """An event that SIGINT and SIGTERM set: to be stopped is how this command ends."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        return stop

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        stack.callback(signal.signal, number, signal.signal(number, handle))
    return stop
