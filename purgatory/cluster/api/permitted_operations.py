"""The operations that there are on a resource, as a set of bits, where a request asks for them.

What its client may not do is taken out of them where access is guarded (`access.guard`).
"""

from __future__ import annotations

NOT_ASKED = -(2**31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(9, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS = (_DESCRIBE_CONFIGS, _ALTER_CONFIGS)
_OF_CLUSTER = _bits(_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _IDEMPOTENT_WRITE, *_CONFIGS)
_OF_TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, *_CONFIGS)
_OF_GROUP = _bits(_READ, _DELETE, _DESCRIBE)


def of_cluster(body: object) -> int:
    """Return the operations on the cluster, where the request asks for them."""
    return (
        _OF_CLUSTER if getattr(body, "include_cluster_authorized_operations", False) else NOT_ASKED
    )


def of_topic(body: object) -> int:
    """Return the operations on a topic, where the request asks for them."""
    return _OF_TOPIC if getattr(body, "include_topic_authorized_operations", False) else NOT_ASKED


def of_described_topic() -> int:
    """Return the operations on a topic, for a request that always asks for them."""
    return _OF_TOPIC


def of_group(body: object) -> int:
    """Return the operations on a group, where the request asks for them."""
    return _OF_GROUP if getattr(body, "include_authorized_operations", False) else NOT_ASKED
