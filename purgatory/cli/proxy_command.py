"""The command ``purgatory proxy``: faults in front of a real Kafka."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from purgatory.cli import options
from purgatory.cli.cluster_command import (
    checked_token,
    fault_plan,
    finishing,
    log_to_standard_error,
    new_trace_writer,
    tls_files,
)
from purgatory.cli.options import PATH

if TYPE_CHECKING:
    from pathlib import Path

    from purgatory.cluster.control.control import FaultControl


@click.command()
@options.option(
    "--to",
    required=True,
    metavar="HOST:PORT[,HOST:PORT]...",
    help="The brokers: their bootstrap servers.",
)
@options.option(
    "--listen",
    default="127.0.0.1:19092",
    metavar="HOST:PORT",
    help="The first broker's listener; the others follow. Port 0: any.",
)
@options.advertised_host
@options.control_options
@options.trace_folder
@options.fault_plan
@options.view
@options.tls_options
@options.flag("--to-tls", "Use TLS with the brokers.")
@options.option(
    "--to-ca",
    type=PATH,
    help="Certificates that sign the brokers'; by default the system's.",
)
@options.option("--to-cert", type=PATH, help="The proxy's certificate, if the brokers require one.")
@options.option("--to-key", type=PATH, help="The private key of --to-cert, if not in it.")
def proxy(
    to: str,
    listen: str,
    advertised_host: str | None,
    control_port: int,
    control_host: str,
    control_token: str | None,
    trace: Path | None,
    faults: Path | None,
    view: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    to_tls: bool,
    to_ca: Path | None,
    to_cert: Path | None,
    to_key: Path | None,
) -> None:
    """Inject faults between Kafka clients and a real cluster."""
    import uvloop

    from purgatory.cluster import ClusterError, ClusterTrace, Tls
    from purgatory.cluster.listeners import Endpoint
    from purgatory.cluster.server import serve_until_stopped
    from purgatory.proxy import Proxy, ProxyConfig, UpstreamTls

    log_to_standard_error()
    try:
        for option, path in (("--to-ca", to_ca), ("--to-cert", to_cert), ("--to-key", to_key)):
            if path is not None and not to_tls:
                raise ClusterError(f"{option} without --to-tls")
        if to_key is not None and to_cert is None:
            raise ClusterError("--to-key without --to-cert")
        files = tls_files(tls_cert, tls_key, tls_client_ca)
        host, port = Endpoint.parse(listen)
        config = ProxyConfig(
            to=to.split(","),
            host=host,
            first_port=port,
            advertised_host=advertised_host,
            tls=None if files is None else Tls(**files),
            to_tls=UpstreamTls(to_ca, to_cert, to_key) if to_tls else None,
        )
        plan, token = fault_plan(faults), checked_token(control_token)
        writer = None if trace is None else new_trace_writer(trace, "proxy")
        written = None if writer is None else ClusterTrace(writer, writer.change)
        served = Proxy(config, written)

        def new_control() -> FaultControl:
            from purgatory.proxy import control

            return control.new_control(served, control_host, control_port, token)

        with finishing(written, writer, "proxy"):
            uvloop.run(serve_until_stopped(served, new_control, plan, view))
    except ClusterError as error:
        print(f"purgatory proxy: {error}", file=sys.stderr)
        raise click.exceptions.Exit(2) from None
