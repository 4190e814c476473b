"""The command ``purgatory stream``: live waits and the live audit, from published topics."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors
from purgatory.cli.options import whole_number
from purgatory.cli.output import check_stream_report
from purgatory.settings.typed_duration import Duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory.live.live_jobs import LiveJobs
    from purgatory.live.live_metrics import LiveMetrics


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
            help="Folder of the checkpoint; by default `checkpoint` in --out.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[Duration, options.window_option()] = Duration("10s"),
    watermark: Annotated[
        Duration, options.duration_option("How much later than others a row may come.")
    ] = Duration("30s"),
    state_ttl: Annotated[
        Duration,
        options.duration_option(
            "How long the state keeps a record: as long as producers try to deliver it."
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
            help="The most rows of a batch.",
        ),
    ] = 400_000,
    client: options.Client = None,
    master: options.Master = "local[*]",
    once: options.Once = False,
) -> None:
    """Follow the topics that a cluster or a simulation publishes: windowed waits, and the audit."""
    settings = options.client_settings(client)
    check_stream_report(report)
    options.check_consumer({"bootstrap.servers": bootstrap, **settings})
    with one_line_errors("stream", "what was written is kept"):
        from purgatory.live.live_jobs import LiveJobs

        jobs = LiveJobs(
            out=out,
            checkpoint=checkpoint or out / "checkpoint",
            window_us=window.us,
            late_us=watermark.us,
            remember_us=state_ttl.us,
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
    from purgatory.analysis.spark.session import spark_session
    from purgatory.live.live_metrics import LiveMetrics
    from purgatory.live.quick_start import JAVA_OPTIONS, SETTINGS
    from purgatory.live.result_places import check_folders, open_places
    from purgatory.live.stream import run_jobs
    from purgatory.live.stream_report import StreamReport
    from purgatory.live.topic_records import check_topics, topic_records

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
        _tell_of_archive()
        records = topic_records(session, jobs.bootstrap_servers, prefix, most_rows, jobs.client)
        page = None if report is None else StreamReport(report, prefix, jobs)
        run_jobs(session, records, jobs, places, metrics, stop, page)


def _tell_of_archive() -> None:
    from purgatory.analysis.spark.class_archive import archive_path
    from purgatory.analysis.spark.java import find_java_home

    if not archive_path(find_java_home(os.environ), os.environ).exists():
        hint = "starts on this machine are seconds shorter once this was run: purgatory prepare"
        print(hint, file=sys.stderr, flush=True)


def _serve(stack: ExitStack, metrics: LiveMetrics, port: int) -> None:
    from purgatory.analysis.errors import OutputError
    from purgatory.live.live_metrics import ADDRESS, served

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
