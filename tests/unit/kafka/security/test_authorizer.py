"""Decisions by ACLs: a table, an oracle, and filters."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka.security.authorizer import (
    Acl,
    AclFilter,
    Authorizer,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
)

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_LITERAL, _PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
_ALLOW, _DENY = Permission.ALLOW, Permission.DENY
_READ, _WRITE, _DESCRIBE, _ALL = (
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALL,
)
_ANN, _HOST = "User:ann", "10.0.0.1"


def acl(
    operation: Operation,
    name: str = "orders",
    permission: Permission = _ALLOW,
    principal: str = _ANN,
    *,
    host: str = "*",
    pattern: PatternType = _LITERAL,
    resource: ResourceType = _TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def authorizer(*acls: Acl, everyone: bool = False) -> Authorizer:
    made = Authorizer(["User:root"], allow_everyone_if_no_acl_found=everyone)
    made.apply(1, acls)
    return made


_PREFIX_READ = acl(_READ, "ord", pattern=_PREFIXED)

TABLE = [
    # what stands there, what ann asks to do to the topic "orders", whether she may
    ([], _READ, False),
    ([acl(_READ)], _READ, True),
    ([acl(_READ)], _WRITE, False),
    ([acl(_ALL)], Operation.ALTER_CONFIGS, True),
    ([acl(_READ, "*")], _READ, True),
    ([acl(_READ, "order")], _READ, False),
    ([_PREFIX_READ], _READ, True),
    ([acl(_READ, "orders", pattern=_PREFIXED)], _READ, True),
    ([acl(_READ, "orders2", pattern=_PREFIXED)], _READ, False),
    ([acl(_READ, "*", pattern=_PREFIXED)], _READ, False),  # of names that begin with a star
    ([acl(_READ, principal="User:*")], _READ, True),
    ([acl(_READ, principal="User:bob")], _READ, False),
    ([acl(_READ, host=_HOST)], _READ, True),
    ([acl(_READ, host="10.0.0.2")], _READ, False),
    ([acl(_READ, resource=_GROUP)], _READ, False),
    # what implies what
    ([acl(_READ)], _DESCRIBE, True),
    ([acl(_WRITE)], _DESCRIBE, True),
    ([acl(Operation.DELETE)], _DESCRIBE, True),
    ([acl(Operation.ALTER)], _DESCRIBE, True),
    ([acl(Operation.CREATE)], _DESCRIBE, False),
    ([acl(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, True),
    ([acl(Operation.ALTER_CONFIGS)], _DESCRIBE, False),
    ([acl(_DESCRIBE)], _READ, False),
    ([acl(Operation.DESCRIBE_CONFIGS)], Operation.ALTER_CONFIGS, False),
    # deny before allow, wherever either stands
    ([acl(_READ), acl(_READ, permission=_DENY)], _READ, False),
    ([acl(_READ, permission=_DENY), acl(_READ)], _READ, False),
    ([acl(_ALL), acl(_READ, "*", _DENY)], _READ, False),
    ([acl(_ALL), acl(_READ, "o", _DENY, pattern=_PREFIXED)], _READ, False),
    ([acl(_ALL, "*"), acl(_ALL, permission=_DENY)], _READ, False),
    ([acl(_ALL), acl(_READ, permission=_DENY, principal="User:bob")], _READ, True),
    ([acl(_ALL), acl(_READ, permission=_DENY, host="10.0.0.2")], _READ, True),
    ([acl(_ALL), acl(_WRITE, permission=_DENY)], _READ, True),
    # a denial implies nothing: DESCRIBE is allowed without READ
    ([acl(_ALL), acl(_READ, permission=_DENY)], _DESCRIBE, True),
    ([acl(_READ), acl(_DESCRIBE, permission=_DENY)], _DESCRIBE, False),
    ([acl(_READ), acl(_DESCRIBE, permission=_DENY)], _READ, True),
]


@pytest.mark.parametrize(("acls", "operation", "allowed"), TABLE)
def test_decisions_follow_the_table(acls: list[Acl], operation: Operation, allowed: bool) -> None:
    assert authorizer(*acls).allows(_ANN, _HOST, operation, _TOPIC, "orders") is allowed


def test_super_user_overrides_denials() -> None:
    deciding = authorizer(acl(_ALL, "*", _DENY, "User:*"))
    assert deciding.allows("User:root", _HOST, _READ, _TOPIC, "orders")
    assert deciding.allows_all("User:root")
    assert not deciding.allows_all(_ANN)


def test_resources_without_entries_follow_the_setting() -> None:
    deciding = authorizer(acl(_READ, principal="User:bob"), everyone=True)
    assert deciding.allows(_ANN, _HOST, _READ, _TOPIC, "others")
    assert not deciding.allows(_ANN, _HOST, _READ, _TOPIC, "orders"), "there is one for bob"
    assert not deciding.allows(_ANN, _HOST, _WRITE, _TOPIC, "orders"), "of whatever operation"
    assert authorizer(everyone=True).allows_all(_ANN)
    assert not deciding.allows_all(_ANN)


def test_older_entries_do_not_replace_later_ones() -> None:
    deciding = authorizer()
    deciding.apply(3, [acl(_READ)])
    deciding.apply(2, [])
    assert deciding.version == 3
    assert deciding.allows(_ANN, _HOST, _READ, _TOPIC, "orders")


# ---- an oracle: each entry is looked at, in no order, with no index

_acls = st.builds(
    Acl,
    st.sampled_from([_TOPIC, _GROUP]),
    st.sampled_from(["*", "a", "ab", "abc", "b"]),
    st.sampled_from([_LITERAL, _PREFIXED]),
    st.sampled_from(["User:*", _ANN, "User:bob"]),
    st.sampled_from(["*", _HOST, "10.0.0.2"]),
    st.sampled_from([_ALL, _READ, _WRITE, _DESCRIBE, Operation.ALTER_CONFIGS]),
    st.sampled_from([_ALLOW, _DENY]),
)
_IMPLYING = {
    "DESCRIBE": {"READ", "WRITE", "DELETE", "ALTER"},
    "DESCRIBE_CONFIGS": {"ALTER_CONFIGS"},
}


def _oracle(acls: list[Acl], everyone: bool, operation: Operation, name: str) -> bool:
    about = [
        one
        for one in acls
        if one.resource_type is _TOPIC
        and (
            name.startswith(one.name)
            if one.pattern_type is _PREFIXED
            else one.name == name or one.name == "*"
        )
    ]
    hers = [one for one in about if one.principal != "User:bob" and one.host != "10.0.0.2"]
    exact = {"ALL", operation.name}
    if any(one.permission is _DENY and one.operation.name in exact for one in hers):
        return False
    enough = exact | _IMPLYING.get(operation.name, set())
    if any(one.permission is _ALLOW and one.operation.name in enough for one in hers):
        return True
    return everyone and not about


@given(st.lists(_acls, max_size=6), st.booleans())
@settings(max_examples=150)
def test_decisions_are_those_of_the_oracle(acls: list[Acl], everyone: bool) -> None:
    deciding = authorizer(*acls, everyone=everyone)
    operations = [_READ, _WRITE, _DESCRIBE, Operation.DESCRIBE_CONFIGS]
    for operation, name in product(operations, ["a", "ab", "abcd", "b", "c", "*"]):
        if name == "*" and any(one.pattern_type is _PREFIXED and one.name == "*" for one in acls):
            continue
        expected = _oracle(acls, everyone, operation, name)
        assert deciding.allows(_ANN, _HOST, operation, _TOPIC, name) is expected, (operation, name)


@given(st.lists(_acls, max_size=6))
@settings(max_examples=150)
def test_authorizer_allows_any_resource_if_some_name_is(acls: list[Acl]) -> None:
    """Names that no entry has, of all prefixes, represent all other names."""
    deciding = authorizer(*acls)
    names = ["a", "ab", "abc", "b", "a~", "ab~", "abc~", "b~", "*~", "~"]
    found = any(deciding.allows(_ANN, _HOST, _WRITE, _TOPIC, name) for name in names)
    assert deciding.allows_any(_ANN, _HOST, _WRITE, _TOPIC) is found


# ---- filters and checks

_ENTRIES = [acl(_READ), acl(_WRITE, "*"), _PREFIX_READ, acl(_READ, "g", resource=_GROUP)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), [0, 1, 2, 3]),
        (AclFilter(_TOPIC), [0, 1, 2]),
        (AclFilter(_TOPIC, "orders", _LITERAL), [0]),
        (AclFilter(_TOPIC, "orders", PatternType.ANY), [0]),
        (AclFilter(_TOPIC, "orders", PatternType.MATCH), [0, 1, 2]),
        (AclFilter(_TOPIC, None, PatternType.MATCH), [0, 1, 2]),
        (AclFilter(_TOPIC, "ord", _PREFIXED), [2]),
        (AclFilter(_TOPIC, None, _PREFIXED), [2]),
        (AclFilter(operation=_WRITE), [1]),
        (AclFilter(principal="User:bob"), []),
        (AclFilter(permission=_DENY), []),
        (AclFilter(host="*"), [0, 1, 2, 3]),
    ],
)
def test_filters_match_entries(wanted: AclFilter, found: list[int]) -> None:
    assert set(authorizer(*_ENTRIES).find(wanted)) == {_ENTRIES[number] for number in found}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (acl(Operation.ANY), "stands in filters alone"),
        (acl(_READ, permission=Permission.ANY), "stands in filters alone"),
        (acl(_READ, resource=ResourceType.ANY), "stands in filters alone"),
        (acl(_READ, pattern=PatternType.MATCH), "LITERAL or PREFIXED, not MATCH"),
        (acl(_READ, principal="ann"), "as in User:ann"),
        (acl(_READ, principal="User:"), "as in User:ann"),
        (acl(_READ, ""), "not empty"),
        (acl(_READ, host=""), "not empty"),
        (acl(Operation.CREATE, "mine", resource=_CLUSTER), "called kafka-cluster, not 'mine'"),
    ],
)
def test_invalid_entries_are_refused(wrong: Acl, said: str) -> None:
    assert said in str(check_acl(wrong))


def test_valid_entries_are_accepted() -> None:
    cluster = acl(Operation.CREATE, "kafka-cluster", resource=_CLUSTER)
    assert [check_acl(one) for one in [*_ENTRIES, cluster]] == [None] * 5
