"""Access control lists, and what they decide, as Kafka's StandardAuthorizer does.

A super user may do everything. For others, an entry that denies wins over all that allow, in any
order. An operation is allowed by an entry for it, or for one that implies it. For resources without
entries, ``allow_everyone_if_no_acl_found`` decides. The response to a change is sent when every
live broker applies it (`DelayedAlterAcls`); a broker that comes back applies the current ACLs.

Ground rules
------------
* One thread at a time calls it, and no call waits.
* Entries are found by their resource: a decision takes O(entries on the resource + lengths that
  prefixes have), however many entries there are for others.
* ``respond`` is called once, but for operations that are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode

ANY_PRINCIPAL = "User:*"
ANY_HOST = "*"
WILDCARD_RESOURCE = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of the type `ResourceType.CLUSTER`."""


class ResourceType(IntEnum):
    """The type of a resource. ``ANY`` stands in filters alone."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The match of an entry's resource name: literal (`*` for all), or as a prefix.

    ``ANY`` and ``MATCH`` stand in filters alone: the name as it is in an entry of either type, or
    all entries that are about the name.
    """

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """An operation on a resource. ``ANY`` stands in filters alone."""

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
        resource_type, name, pattern_type: the resources.
        principal: a client, such as "User:ann"; "User:*" for all.
        host: the client's address; "*" for all.
        operation, permission: the operation that is allowed or denied.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def matches_resource(self, name: str) -> bool:
        """Whether a resource of this name, and of its type, is meant."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD_RESOURCE)


class AclFilter(NamedTuple):
    """A filter of entries: each argument narrows it, but for None and ``ANY``."""

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
            return self.name is None or acl.matches_resource(self.name)
        same_type = self.pattern_type in (PatternType.ANY, acl.pattern_type)
        return same_type and self.name in (None, acl.name)


def check_acl(acl: Acl) -> str | None:
    """Return an error message for an invalid entry, None for a valid one."""
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
    if acl.resource_type is ResourceType.CLUSTER and acl.name not in (
        CLUSTER_NAME,
        WILDCARD_RESOURCE,
    ):
        return f"the cluster is called {CLUSTER_NAME}, not {acl.name!r}"
    return None


IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""By operation, the operations whose permission implies it. A denial implies nothing."""

_Resource = tuple[ResourceType, str]


class Authorizer:
    """Decides by the current entries.

    Args:
        super_users: principals that may do everything, such as "User:admin".
        allow_everyone_if_no_acl_found: whether all clients may use resources without entries.
    """

    def __init__(
        self, super_users: Collection[str] = (), allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self.super_users = frozenset(super_users)
        self.allow_everyone_if_no_acl_found = allow_everyone_if_no_acl_found
        self.version = 0
        """Counts the changes of the entries; see `apply`."""
        self._literal: dict[_Resource, list[Acl]] = {}
        self._prefixed: dict[_Resource, list[Acl]] = {}
        self._prefix_lengths: tuple[int, ...] = ()

    def apply(self, version: int, acls: Iterable[Acl]) -> None:
        """Decide by these entries from now on. O(entries).

        Args:
            version: of the entries; an older one than was taken before has no effect.
        """
        if version < self.version:
            return
        self.version = version
        self._literal, self._prefixed = {}, {}
        for acl in acls:
            prefixed = acl.pattern_type is PatternType.PREFIXED
            place = self._prefixed if prefixed else self._literal
            place.setdefault((acl.resource_type, acl.name), []).append(acl)
        self._prefix_lengths = tuple(sorted({len(name) for _, name in self._prefixed}))

    @property
    def acls(self) -> Iterator[Acl]:
        """All entries."""
        return chain(*self._literal.values(), *self._prefixed.values())

    def find(self, acl_filter: AclFilter) -> list[Acl]:
        """Return the entries that a filter means. O(entries)."""
        return [acl for acl in self.acls if acl_filter.matches(acl)]

    def allows_all(self, principal: str) -> bool:
        """Whether a principal may do everything, so that no other check is needed."""
        if not self._literal and not self._prefixed and self.allow_everyone_if_no_acl_found:
            return True
        return principal in self.super_users

    def allows(
        self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        """Whether a principal may do this to a resource, from a host."""
        if self.allows_all(principal):
            return True
        has_acls = allowed = False
        for acl in self._resource_acls(resource, name):
            has_acls = True
            if not _applies_to(acl, principal, host):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif acl.operation in (operation, Operation.ALL) or (
                acl.operation in IMPLIED_BY.get(operation, ())
            ):
                allowed = True
        return allowed if has_acls else self.allow_everyone_if_no_acl_found

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        """Whether a principal may do this to any resource of a type, of whatever name.

        An entry that allows it counts unless one that denies it covers all that it is about.
        """
        if self.allows_all(principal):
            return True
        affected = [
            acl
            for acl in self.acls
            if acl.resource_type is resource
            and acl.operation in (operation, Operation.ALL)
            and _applies_to(acl, principal, host)
        ]
        denied = [acl for acl in affected if acl.permission is Permission.DENY]
        if any(_covers_all(acl) for acl in denied):
            return False
        if self.allow_everyone_if_no_acl_found:
            return True
        return any(
            acl.permission is Permission.ALLOW and not any(_dominates(deny, acl) for deny in denied)
            for acl in affected
        )

    def _resource_acls(self, resource: ResourceType, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource, name), ())
        if name != WILDCARD_RESOURCE:
            yield from self._literal.get((resource, WILDCARD_RESOURCE), ())
        for length in self._prefix_lengths:
            if length > len(name):
                return
            yield from self._prefixed.get((resource, name[:length]), ())


def _applies_to(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, ANY_PRINCIPAL) and acl.host in (host, ANY_HOST)


def _covers_all(acl: Acl) -> bool:
    return acl.pattern_type is PatternType.LITERAL and acl.name == WILDCARD_RESOURCE


def _dominates(deny: Acl, allow: Acl) -> bool:
    """Whether a denial, which is not of all names, is about every name that an entry allows."""
    if deny.pattern_type is PatternType.PREFIXED:
        return allow.name.startswith(deny.name) and not _covers_all(allow)
    return allow.pattern_type is PatternType.LITERAL and allow.name == deny.name


ALTER_ACLS_KEY = "acls"
"""The watch key of these operations: the cluster has one list."""


class DelayedAlterAcls(DelayedOperation):
    """Waits until all live brokers apply a change of the ACLs.

    Args:
        timeout_ms: the longest wait.
        is_applied: returns whether all brokers that live have the change.
        respond: takes NONE, or REQUEST_TIMED_OUT: the change is made, and some don't have it yet.
    """

    __slots__ = ("_is_applied", "_respond", "_responded")

    def __init__(
        self,
        timeout_ms: int,
        is_applied: Callable[[], bool],
        respond: Callable[[ErrorCode], object],
    ) -> None:
        super().__init__(timeout_ms)
        self._is_applied = is_applied
        self._respond = respond
        self._responded = False

    def try_complete(self) -> bool:
        return self._is_applied() and self.force_complete()

    def on_complete(self) -> None:
        self._responded = True
        is_applied = self._is_applied()
        self._respond(ErrorCode.NONE if is_applied else ErrorCode.REQUEST_TIMED_OUT)

    def on_failure(self, error: BaseException) -> None:
        if not self._responded:
            self._responded = True
            self._respond(ErrorCode.UNKNOWN_SERVER_ERROR)
