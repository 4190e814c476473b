"""A proxy in front of a real Kafka, which injects the cluster's faults."""

from purgatory.import_names import needs_extra

with needs_extra(__name__, "cluster"):
    from purgatory.proxy.faults import ProxyFaults
    from purgatory.proxy.proxy import Proxy, ProxyConfig, UpstreamTls
    from purgatory.proxy.threaded_proxy import ThreadedProxy

__all__ = ["Proxy", "ProxyConfig", "ProxyFaults", "ThreadedProxy", "UpstreamTls"]
