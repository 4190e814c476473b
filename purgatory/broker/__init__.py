"""A cluster that real Kafka clients talk to."""

from purgatory.broker.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.broker.control import Control
from purgatory.broker.errors import ClusterError
from purgatory.broker.fault import Fault
from purgatory.broker.faults import Faults
from purgatory.broker.groups import GroupConfig
from purgatory.broker.state import cluster_state
from purgatory.broker.storage import Fsync
from purgatory.broker.threaded_cluster import ThreadedCluster, ThreadedFault
from purgatory.broker.trace import ClusterTrace, start_trace, trace_writer

__all__ = [
    "Cluster",
    "ClusterConfig",
    "ClusterError",
    "ClusterTrace",
    "Control",
    "Fault",
    "Faults",
    "Fsync",
    "GroupConfig",
    "ThreadedCluster",
    "ThreadedFault",
    "TopicSpec",
    "cluster_state",
    "start_trace",
    "trace_writer",
]
