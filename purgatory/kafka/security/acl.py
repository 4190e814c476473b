"""Access control lists: what an entry says, and filters that find entries, with Kafka's numbers."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

ANYBODY = "User:*"
ANY_HOST = "*"
ANY_NAME = "*"
CLUSTER_NAME = "kafka-cluster"
"""What the one resource of the type `ResourceType.CLUSTER` is called."""


class ResourceType(IntEnum):
    """What an entry is about. ``ANY`` stands in filters alone."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an entry's name is meant: as it is (`*` for all), or as the beginning of names.

    ``ANY`` and ``MATCH`` stand in filters alone: the name as it is in an entry of either type, or
    all entries that are about the name.
    """

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done to a resource. ``ANY`` stands in filters alone."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an entry forbids or allows. ``ANY`` stands in filters alone."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One entry.

    Args:
        resource_type, name, pattern_type: what it is about.
        principal: who, as in "User:ann"; "User:*" for everybody.
        host: from which address; "*" for all.
        operation, permission: what is allowed, or forbidden.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def is_about(self, name: str) -> bool:
        """Whether a resource of this name, and of its type, is meant."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class AclFilter(NamedTuple):
    """Which entries are meant: each argument narrows it, but for None and ``ANY``."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether an entry is one of those."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH:
            return self.name is None or acl.is_about(self.name)
        same_type = self.pattern_type in (PatternType.ANY, acl.pattern_type)
        return same_type and self.name in (None, acl.name)


def check_acl(acl: Acl) -> str | None:
    """Return what is wrong with a new entry, None for nothing."""
    for value in (acl.resource_type, acl.operation, acl.permission):
        if value.name == "ANY":
            return f"{type(value).__name__}.ANY stands in filters alone"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"the pattern type of an entry is LITERAL or PREFIXED, not {acl.pattern_type.name}"
    kind, colon, user = acl.principal.partition(":")
    if not (kind and colon and user):
        return f"principal {acl.principal!r}: write KIND:NAME, as in User:ann"
    if not acl.host or not acl.name:
        return "host and name are not empty; * stands for all"
    if acl.resource_type is ResourceType.CLUSTER and acl.name not in (CLUSTER_NAME, ANY_NAME):
        return f"the cluster is called {CLUSTER_NAME}, not {acl.name!r}"
    return None
