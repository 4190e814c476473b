"""A group of confluent-kafka's consumers goes from one protocol to the other and back, member by
member: no record is lost, and no partition is two members' at once."""

from __future__ import annotations

import signal

from purgatory.cluster import ThreadedCluster
from tests.cluster.conftest import coordinator_of
from tests.cluster.group_run import GroupRun, Worker, group_run
from tests.cluster.test_clients_consumer_protocol import CLIENT, cluster
from tests.cluster.test_clients_group_changes import PARTITIONS, SteadyProducer

__all__ = ["cluster"]

CLASSIC = "confluent-kafka"
SESSION_MS = 6_000


def kinds(cluster: ThreadedCluster, group: str) -> set[str]:
    """Return as what kinds of group the coordinator has it."""
    groups = cluster.running.brokers[coordinator_of(cluster, group)].groups
    is_there = {"classic": group in groups.groups, "consumer": group in groups.consumers.groups}
    return {kind for kind, there in is_there.items() if there}


def roll(group: GroupRun, members: list[Worker], client: str) -> list[Worker]:
    """Put other members in the place of these, one after the other."""
    for old in list(members):
        old.signal(signal.SIGTERM)
        assert old.wait() == 0, old.errors
        members = [*(one for one in members if one is not old), group.start(client)]
        group.wait_for_shares(*members, partitions=PARTITIONS)
    return members


def test_a_group_changes_its_protocol_member_by_member_and_changes_it_back(
    cluster: ThreadedCluster, name: str
) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    with group_run(servers, name, name, SESSION_MS) as group:
        producer = SteadyProducer(servers, name)
        try:
            members = [group.start(CLASSIC), group.start(CLASSIC)]
            group.wait_for_shares(*members, partitions=PARTITIONS)
            assert kinds(cluster, name) == {"classic"}
            members = roll(group, members, CLIENT)
            assert kinds(cluster, name) == {"consumer"}
            members = roll(group, members, CLASSIC)
            assert kinds(cluster, name) == {"classic"}
        finally:
            sent = producer.end()
        group.wait_for(lambda: sent <= group.read, f"all {len(sent)} records are read")
        assert group.read == sent
        assert group.gaps() == []
        assert group.doubles() == []


def test_members_of_both_protocols_go_on_when_the_coordinator_dies(
    cluster: ThreadedCluster, name: str
) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    with group_run(servers, name, name, SESSION_MS) as group:
        producer = SteadyProducer(servers, name)
        try:
            one, two, three = group.start(CLASSIC), group.start(CLIENT), group.start("aiokafka")
            group.wait_for_shares(one, two, three, partitions=PARTITIONS)
            assert kinds(cluster, name) == {"consumer"}
            with cluster.fault.kill(coordinator_of(cluster, name)):
                before = len(group.read)
                group.wait_for(lambda: len(group.read) > before + 200, "they read on")
                group.wait_for_shares(one, two, three, partitions=PARTITIONS)
                two.signal(signal.SIGKILL)
                two.wait()
                group.wait_for_shares(one, three, partitions=PARTITIONS)
                assert kinds(cluster, name) == {"classic"}
        finally:
            sent = producer.end()
        group.wait_for(lambda: sent <= group.read, f"all {len(sent)} records are read")
        assert group.read == sent
        assert group.gaps() == []
