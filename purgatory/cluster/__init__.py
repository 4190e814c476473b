"""A cluster that real Kafka clients talk to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from purgatory.import_names import needs_extra


def _import_kio() -> None:
    """Import `kio` without Hypothesis, to which it tells its types where that is installed: beside
    tests it is, and is then four fifths of what this import takes."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as Python notes "there is none"
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


with needs_extra(__name__, "cluster"):
    _import_kio()
    from purgatory.cluster.cluster import Cluster, cluster_state
    from purgatory.cluster.config import (
        AclSpec,
        Authorization,
        ClusterConfig,
        TopicSpec,
        load_config,
    )
    from purgatory.cluster.fault_injection import Faults
    from purgatory.cluster.listeners import Listener, Tls
    from purgatory.cluster.steering.request_hooks import Delay, RequestHook
    from purgatory.cluster.steering.seen_requests import SeenRequest
    from purgatory.cluster.storage import Fsync
    from purgatory.cluster.threaded_cluster import ThreadedCluster, ThreadedFault
    from purgatory.cluster.trace import ClusterTrace, start_trace, trace_writer
    from purgatory.kafka import GroupConfig
    from purgatory.kafka.errors import ClusterError
    from purgatory.kafka.faults import Fault
    from purgatory.kafka.faults.active_faults import ActiveFault

if TYPE_CHECKING:
    from purgatory.cluster.control.control import Control

__all__ = [
    "AclSpec",
    "ActiveFault",
    "Authorization",
    "Cluster",
    "ClusterConfig",
    "ClusterError",
    "ClusterTrace",
    "Control",
    "Delay",
    "Fault",
    "Faults",
    "Fsync",
    "GroupConfig",
    "Listener",
    "RequestHook",
    "SeenRequest",
    "ThreadedCluster",
    "ThreadedFault",
    "Tls",
    "TopicSpec",
    "cluster_state",
    "load_config",
    "start_trace",
    "trace_writer",
]


if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        """Import the control where it is asked for: aiohttp takes as long as nearly all else."""
        if name != "Control":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from purgatory.cluster.control.control import Control

        return Control


def __dir__() -> list[str]:
    return list(__all__)
