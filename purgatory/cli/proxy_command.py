"""The command ``purgatory proxy``: faults in front of a real Kafka."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.cluster_command import (
    checked_token,
    finishing,
    log_to_standard_error,
    new_trace_writer,
    tls_files,
)
from purgatory.settings.addresses import CONTROL_PORT

if TYPE_CHECKING:
    from purgatory.cluster.control.control import FaultControl


def proxy(
    to: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT[,HOST:PORT]...", help="The brokers: their bootstrap servers."
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the first broker's listener is; the others follow. Port 0: any.",
        ),
    ] = "127.0.0.1:19092",
    advertised_host: Annotated[
        str | None,
        typer.Option(help="The host that clients are given; by default that of --listen."),
    ] = None,
    control_port: options.ControlPort = CONTROL_PORT,
    control_host: options.ControlHost = "127.0.0.1",
    control_token: options.ControlToken = None,
    trace: options.TraceFolder = None,
    faults: options.FaultPlan = None,
    view: options.View = False,
    tls_cert: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: options.TlsClientAuthority = None,
    to_tls: Annotated[bool, typer.Option("--to-tls", help="Use TLS with the brokers.")] = False,
    to_ca: Annotated[
        Path | None,
        typer.Option(help="Certificates that sign the brokers'; by default the system's."),
    ] = None,
    to_cert: Annotated[
        Path | None, typer.Option(help="The proxy's certificate, if the brokers require one.")
    ] = None,
    to_key: Annotated[
        Path | None, typer.Option(help="Its private key, if not in the same file.")
    ] = None,
) -> None:
    """Inject faults between Kafka clients and a real cluster."""
    import uvloop

    from purgatory.cluster import ClusterError, ClusterTrace, Tls
    from purgatory.cluster.listeners import Endpoint
    from purgatory.cluster.server import load_fault_plan, serve_until_stopped
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
        plan = () if faults is None else load_fault_plan(faults)
        token = checked_token(control_token)
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
        raise typer.Exit(2) from None
