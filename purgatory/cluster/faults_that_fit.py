"""Which faults of messages make sense: what the APIs that are served ask, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator

from kio.index import load_response_schema
from kio.schema.index import api_key_map

from purgatory.cluster.protocol.altered_answers import can_throttle
from purgatory.cluster.protocol.error_answers import choices_of
from purgatory.cluster.protocol.error_places import has_place
from purgatory.cluster.protocol.wire import SUPPORTED
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import ErrorFault, LoadCoordinator, MessageFault, Throttle
from purgatory.kafka.faults.fault import kafka_api_name, nearest


def check_message_fault(fault: MessageFault) -> None:
    """Check a fault against the APIs that are served.

    Raises:
        ClusterError: it would never strike; says what would.
    """
    served = {api_key_map[key]: key for key in SUPPORTED}
    if fault.api is None:
        return
    if fault.api not in served:
        names = sorted(map(kafka_api_name, served))
        right = nearest(kafka_api_name(fault.api), names)
        raise ClusterError(f"api={fault.api!r}: no such API is served; {right}")
    versions = list(_versions(served[fault.api]))
    if isinstance(fault, ErrorFault):
        _check_error(fault, fault.api, versions)
    if isinstance(fault, Throttle) and not any(
        can_throttle(load_response_schema(*one)) for one in versions
    ):
        raise ClusterError(
            f"api={fault.api!r}: answers of {kafka_api_name(fault.api)} have no throttle time"
        )


def _check_error(fault: ErrorFault, api: str, versions: list[tuple[int, int]]) -> None:
    name = kafka_api_name(api)
    if isinstance(fault, LoadCoordinator) and not fault.concerns(fault.broker or 0, api, None):
        raise ClusterError(f"api={api!r}: {name} isn't asked of coordinators; Heartbeat is")
    if not any(has_place(*one) for one in versions):
        raise ClusterError(f"api={api!r}: answers of {name} have no place for an error")
    known = set().union(*(choices_of(*one) for one in versions))
    for choice in fault.chosen:
        if choice not in known:
            right = f"it can be {', '.join(sorted(known))}" if known else "leave it out"
            words = choice.replace("_", " ")
            raise ClusterError(
                f"{choice}={fault.chosen[choice]!r}: {name} names no {words}; {right}"
            )


def _versions(api_key: int) -> Iterator[tuple[int, int]]:
    oldest, newest = SUPPORTED[api_key]
    return ((api_key, version) for version in range(oldest, newest + 1))
