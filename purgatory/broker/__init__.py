"""A cluster that real Kafka clients talk to."""

from purgatory.broker.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.broker.errors import ClusterError

__all__ = ["Cluster", "ClusterConfig", "ClusterError", "TopicSpec"]
