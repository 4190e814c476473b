"""The command ``purgatory cluster``: a cluster that Kafka clients talk to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from purgatory.cli import options
from purgatory.cli.options import PATH
from purgatory.settings.addresses import CLUSTER_PORT
from purgatory.settings.typed_duration import Duration
from timer.log import configure_at_first_event

if TYPE_CHECKING:
    from pathlib import Path

    from purgatory.cluster import ClusterTrace
    from purgatory.cluster.control.control import FaultControl
    from purgatory.cluster.fault_plan import PlannedFault
    from purgatory.cluster.server import Serving
    from purgatory.stream.publisher import RowPublisher


@click.command()
@options.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="A TOML file with these settings and more; options override it.",
)
@options.option(
    "--kafka",
    metavar="VERSION|PATH",
    help="Run a real Kafka behind a proxy that has the faults: a version, such as 4.3.1, which "
    "Maven fetches once, or the folder of an unpacked one.",
)
@options.number_option("--brokers", least=1, default=3, help="Number of brokers.")
@options.option(
    "--topic",
    multiple=True,
    metavar="NAME[:PARTITIONS[:REPLICAS]][:SETTING=VALUE]...",
    help="A topic to create at the start, as in orders:6:cleanup.policy=compact; may be "
    "given again.",
)
@options.number_option(
    "--default-partitions", least=1, default=1, help="Default number of partitions of a topic."
)
@options.number_option(
    "--default-replication",
    least=1,
    help="Default replication factor: by default 3, or the number of brokers if less.",
)
@options.option(
    "--auto-create/--no-auto-create",
    default=True,
    help="Create a topic when a client asks for it.",
)
@options.number_option(
    "--first-broker-id", least=0, default=1, help="Id of the first broker; the others follow."
)
@options.option("--host", default="127.0.0.1", help="Address on which the brokers listen.")
@options.advertised_host
@options.number_option(
    "--port",
    least=0,
    most=65_535,
    default=CLUSTER_PORT,
    help="Port of the first broker; the others follow. 0: any.",
)
@options.option(
    "--listener",
    multiple=True,
    metavar="PROTOCOL:PORT",
    help="A listener in place of --port: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; "
    "may be given again.",
)
@options.control_options
@options.metrics_port
@options.number_option(
    "--min-insync", least=1, default=1, help="Replicas that must be in sync to commit records."
)
@options.duration_option(
    "--follower-lag",
    "Time that a follower takes to append fetched records.",
    default=Duration("0s"),
    least="0s",
    step="1us",
)
@options.duration_option(
    "--replica-max-lag",
    "A follower that lags for longer leaves the ISR.",
    default=Duration("30s"),
)
@options.duration_option(
    "--group-delay",
    "Initial rebalance delay: how long a group waits for more members.",
    default=Duration("3s"),
    least="0s",
)
@options.duration_option(
    "--group-min-session",
    "Minimum session timeout of a group member.",
    default=Duration("6s"),
)
@options.duration_option(
    "--group-consumer-session",
    "Session timeout of members of consumer groups (KIP-848).",
    default=Duration("45s"),
)
@options.duration_option(
    "--group-consumer-heartbeat",
    "Heartbeat interval of members of consumer groups.",
    default=Duration("5s"),
)
@options.duration_option(
    "--group-share-session",
    "Session timeout of members of share groups.",
    default=Duration("45s"),
)
@options.duration_option(
    "--group-share-heartbeat",
    "Heartbeat interval of members of share groups.",
    default=Duration("5s"),
)
@options.duration_option(
    "--group-share-lock",
    "Duration of the lock on an acquired record.",
    default=Duration("30s"),
)
@options.number_option(
    "--group-share-deliveries",
    least=1,
    default=5,
    help="Maximum number of deliveries of a record to a share group.",
)
@options.number_option(
    "--group-share-max-locks",
    least=1,
    default=2_000,
    help="Maximum number of records of a partition that a share group may have acquired.",
)
@options.number_option(
    "--group-share-max-size",
    least=1,
    default=200,
    help="Maximum number of members of a share group.",
)
@options.option(
    "--data-dir",
    type=PATH,
    help="Folder for logs and metadata; by default they are in memory.",
)
@options.option(
    "--fsync",
    default="never",
    help="never: leave it to the operating system; always: before any response.",
)
@options.number_option(
    "--memory-mb",
    least=1,
    default=1024,
    help="Memory limit of the logs; beyond it produces are refused.",
)
@options.duration_option(
    "--retention",
    "Retention time of records; by default a week.",
    least="0s",
)
@options.option(
    "--realistic-delays/--no-realistic-delays",
    default=False,
    help="Be some milliseconds behind, as a real Kafka: clients have to retry.",
)
@options.option(
    "--kafka-version",
    default="4.3",
    help="Be an older Kafka: 0.11, 1.1, 2.0, 2.8, 3.0, 3.9 or 4.0.",
)
@options.trace_folder
@options.publish
@options.fault_plan
@options.view
@options.tls_options
@options.option(
    "--user",
    multiple=True,
    metavar="NAME:PASSWORD",
    help="Require clients to authenticate (SASL).",
)
@click.pass_context
def cluster(
    context: click.Context,
    config: Path | None,
    kafka: str | None,
    brokers: int,
    topic: Sequence[str],
    default_partitions: int,
    default_replication: int | None,
    auto_create: bool,
    first_broker_id: int,
    host: str,
    advertised_host: str | None,
    port: int,
    listener: Sequence[str],
    control_port: int,
    control_host: str,
    control_token: str | None,
    metrics_port: int | None,
    min_insync: int,
    follower_lag: Duration,
    replica_max_lag: Duration,
    group_delay: Duration,
    group_min_session: Duration,
    group_consumer_session: Duration,
    group_consumer_heartbeat: Duration,
    group_share_session: Duration,
    group_share_heartbeat: Duration,
    group_share_lock: Duration,
    group_share_deliveries: int,
    group_share_max_locks: int,
    group_share_max_size: int,
    data_dir: Path | None,
    fsync: str,
    memory_mb: int,
    retention: Duration | None,
    realistic_delays: bool,
    kafka_version: str,
    trace: Path | None,
    publish: str | None,
    faults: Path | None,
    view: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    user: Sequence[str],
) -> None:
    """Run a small Kafka-compatible cluster on this machine."""
    from purgatory.cluster import ClusterError
    from purgatory.cluster.config import parse_config, read_document
    from purgatory.cluster.server import Serving

    try:
        tls = tls_files(tls_cert, tls_key, tls_client_ca)
        settings: dict[str, tuple[str, Any]] = {
            # by the option's name: its place in the document, and its value
            "brokers": ("brokers", brokers),
            "topic": ("topics", [_topic(text) for text in topic]),
            "default_partitions": ("default_partitions", default_partitions),
            "default_replication": ("default_replication", default_replication),
            "auto_create": ("auto_create_topics", auto_create),
            "first_broker_id": ("first_broker_id", first_broker_id),
            "host": ("host", host),
            "advertised_host": ("advertised_host", advertised_host),
            "port": ("first_port", port),
            "listener": ("listeners", [_listener(text, tls) for text in listener]),
            "control_port": ("control.port", control_port),
            "control_host": ("control.host", control_host),
            "control_token": ("control.token", checked_token(control_token)),
            "metrics_port": ("metrics_port", metrics_port),
            "min_insync": ("min_insync_replicas", min_insync),
            "follower_lag": ("follower_lag_ms", follower_lag.ms),
            "replica_max_lag": ("replica_max_lag_ms", replica_max_lag.whole_ms),
            "group_delay": ("groups.initial_rebalance_delay_ms", group_delay.whole_ms),
            "group_min_session": ("groups.min_session_timeout_ms", group_min_session.whole_ms),
            "group_consumer_session": (
                "groups.consumer_session_timeout_ms",
                group_consumer_session.whole_ms,
            ),
            "group_consumer_heartbeat": (
                "groups.consumer_heartbeat_interval_ms",
                group_consumer_heartbeat.whole_ms,
            ),
            "group_share_session": (
                "groups.share_session_timeout_ms",
                group_share_session.whole_ms,
            ),
            "group_share_heartbeat": (
                "groups.share_heartbeat_interval_ms",
                group_share_heartbeat.whole_ms,
            ),
            "group_share_lock": (
                "groups.share_record_lock_duration_ms",
                group_share_lock.whole_ms,
            ),
            "group_share_deliveries": (
                "groups.share_delivery_count_limit",
                group_share_deliveries,
            ),
            "group_share_max_locks": (
                "groups.share_partition_max_record_locks",
                group_share_max_locks,
            ),
            "group_share_max_size": ("groups.share_max_size", group_share_max_size),
            "data_dir": ("data_dir", data_dir),
            "fsync": ("fsync", _fsync(fsync)),
            "memory_mb": ("memory_bytes", memory_mb * 1024 * 1024),
            "retention": ("retention_ms", None if retention is None else retention.whole_ms),
            "realistic_delays": ("realistic_delays", realistic_delays),
            "kafka_version": ("kafka_version", kafka_version),
            "trace": ("trace", trace),
            "publish": ("publish", publish),
            "faults": ("faults", faults),
            "tls_cert": ("tls", tls),
            "user": ("users", dict(_user(text) for text in user) if user else None),
        }
        file = {} if config is None else read_document(config)
        document = _document(context, settings, file)
        cluster_config = parse_config(document, "the options" if config is None else str(config))
        control = cluster_config.control
        serving = Serving(
            cluster_config,
            control.port,
            control.host,
            checked_token(control.token),
            cluster_config.metrics_port,
            plan=fault_plan(cluster_config.faults),
            view=view,
        )
        if kafka is not None:
            _run_real(kafka, serving, cluster_config.trace, cluster_config.publish)
            return
        _run(serving, cluster_config.trace, cluster_config.publish)
    except ClusterError as error:
        print(f"purgatory cluster: {error}", file=sys.stderr)
        raise click.exceptions.Exit(2) from None


def _document(
    context: click.Context, settings: Mapping[str, tuple[str, Any]], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge options, file and defaults: an option overrides the file, the file a default."""

    def is_default(option: str) -> bool:
        source = context.get_parameter_source(option)
        return source is None or source.name == "DEFAULT"

    document: dict[str, Any] = {}
    for option, (key_path, value) in settings.items():
        if is_default(option) and value is not None:
            _put(document, key_path, value)
    for key, value in file.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            document[key] = {**document[key], **value}
        else:
            document[key] = value
    for option, (key_path, value) in settings.items():
        if not is_default(option):
            _put(document, key_path, value)
    return document


def _put(document: dict[str, Any], key_path: str, value: Any) -> None:
    table, _, key = key_path.rpartition(".")
    (document.setdefault(table, {}) if table else document)[key] = value


def _topic(text: str) -> dict[str, Any]:
    from purgatory.cluster import ClusterError

    name, *rest = text.split(":")
    first = next((number for number, part in enumerate(rest) if "=" in part), len(rest))
    counts, settings = rest[:first], ":".join(rest[first:])
    if len(counts) > 2 or not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise ClusterError(
            f"--topic {text}: write NAME[:PARTITIONS[:REPLICAS]][:SETTING=VALUE]..., as in "
            "orders:6:cleanup.policy=compact"
        )
    keys = ("partitions", "replication")
    # A value may have colons, but nothing in it looks like the next setting.
    arguments = re.split(r":(?=[a-z.]+=)", settings) if settings else []
    return {
        "name": name,
        **dict(zip(keys, map(int, counts), strict=False)),
        "settings": dict(setting.split("=", 1) for setting in arguments),
    }


def _listener(text: str, tls: Mapping[str, Any] | None) -> dict[str, Any]:
    from purgatory.cluster import ClusterError
    from purgatory.cluster.listeners import MECHANISMS, SECURITY_PROTOCOLS

    protocol, _, port = text.partition(":")
    if protocol not in SECURITY_PROTOCOLS or not port.isdecimal():
        known = ", ".join(SECURITY_PROTOCOLS)
        raise ClusterError(f"--listener {text}: write PROTOCOL:PORT, with one of {known}")
    listener: dict[str, Any] = {"name": protocol, "first_port": int(port)}
    if protocol.endswith("SSL"):
        if tls is None:
            raise ClusterError(f"--listener {text}: needs --tls-cert")
        listener["tls"] = tls
    if protocol.startswith("SASL"):
        listener["sasl"] = list(MECHANISMS)
    return listener


def _fsync(text: str) -> str:
    from purgatory.cluster import ClusterError, Fsync

    known = [choice.value for choice in Fsync]
    if text not in known:
        raise ClusterError(f"--fsync {text}: must be one of {', '.join(known)}")
    return text


def _user(text: str) -> tuple[str, str]:
    from purgatory.cluster import ClusterError

    name, colon, password = text.partition(":")
    if not name or not colon:
        raise ClusterError(f"--user {text}: write NAME:PASSWORD")
    return name, password


def checked_token(text: str | None) -> str | None:
    """Check the token of a control.

    Raises:
        ClusterError: the token can't be sent in a header.
    """
    from purgatory.cluster import ClusterError

    if text is not None and not (text.isascii() and text.isprintable() and text.strip() == text):
        raise ClusterError("--control-token: must be printable ASCII, without spaces at its ends")
    return text or None


def tls_files(
    certificate: Path | None, key: Path | None, client_ca: Path | None
) -> dict[str, Any] | None:
    """Return the arguments of `Tls`, if there is a certificate.

    Raises:
        ClusterError: other files of TLS are given without a certificate.
    """
    from purgatory.cluster import ClusterError

    if certificate is None:
        for option, value in (("--tls-key", key), ("--tls-client-ca", client_ca)):
            if value is not None:
                raise ClusterError(f"{option} without --tls-cert")
        return None
    return {"certificate": certificate, "key": key, "client_ca": client_ca}


def _run(serving: Serving, trace: Path | None, prefix: str | None) -> None:
    import dataclasses

    import uvloop

    log_to_standard_error()

    from purgatory.cluster import ClusterTrace
    from purgatory.cluster.server import serve

    if trace is None and prefix is None:
        uvloop.run(serve(serving))
        return
    from purgatory.stream.publisher import publishing
    from purgatory.trace.trace_tables import AllOf, Tables, WithoutTopics

    publisher = None if prefix is None else _publisher(serving, prefix)
    writer = None if trace is None else new_trace_writer(trace, "cluster")
    recorders: list[Tables] = [recorder for recorder in (writer, publisher) if recorder is not None]
    tables = recorders[0] if len(recorders) == 1 else AllOf(recorders)
    if publisher is not None:
        tables = WithoutTopics(tables, publisher.topics.values())
    written = ClusterTrace(tables, None if writer is None else writer.change)
    companion = None if publisher is None else partial(publishing, written, publisher)
    with finishing(written, writer, "cluster"):
        uvloop.run(serve(dataclasses.replace(serving, trace=written, companion=companion)))


def _run_real(text: str, serving: Serving, trace: Path | None, prefix: str | None) -> None:
    """Run a real Kafka, in place of a cluster of ours."""
    import uvloop

    from purgatory.cluster import ClusterError, ClusterTrace
    from purgatory.cluster.server import serve_until_stopped
    from purgatory.real_kafka import RealKafka, find_kafka

    log_to_standard_error()
    for option, value in (("--metrics-port", serving.metrics_port), ("--publish", prefix)):
        if value is not None:
            raise ClusterError(f"{option}: not with --kafka: a real Kafka has no such rows")
    files = find_kafka(text)
    writer = None if trace is None else new_trace_writer(trace, "cluster")
    written = None if writer is None else ClusterTrace(writer, writer.change)
    served = RealKafka(files, serving.config, written)

    def new_control() -> FaultControl:
        from purgatory.proxy import control

        host, port = serving.control_host, serving.control_port
        return control.new_control(served, host, port, serving.control_token)

    with finishing(written, writer, "cluster"):
        uvloop.run(serve_until_stopped(served, new_control, serving.plan, serving.view))


def new_trace_writer(folder: Path, name: str) -> Any:
    """Begin a trace in the folder of --trace.

    Raises:
        ClusterError: the folder can't be created, or is not empty.
    """
    from purgatory.cluster import ClusterError, trace_writer

    try:
        return trace_writer(folder, name)
    except ValueError as error:
        raise ClusterError(f"--trace {error}") from error


@contextmanager
def finishing(trace: ClusterTrace | None, writer: Any, name: str) -> Iterator[None]:
    """Finish a trace and its writer, if any; abandon both if an error ends the service."""
    try:
        yield
    except BaseException:
        if trace is not None and writer is not None:
            writer.abandon(trace.duration_ms, f"the {name} failed")
        raise
    if trace is not None:
        trace.close()
        if writer is not None:
            writer.finish(trace.duration_ms, {})


def fault_plan(path: Path | None) -> Sequence[PlannedFault]:
    """Read the plan of an option ``--faults``; raises `ClusterError` if it is invalid."""
    if path is None:
        return ()
    from purgatory.cluster.fault_plan import load_fault_plan

    return load_fault_plan(path)


def log_to_standard_error() -> None:
    """Keep the log off standard output, which has the cluster's address for programs, until the
    command ends."""
    click.get_current_context().call_on_close(partial(configure_at_first_event, None))
    # Each purgatory logs "purgatory_closed" when a broker ends.
    configure_at_first_event(_configure_log, dropped=frozenset({"purgatory_closed"}))


def _configure_log() -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def _publisher(serving: Serving, prefix: str) -> RowPublisher:
    """The publisher, which is an ordinary client of the cluster."""
    import time

    from purgatory.cluster import ClusterError
    from purgatory.stream.publisher import RowPublisher

    client: dict[str, Any] = {}
    listener = serving.config.all_listeners[0]
    if listener.tls is not None:
        # The brokers run in this process, and their certificate may have any name.
        client["enable.ssl.certificate.verification"] = False
    users = serving.config.users
    if listener.sasl and users:
        name, password = next(iter(users.items()))
        client |= {"sasl.username": name, "sasl.password": password}
        client["sasl.mechanism"] = listener.sasl[0]
    client["security.protocol"] = listener.security_protocol
    run_id = f"cluster-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    try:
        return RowPublisher(prefix, run_id=run_id, numbered_by="partition", client=client)
    except ValueError as error:
        raise ClusterError(f"--publish {error}") from None
