"""The command ``purgatory cluster``: a cluster that Kafka clients talk to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.duration import Duration

if TYPE_CHECKING:
    import ssl

    from purgatory.cluster import Fsync, TopicSpec
    from purgatory.cluster.serving import Serving
    from purgatory.live.row_publisher import RowPublisher

CONTROL_PORT = 9990
"""Where faults are asked for, and metrics scraped, unless it is said otherwise."""


def cluster(
    brokers: Annotated[int, typer.Option(min=1, help="How many brokers.")] = 3,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME[:PARTITIONS[:REPLICAS]]",
            help="A topic that is there from the start; may be given again.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where the brokers listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of broker 1; the others follow. 0: any.")
    ] = 9092,
    control_port: Annotated[
        int, typer.Option(min=0, max=65535, help="For faults, state and /metrics. 0: any.")
    ] = CONTROL_PORT,
    control_host: Annotated[
        str,
        typer.Option(help="Where the control listens; beyond this machine it asks for a token."),
    ] = "127.0.0.1",
    control_token: Annotated[
        str | None,
        typer.Option(
            envvar="PURGATORY_CONTROL_TOKEN",
            help="What the control asks for. Without it: beyond this machine, one that is printed.",
        ),
    ] = None,
    metrics_port: options.MetricsPort = None,
    min_insync: Annotated[
        int, typer.Option(min=1, help="How many replicas must be in sync for acks=all.")
    ] = 1,
    follower_lag: Annotated[
        Duration,
        options.duration_option(
            "How long a follower takes for what it fetched.", least="0s", step="1us"
        ),
    ] = Duration("0s"),
    replica_max_lag: Annotated[
        Duration, options.duration_option("A follower that lags for longer leaves the ISR.")
    ] = Duration("10s"),
    group_delay: Annotated[
        Duration,
        options.duration_option("How long a group's first member waits for others.", least="0s"),
    ] = Duration("3s"),
    group_min_session: Annotated[
        Duration,
        options.duration_option("The shortest session timeout that a member may ask for."),
    ] = Duration("6s"),
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep logs and metadata here; without it, in memory.")
    ] = None,
    fsync: Annotated[
        str, typer.Option(help="never: when the system likes; always: before any answer.")
    ] = "never",
    memory_mb: Annotated[
        int, typer.Option(min=1, help="What logs in memory may take; then the oldest records go.")
    ] = 1024,
    retention: Annotated[
        Duration | None,
        options.duration_option("How long records are kept; without it, always.", least="0s"),
    ] = None,
    trace: options.TraceFolder = None,
    publish: options.Publish = None,
    faults: Annotated[
        Path | None, typer.Option(help="A plan of faults (TOML) that come by themselves.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it live, with faults that can be pressed.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="Speak TLS: the certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, if not in the same file.")] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PASSWORD", help="Ask clients who they are (SASL/PLAIN)."),
    ] = None,
) -> None:
    """Run a small Kafka-compatible cluster on this machine."""
    from purgatory.cluster import ClusterConfig, ClusterError, GroupConfig
    from purgatory.cluster.fault_plan import load_fault_plan
    from purgatory.cluster.serving import Serving

    try:
        config = ClusterConfig(
            brokers=brokers,
            host=host,
            first_port=port,
            topics=[_topic(text) for text in topic or ()],
            min_insync_replicas=min_insync,
            follower_lag_ms=follower_lag.ms,
            replica_max_lag_ms=replica_max_lag.whole_ms,
            groups=GroupConfig(
                initial_rebalance_delay_ms=group_delay.whole_ms,
                min_session_timeout_ms=group_min_session.whole_ms,
            ),
            data_dir=data_dir,
            fsync=_fsync(fsync),
            memory_bytes=memory_mb * 1024 * 1024,
            retention_ms=None if retention is None else retention.whole_ms,
            users=dict(_user(text) for text in user) if user else None,
        )
        serving = Serving(
            config,
            control_port,
            control_host,
            _token(control_token),
            metrics_port,
            _tls(tls_cert, tls_key),
            plan=() if faults is None else load_fault_plan(faults),
            watch=watch,
        )
        _run(serving, trace, publish)
    except ClusterError as error:
        print(f"purgatory cluster: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def _topic(text: str) -> TopicSpec:
    from purgatory.cluster import ClusterError, TopicSpec

    name, *counts = text.split(":")
    if len(counts) > 2 or not all(count.isdigit() and int(count) > 0 for count in counts):
        raise ClusterError(f"--topic {text}: write NAME[:PARTITIONS[:REPLICAS]], as in orders:6")
    numbers = [int(count) for count in counts]
    return TopicSpec(name, *numbers)


def _fsync(text: str) -> Fsync:
    from purgatory.cluster import ClusterError, Fsync

    try:
        return Fsync(text)
    except ValueError:
        known = ", ".join(choice.value for choice in Fsync)
        raise ClusterError(f"--fsync {text}: it is one of {known}") from None


def _user(text: str) -> tuple[str, str]:
    from purgatory.cluster import ClusterError

    name, colon, password = text.partition(":")
    if not name or not colon:
        raise ClusterError(f"--user {text}: write NAME:PASSWORD")
    return name, password


def _token(text: str | None) -> str | None:
    from purgatory.cluster import ClusterError

    if text is not None and not (text.isascii() and text.isprintable() and text.strip() == text):
        raise ClusterError("--control-token: it has printable ASCII characters, no space around")
    return text or None


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    import ssl

    from purgatory.cluster import ClusterError

    if certificate is None:
        if key is not None:
            raise ClusterError("--tls-key without --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(f"--tls-cert {certificate}: can't be used: {error}") from error
    return context


def _run(serving: Serving, trace: Path | None, prefix: str | None) -> None:
    import dataclasses
    from functools import partial

    import uvloop

    _log_to_standard_error()

    from purgatory.cluster import ClusterError, ClusterTrace, trace_writer
    from purgatory.cluster.serving import serve
    from purgatory.live.cluster_publishing import publishing
    from purgatory.trace.trace_tables import AllOf, Tables, WithoutTopics

    if trace is None and prefix is None:
        uvloop.run(serve(serving))
        return
    publisher = None if prefix is None else _publisher(serving, prefix)
    try:
        writer = None if trace is None else trace_writer(trace, "cluster")
    except ValueError as error:
        raise ClusterError(f"--trace {error}") from error
    takers: list[Tables] = [taker for taker in (writer, publisher) if taker is not None]
    tables = takers[0] if len(takers) == 1 else AllOf(takers)
    if publisher is not None:
        tables = WithoutTopics(tables, publisher.topics.values())
    written = ClusterTrace(tables)
    beside = None if publisher is None else partial(publishing, written, publisher)
    try:
        uvloop.run(serve(dataclasses.replace(serving, trace=written, beside=beside)))
    except BaseException:
        if writer is not None:
            writer.abandon(written.duration_ms, "the cluster failed")
        raise
    written.close()
    if writer is not None:
        writer.finish(written.duration_ms, {})


def _log_to_standard_error() -> None:
    """Leave standard output to what programs read there: where the cluster is."""
    import structlog

    def without_closings(_logger: object, _method: str, event: Any) -> Any:
        if event["event"] == "purgatory_closed":  # of every purgatory, when a broker ends
            raise structlog.DropEvent
        return event

    structlog.configure(
        processors=[
            without_closings,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def _publisher(serving: Serving, prefix: str) -> RowPublisher:
    """What publishes into the cluster that it is told of: it talks to it as any client does."""
    import time

    from purgatory.cluster import ClusterError
    from purgatory.live.row_publisher import RowPublisher

    client: dict[str, Any] = {}
    users = serving.config.users
    if serving.tls is not None:
        # It is this very process, and its certificate may be of any name.
        client["enable.ssl.certificate.verification"] = False
    if users:
        name, password = next(iter(users.items()))
        client |= {"sasl.mechanism": "PLAIN", "sasl.username": name, "sasl.password": password}
    if serving.tls is not None or users:
        layers = ("SASL_" if users else "") + ("SSL" if serving.tls else "PLAINTEXT")
        client["security.protocol"] = layers
    run_id = f"cluster-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    try:
        return RowPublisher(prefix, run_id=run_id, numbered_by="partition", client=client)
    except ValueError as error:
        raise ClusterError(f"--publish {error}") from None
