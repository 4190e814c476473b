"""The command `purgatory stream`: windowed waits and occupancy from a published topic."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from purgatory.cli import options
from purgatory.cli.exit_status import exit_on_error
from purgatory.cli.job_commands import command_of
from purgatory.cli.options import PATH
from purgatory.pipeline.jobs.registry import STREAM
from purgatory.pipeline.signals import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from purgatory.stream.metrics import StreamMetrics
    from purgatory.stream.sinks import StreamConfig


def _stream(
    bootstrap: str,
    out: Path,
    prefix: str,
    checkpoint: Path | None,
    metrics_port: int | None,
    to_topic: str | None,
    client: Sequence[str],
    master: str,
    once: bool,
    state_ttl: str | None,
    **values: int,
) -> None:
    if state_ttl is not None:
        raise click.BadParameter(
            "is gone with the audit of a stream: leave it out, and audit order, duplicates and "
            "gaps in a trace (purgatory audit TRACE)",
            param_hint="--state-ttl",
        )
    settings = options.client_settings(client)
    options.validate_consumer_settings({"bootstrap.servers": bootstrap, **settings})
    with exit_on_error("stream", "written results are kept"):
        from purgatory.stream.sinks import StreamConfig

        config = StreamConfig(
            out=out,
            checkpoint_folder=checkpoint or out / "checkpoint",
            window_us=values["window_us"],
            watermark_delay_us=values["watermark_us"],
            longest_wait_us=values["longest_wait_us"],
            to_topic=to_topic,
            bootstrap_servers=bootstrap,
            client=settings,
            once=once,
        )
        _run(config, prefix, values["most_rows"], master, metrics_port)


stream = command_of(
    STREAM,
    _stream,
    [
        options.bootstrap_option(required=True),
        options.out_option(required=True, type=PATH),
        options.option("--prefix", default="purgatory", help="The topic is PREFIX.operations."),
        options.option(
            "--checkpoint",
            type=PATH,
            help="Folder of the checkpoint; by default checkpoint in --out.",
        ),
    ],
    [
        options.metrics_port,
        options.option(
            "--to-topic",
            metavar="TOPIC",
            help="Also write the results to the topic TOPIC.waits.",
        ),
        options.client,
        options.master,
        options.once,
        options.option("--state-ttl", hidden=True),
    ],
)


def _run(
    config: StreamConfig, prefix: str, most_rows: int, master: str, metrics_port: int | None
) -> None:
    from purgatory.pipeline.engines.spark.session import spark_session
    from purgatory.stream.checkpoint import Settings
    from purgatory.stream.metrics import StreamMetrics
    from purgatory.stream.sinks import check_folders, open_sinks
    from purgatory.stream.source import TopicSource
    from purgatory.stream.stream import JAVA_OPTIONS, run_query

    if master.startswith("sc://"):
        raise click.BadParameter(
            "a Spark Connect server can't run it; give local[N] or spark://HOST:PORT",
            param_hint="--master",
        )
    check_folders(config)
    source = TopicSource(config.bootstrap_servers, prefix, most_rows, config.client)
    topic_id = source.check()
    config.checkpoint.check(
        Settings(
            config.window_us,
            config.watermark_delay_us,
            config.longest_wait_us,
            source.topic,
            topic_id,
        )
    )
    sinks = open_sinks(config)
    metrics = StreamMetrics()
    with ExitStack() as stack:
        if metrics_port is not None:
            _serve(stack, metrics, metrics_port)
        session: SparkSession = stack.enter_context(
            spark_session(master, java_options=JAVA_OPTIONS)
        )
        stop = threading.Event()
        stack.enter_context(interruptible(stop.set))  # the usual end of this command
        print(f"results: {config.out}", file=sys.stderr, flush=True)
        run_query(session, source, config, sinks, metrics, stop)


def _serve(stack: ExitStack, metrics: StreamMetrics, port: int) -> None:
    from purgatory.pipeline.errors import OutputError
    from purgatory.stream.metrics import ADDRESS, serve_metrics

    try:
        at = stack.enter_context(serve_metrics(metrics, port))
    except OSError as error:
        raise OutputError(f"--metrics-port {port}: can't be used: {error}") from error
    print(f"metrics: http://{ADDRESS}:{at}/metrics", file=sys.stderr, flush=True)
