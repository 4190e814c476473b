"""Access control lists: made and removed by real clients, followed by all, kept, waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from purgatory.cluster import (
    AclSpec,
    Authorization,
    Cluster,
    ClusterConfig,
    GroupConfig,
    ThreadedCluster,
    TopicSpec,
)
from purgatory.kafka.security.authorizer import Acl, Operation, PatternType, Permission
from purgatory.kafka.security.authorizer import ResourceType as Resource
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import CLIENTS, eventually, require_client
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

_TIMEOUT_S = 30
_CREATE_ACLS, _DESCRIBE_ACLS, _DELETE_ACLS = 30, 29, 31


@pytest.fixture(scope="module")
def serve_authorized() -> Iterator[ThreadedCluster]:
    """Admin may do everything; ann reads and writes topics that begin with "ann", as group
    "anns"."""
    config = ClusterConfig(
        brokers=2,
        topics=[TopicSpec("ann-orders"), TopicSpec("secrets")],
        groups=GroupConfig(initial_rebalance_delay_ms=0),
        users={"admin": "a", "ann": "b"},
        authorization=Authorization(
            super_users=["User:admin"],
            allow_everyone_if_no_acl_found=False,
            acls=[
                AclSpec("User:ann", "READ", "TOPIC", "ann", "PREFIXED"),
                AclSpec("User:ann", "WRITE", "TOPIC", "ann", "PREFIXED"),
                AclSpec("User:ann", "READ", "GROUP", "anns"),
            ],
        ),
    )
    with ThreadedCluster(config) as running:
        yield running


def settings(user: str, password: str, dots: bool = True) -> dict[str, Any]:
    chosen = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.plain.username": user,
        "sasl.plain.password": password,
    }
    if not dots:
        return {name.replace(".", "_"): value for name, value in chosen.items()}
    return {name.replace("sasl.plain.", "sasl."): value for name, value in chosen.items()}


def admin_of(cluster: ThreadedCluster, user: str = "admin", password: str = "a") -> AdminClient:
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    return AdminClient({**servers, **settings(user, password)})


def binding(topic: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, topic, pattern, "User:ann", "*", operation, permission)


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(_TIMEOUT_S) for future in futures.values()]


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_write_to_allowed_topics_only(serve_authorized: ThreadedCluster, name: str) -> None:
    require_client(name)
    chosen = settings("ann", "b", dots=name in ("confluent-kafka", "kcat"))
    client = CLIENTS[name](serve_authorized.bootstrap_servers)
    client.produce("ann-orders", [b"by " + name.encode()], **chosen)
    with pytest.raises(Exception, match=r"(?i)authoriz"):
        client.produce("secrets", [b"x"], **chosen)


def test_expression_subscribes_to_describable_topics_only(
    serve_authorized: ThreadedCluster,
) -> None:
    ann = {"bootstrap.servers": serve_authorized.bootstrap_servers, **settings("ann", "b")}
    consumer = Consumer({**ann, "group.id": "anns", "group.protocol": "consumer"})
    consumer.subscribe(["^.*"])
    try:
        end_s = time.monotonic() + _TIMEOUT_S
        while not consumer.assignment() and time.monotonic() < end_s:
            consumer.poll(0.1)
        assert {one.topic for one in consumer.assignment()} == {"ann-orders"}
    finally:
        consumer.close()


def test_entries_are_created_found_and_deleted(serve_authorized: ThreadedCluster) -> None:
    admin = admin_of(serve_authorized)
    allow = binding("secrets", AclOperation.WRITE, AclPermissionType.ALLOW)
    deny = binding("secrets", AclOperation.WRITE, AclPermissionType.DENY)
    ann = settings("ann", "b")
    client = ConfluentClient(serve_authorized.bootstrap_servers)
    done(admin.create_acls([allow]))
    client.produce("secrets", [b"1"], **ann)
    done(admin.create_acls([deny, allow]))  # one of them once more
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        client.produce("secrets", [b"2"], **ann)
    about: Any = (ResourceType.TOPIC, "secrets", ResourcePatternType.MATCH, None, None)
    new_filter: Any = AclBindingFilter
    wanted = new_filter(*about, AclOperation.ANY, AclPermissionType.ANY)
    assert set(admin.describe_acls(wanted).result(_TIMEOUT_S)) == {allow, deny}
    denials = new_filter(*about, AclOperation.ANY, AclPermissionType.DENY)
    assert done(admin.delete_acls([denials])) == [[deny]]
    client.produce("secrets", [b"3"], **ann)
    assert done(admin.delete_acls([wanted])) == [[allow]]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        client.produce("secrets", [b"4"], **ann)


def test_clients_without_alter_permission_change_nothing(serve_authorized: ThreadedCluster) -> None:
    admin = admin_of(serve_authorized, "ann", "b")
    allow = binding("secrets", AclOperation.ALL, AclPermissionType.ALLOW)
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        done(admin.create_acls([allow]))
    assert set(admin.list_topics(timeout=_TIMEOUT_S).topics) == {"ann-orders"}
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        done(admin.delete_topics(["ann-orders"]))
    assert admin.list_consumer_groups().result(_TIMEOUT_S).errors == []


def test_group_operations_need_permissions_on_the_group(serve_authorized: ThreadedCluster) -> None:
    from confluent_kafka import Consumer

    ConfluentClient(serve_authorized.bootstrap_servers).produce(
        "ann-orders", [b"x"], **settings("ann", "b")
    )
    for group, error in (("anns", None), ("others", "GROUP_AUTHORIZATION_FAILED")):
        consumer = Consumer(
            {
                "bootstrap.servers": serve_authorized.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                **settings("ann", "b"),
            }
        )
        consumer.subscribe(["ann-orders"])
        message = consumer.poll(_TIMEOUT_S)
        assert message is not None
        failed = message.error()
        assert (failed.name() if failed else None) == error
        consumer.close()


# ---- by frames: waits, persistence, refusals


def _creation(name: str = "t", **changes: Any) -> dict[str, Any]:
    creation = {
        "resource_type": 2,
        "resource_name": name,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return {"creations": [{**creation, **changes}]}


_ALL_ACLS = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
_ALL_ACLS |= {"permission_type": 1}


def _run(main: Callable[[Cluster, RawClient], Any], **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(**{"brokers": 3, **options})
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            await main(cluster, client)

    asyncio.run(run())


def _outcomes(cluster: Cluster) -> dict[str, int]:
    [purgatory] = [one for one in cluster.brokers[1].purgatories if one.name == "AlterAcls"]
    return {name: count for name, count in purgatory.counters.outcomes.items() if count}


def test_change_completes_when_all_live_brokers_apply_it() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await cluster.fault.kill(3)
        pause = cluster.fault.pause(2)
        asked = asyncio.ensure_future(client.ask(_CREATE_ACLS, 3, _creation()))
        first = cluster.brokers[1]
        await eventually(lambda: first.authorizer.version == 1)
        assert first.alter_acls_purgatory.num_delayed == 1
        assert not asked.done()
        pause.end()
        assert (await asked).results[0].error_code == 0
        assert cluster.brokers[2].authorizer.version == 1
        await cluster.revive(3)
        assert len(list(cluster.brokers[3].authorizer.acls)) == 1
        assert _outcomes(cluster) == {"completed": 1}

    _run(main)


def test_change_does_not_wait_for_a_broker_that_dies() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.fault.pause(2)
        asked = asyncio.ensure_future(client.ask(_CREATE_ACLS, 3, _creation()))
        await eventually(lambda: cluster.brokers[1].alter_acls_purgatory.num_delayed == 1)
        await cluster.fault.kill(2)
        assert (await asked).results[0].error_code == 0

    _run(main)


def test_change_that_misses_a_broker_times_out_and_holds() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.fault.pause(2)
        answer = await client.ask(_CREATE_ACLS, 3, _creation())
        [result] = answer.results
        assert (result.error_code, result.error_message) == (
            7,
            "not all brokers have the change yet",
        )
        assert len((await client.ask(_DESCRIBE_ACLS, 3, _ALL_ACLS)).resources) == 1
        assert _outcomes(cluster) == {"expired": 1}

    _run(main, authorization=Authorization(alter_timeout_ms=50))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_entries_and_credentials_outlive_the_cluster(tmp_path: Path, version: int) -> None:
    async def make(cluster: Cluster, client: RawClient) -> None:
        made = await client.ask(_CREATE_ACLS, version, _creation())
        assert made.results[0].error_code == 0
        user = {"name": "ann", "mechanism": 1, "iterations": 4096}
        secret = {"salt": b"salt", "salted_password": b"hashed"}
        altered = await client.ask(51, 0, {"upsertions": [{**user, **secret}]})
        assert altered.results[0].error_code == 0

    async def find(cluster: Cluster, client: RawClient) -> None:
        [resource] = (await client.ask(_DESCRIBE_ACLS, version, _ALL_ACLS)).resources
        assert resource.resource_name == "t"
        assert all(one.authorizer.acls for one in cluster.brokers.values())
        [user] = (await client.ask(50, 0, {"users": None})).results
        assert (user.user, user.credential_infos[0].iterations) == ("ann", 4096)

    _run(make, data_dir=tmp_path)
    file = tmp_path / "security.json"
    assert file.stat().st_mode & 0o077 == 0, "others may not read it"
    _run(find, data_dir=tmp_path)
    file.write_text("{}")
    with pytest.raises(Exception, match=r"security\.json can't be read"):
        _run(find, data_dir=tmp_path)


def test_change_that_can_not_be_saved_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("purgatory.cluster.security.save_security", full)
        for api_key, values in (
            (_CREATE_ACLS, _creation()),
            (51, {"upsertions": [_UPSERTION]}),
        ):
            [result] = (await client.ask(api_key, 0 if api_key == 51 else 3, values)).results
            assert (result.error_code, "No space left" in result.error_message) == (56, True)
        assert cluster.security.acls == {}
        assert cluster.security.credentials.altered == {}

    _run(main, data_dir=tmp_path)


_UPSERTION = {
    "name": "ann",
    "mechanism": 1,
    "iterations": 4096,
    "salt": b"s",
    "salted_password": b"p",
}


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"resource_type": 1}, -1, "stands in filters alone"),
        ({"resource_type": 99}, 42, "99 is not a valid"),
        ({"operation": 0}, 42, "0 is not a valid"),
        ({"resource_pattern_type": 2}, -1, "LITERAL or PREFIXED"),
        ({"principal": "ann"}, 42, "as in User:ann"),
        ({"resource_name": ""}, 42, "not empty"),
    ],
)
def test_invalid_entries_are_refused_one_by_one(
    wrong: dict[str, Any], code: int, said: str
) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        both = _creation()["creations"] + _creation(**wrong)["creations"]
        sound, refused = (await client.ask(_CREATE_ACLS, 3, {"creations": both})).results
        assert (sound.error_code, refused.error_code) == (0, code)
        assert said in refused.error_message
        assert len(cluster.security.acls) == 1

    _run(main, brokers=1)


def test_cluster_without_authorization_has_no_entries() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        described = await client.ask(_DESCRIBE_ACLS, 3, _ALL_ACLS)
        [created] = (await client.ask(_CREATE_ACLS, 3, _creation())).results
        filters = {"filters": [_ALL_ACLS]}
        [deleted] = (await client.ask(_DELETE_ACLS, 3, filters)).filter_results
        codes = {described.error_code, created.error_code, deleted.error_code}
        assert codes == {54}

    _run(main, brokers=1, authorization=None)


def test_resources_without_entries_are_open_by_default() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        async def write(topic: str) -> int:
            data = [{"index": 0, "records": record_batch([b"x"])}]
            values = {"acks": -1, "topic_data": [{"name": topic, "partition_data": data}]}
            [answer] = (await client.ask(0, 8, values)).responses
            return int(answer.partition_responses[0].error_code)

        assert await write("t") == 0
        await client.ask(_CREATE_ACLS, 3, _creation())
        assert await write("t") == 29
        assert await write("u") == 0
        await client.ask(_DELETE_ACLS, 3, {"filters": [_ALL_ACLS]})
        assert await write("t") == 0

    _run(main, brokers=1, topics=[TopicSpec("t"), TopicSpec("u")])


def test_invalid_acl_spec_names_its_error() -> None:
    of_cluster = AclSpec("User:ann", "CREATE", "CLUSTER").acl
    assert of_cluster == Acl(
        Resource.CLUSTER,
        "kafka-cluster",
        PatternType.LITERAL,
        "User:ann",
        "*",
        Operation.CREATE,
        Permission.ALLOW,
    )
    for wrong in (AclSpec("ann", "READ", "TOPIC", "t"), AclSpec("User:ann", "READ", "TOPIC")):
        with pytest.raises(Exception, match=r"AclSpec.*(User:ann|not empty)"):
            _ = wrong.acl
