"""Who may do what, as somebody says it who sets up a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.authorizer import (
    ANY_HOST,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
)


@dataclass(frozen=True)
class AclSpec:
    """An access control entry that is there from the start.

    Args:
        principal: who, as in "User:ann"; "User:*" for everybody.
        operation: what, by Kafka's name; "ALL" for everything.
        resource_type: to what kind of thing.
        name: to which; "*" for all of its kind. The cluster has no need of one.
        pattern_type: "PREFIXED": to all whose names begin so.
        host: from which address; "*" for all.
        permission: whether it is allowed, or forbidden.
    """

    principal: str
    operation: Literal[
        "ALL",
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ]
    resource_type: Literal["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"]
    name: str | None = None
    pattern_type: Literal["LITERAL", "PREFIXED"] = "LITERAL"
    host: str = ANY_HOST
    permission: Literal["ALLOW", "DENY"] = "ALLOW"

    @property
    def acl(self) -> Acl:
        """The entry.

        Raises:
            ClusterError: it makes no sense; says what would.
        """
        of_cluster = self.resource_type == ResourceType.CLUSTER.name
        try:
            acl = Acl(
                ResourceType[self.resource_type],
                self.name or (CLUSTER_NAME if of_cluster else ""),
                PatternType[self.pattern_type],
                self.principal,
                self.host,
                Operation[self.operation],
                Permission[self.permission],
            )
        except KeyError as error:
            raise ClusterError(f"{self}: there is no {error}") from None
        wrong = check_acl(acl)
        if wrong is not None:
            raise ClusterError(f"{self}: {wrong}")
        return acl


@dataclass(frozen=True)
class Authorization:
    """What decides who may do what.

    Args:
        super_users: who may do everything, such as "User:admin".
        allow_everyone_if_no_acl_found: whether resources without an entry are everybody's. Kafka's
            default is False; here a cluster asks for nothing until entries are made.
        acls: the entries that are there from the start.
        alter_timeout_ms: how long a change of them may take until all brokers have it.
    """

    super_users: Sequence[str] = ()
    allow_everyone_if_no_acl_found: bool = True
    acls: Sequence[AclSpec] = ()
    alter_timeout_ms: int = 30_000
