"""Serves `/metrics` during a run: its brokers' purgatories, named as in `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from purgatory import metrics
from purgatory.simulation.runtime import Process, Runtime

ADDRESS = "127.0.0.1"
"""Where it listens: what a simulation counts is nobody else's business."""


@contextmanager
def serve_metrics(runtime: Runtime, port: int) -> Iterator[int]:
    """Serve the metrics of a run's purgatories, each with the label `broker`.

    A broker that starts again counts from zero, as a process does.

    Args:
        runtime: tells which purgatories there are.
        port: the TCP port; 0 takes a free one.

    Yields:
        The port.

    Raises:
        OSError: the port cannot be had.
    """
    registry = CollectorRegistry()

    def started(broker_id: int, process: Process) -> None:
        for purgatory in process.purgatories:
            metrics.register(purgatory, registry, broker=broker_id)

    def ended(process: Process) -> None:
        for purgatory in process.purgatories:
            metrics.unregister(purgatory, registry)

    server, thread = start_http_server(port, ADDRESS, registry)
    runtime.on_start, runtime.on_end = started, ended
    try:
        yield server.server_port
    finally:
        runtime.on_start = runtime.on_end = None
        server.shutdown()
        server.server_close()
        thread.join()
