"""The trace of a cluster in a folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from purgatory.cluster.trace import ClusterTrace


def start_trace(
    folder: Path,
    name: str,
    producers: Sequence[Mapping[str, Any]] = (),
    consumers: Sequence[Mapping[str, Any]] = (),
) -> tuple[ClusterTrace, Any]:
    """Begin a trace in a new folder; return it, and the writer to be finished.

    Args:
        folder: created by the call.
        name: the run's name.
        producers, consumers: the configuration of clients, by client id (`group`), for the audit.

    Raises:
        ValueError: the folder can't be created, or is not empty.
    """
    writer = trace_writer(folder, name, producers, consumers)
    return ClusterTrace(writer, writer.change), writer


def trace_writer(
    folder: Path,
    name: str,
    producers: Sequence[Mapping[str, Any]] = (),
    consumers: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """As `start_trace`, without the `ClusterTrace`."""
    from purgatory.trace.trace_writer import TraceWriter

    run_id = f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    return TraceWriter(
        folder,
        run_id=run_id,
        scenario=name,
        seed=0,
        producers=producers,
        consumers=consumers,
        observed=True,
    )
