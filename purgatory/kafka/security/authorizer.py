"""What the access control lists decide, as Kafka's StandardAuthorizer does.

A super user may do all. Then an entry that denies wins over all that allow, wherever it stands.
What nobody denies is allowed by an entry for it, or for what implies it. Where no entry is about
the resource at all, ``allow_everyone_if_no_acl_found`` decides, and else nobody may.

Ground rules
------------
* One thread at a time calls it, and no call waits.
* Entries are found by their resource: a decision takes O(entries on the resource + lengths that
  prefixes have), however many entries there are for others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from purgatory.kafka.security.acl import (
    ANY_HOST,
    ANY_NAME,
    ANYBODY,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Who is allowed one of the latter is allowed the former. It isn't denied with them."""

_Resource = tuple[ResourceType, str]


class Authorizer:
    """Decides by the entries that it was given last.

    Args:
        super_users: principals who may do all, such as "User:admin".
        allow_everyone_if_no_acl_found: whether resources that no entry is about are everybody's.
    """

    def __init__(
        self, super_users: Collection[str] = (), allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self.super_users = frozenset(super_users)
        self.allow_everyone_if_no_acl_found = allow_everyone_if_no_acl_found
        self.version = 0
        """Counts the changes of the entries; see `take`."""
        self._literal: dict[_Resource, list[Acl]] = {}
        self._prefixed: dict[_Resource, list[Acl]] = {}
        self._prefix_lengths: tuple[int, ...] = ()

    def take(self, version: int, acls: Iterable[Acl]) -> None:
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

    def matching(self, wanted: AclFilter) -> list[Acl]:
        """Return the entries that a filter means. O(entries)."""
        return [acl for acl in self.acls if wanted.matches(acl)]

    def allows_all(self, principal: str) -> bool:
        """Whether a principal may do everything, so that nothing further needs to be asked."""
        if not self._literal and not self._prefixed and self.allow_everyone_if_no_acl_found:
            return True
        return principal in self.super_users

    def allows(
        self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        """Whether a principal may do this to a resource, from a host."""
        if self.allows_all(principal):
            return True
        there_are_any = allowed = False
        for acl in self._about(resource, name):
            there_are_any = True
            if not _concerns(acl, principal, host):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif acl.operation in (operation, Operation.ALL) or (
                acl.operation in IMPLIED_BY.get(operation, ())
            ):
                allowed = True
        return allowed if there_are_any else self.allow_everyone_if_no_acl_found

    def allows_some(
        self, principal: str, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        """Whether a principal may do this to any resource of a type, of whatever name.

        An entry that allows it counts unless one that denies it covers all that it is about.
        """
        if self.allows_all(principal):
            return True
        concerned = [
            acl
            for acl in self.acls
            if acl.resource_type is resource
            and acl.operation in (operation, Operation.ALL)
            and _concerns(acl, principal, host)
        ]
        denied = [acl for acl in concerned if acl.permission is Permission.DENY]
        if any(_covers_all(acl) for acl in denied):
            return False
        if self.allow_everyone_if_no_acl_found:
            return True
        return any(
            acl.permission is Permission.ALLOW and not any(_covers(deny, acl) for deny in denied)
            for acl in concerned
        )

    def allowed_operations(
        self,
        principal: str,
        host: str,
        resource: ResourceType,
        name: str,
        operations: Iterable[Operation],
    ) -> frozenset[Operation]:
        """Return which of the operations a principal may do to a resource."""
        return frozenset(
            one for one in operations if self.allows(principal, host, one, resource, name)
        )

    def _about(self, resource: ResourceType, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource, name), ())
        if name != ANY_NAME:
            yield from self._literal.get((resource, ANY_NAME), ())
        for length in self._prefix_lengths:
            if length > len(name):
                return
            yield from self._prefixed.get((resource, name[:length]), ())


def _concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, ANYBODY) and acl.host in (host, ANY_HOST)


def _covers_all(acl: Acl) -> bool:
    return acl.pattern_type is PatternType.LITERAL and acl.name == ANY_NAME


def _covers(deny: Acl, allow: Acl) -> bool:
    """Whether a denial, which is not of all names, is about every name that an entry allows."""
    if deny.pattern_type is PatternType.PREFIXED:
        return allow.name.startswith(deny.name) and not _covers_all(allow)
    return allow.pattern_type is PatternType.LITERAL and allow.name == deny.name
