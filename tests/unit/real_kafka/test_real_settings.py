"""A cluster's configuration as the settings of a real Kafka's brokers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from purgatory.cluster import (
    Authorization,
    ClusterConfig,
    ClusterError,
    GroupConfig,
    ThreadedCluster,
)
from purgatory.cluster.listeners import Listener, Tls
from purgatory.kafka import LogConfig, TransactionConfig
from purgatory.pytest_plugin import kafka_cluster_config
from purgatory.real_kafka import KafkaFiles, OnlyOursError, ThreadedRealKafka
from purgatory.real_kafka.faults import REFUSALS
from purgatory.real_kafka.settings import (
    Ports,
    broker_settings,
    check_config,
    controllers,
    properties_text,
    quoted,
    scram_arguments,
)


def settings_of(config: ClusterConfig, broker_id: int = 1) -> Mapping[str, str]:
    clients = range(len(config.all_listeners))
    ports = {
        one: Ports(7000 + one, 8000 + one, [9000 + 100 * place + one for place in clients])
        for one in config.broker_ids
    }
    return broker_settings(config, broker_id, ports, Path("/logs"), "secret")


def test_brokers_have_a_listener_for_clients_and_two_more() -> None:
    settings = settings_of(ClusterConfig(), 2)
    assert settings["listeners"] == (
        "CLIENTS0://127.0.0.1:9002,INTERNAL://127.0.0.1:7002,CONTROLLER://127.0.0.1:8002"
    )
    assert settings["controller.quorum.voters"] == (
        "1@127.0.0.1:8001,2@127.0.0.1:8002,3@127.0.0.1:8003"
    )
    assert (settings["node.id"], settings["log.dirs"]) == ("2", "/logs")
    assert settings["listener.security.protocol.map"] == (
        "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,CLIENTS0:PLAINTEXT"
    )


@pytest.mark.parametrize(("brokers", "expected"), [(1, 1), (2, 1), (3, 3), (4, 3), (6, 3)])
def test_controllers_are_an_odd_number(brokers: int, expected: int) -> None:
    config = ClusterConfig(brokers=brokers)
    assert len(controllers(config)) == expected
    last = settings_of(config, brokers)
    assert ("controller" in last["process.roles"]) == (brokers == expected)
    assert ("CONTROLLER" in last["listeners"]) == (brokers == expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ClusterConfig(min_insync_replicas=2), {"min.insync.replicas": "2"}),
        (ClusterConfig(default_partitions=6), {"num.partitions": "6"}),
        (ClusterConfig(auto_create_topics=False), {"auto.create.topics.enable": "false"}),
        (ClusterConfig(retention_ms=60_000), {"log.retention.ms": "60000"}),
        (ClusterConfig(replica_max_lag_ms=500), {"replica.lag.time.max.ms": "500"}),
        (
            ClusterConfig(log_config=LogConfig(segment_bytes=1 << 21)),
            {"log.segment.bytes": "2097152"},
        ),
        (
            ClusterConfig(transactions=TransactionConfig(max_timeout_ms=9_000)),
            {"transaction.max.timeout.ms": "9000"},
        ),
        (
            ClusterConfig(groups=GroupConfig(consumer_heartbeat_interval_ms=200)),
            {
                "group.consumer.heartbeat.interval.ms": "200",
                "group.consumer.min.heartbeat.interval.ms": "200",
            },
        ),
        (ClusterConfig(racks=["a", "b", "c"]), {"broker.rack": "a"}),
        (ClusterConfig(brokers=1), {"transaction.state.log.replication.factor": "1"}),
    ],
)
def test_settings_have_kafkas_names(config: ClusterConfig, expected: Mapping[str, str]) -> None:
    settings = settings_of(config)
    assert {name: settings[name] for name in expected} == expected


def test_fixtures_configuration_is_one_of_a_real_kafka() -> None:
    config: ClusterConfig = kafka_cluster_config.__wrapped__()  # type: ignore[attr-defined]
    check_config(config)
    assert settings_of(config)["group.initial.rebalance.delay.ms"] == "0"


def test_users_log_in_by_the_configured_mechanisms() -> None:
    config = ClusterConfig(
        listeners=[Listener("OPEN"), Listener("LOGIN", sasl=["PLAIN", "SCRAM-SHA-256"])],
        users={"ann": 'a"b'},
    )
    settings = settings_of(config)
    assert (
        "CLIENTS0:PLAINTEXT,CLIENTS1:SASL_PLAINTEXT" in settings["listener.security.protocol.map"]
    )
    login = "listener.name.clients1"
    assert settings[f"{login}.sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-256"
    assert settings[f"{login}.plain.sasl.jaas.config"].endswith(r' required user_ann="a\"b";')
    assert "ScramLoginModule" in settings[f"{login}.scram-sha-256.sasl.jaas.config"]
    assert scram_arguments(config) == [
        "--add-scram",
        r'SCRAM-SHA-256=[name="ann",password="a\"b"]',
    ]


def test_access_control_lists_spare_this_programs_user() -> None:
    guarded = ClusterConfig(
        authorization=Authorization(["User:ann"], allow_everyone_if_no_acl_found=False)
    )
    settings = settings_of(guarded)
    assert settings["super.users"] == "User:purgatory-admin;User:ann"
    assert settings["allow.everyone.if.no.acl.found"] == "false"
    assert "authorizer.class.name" not in settings_of(ClusterConfig(authorization=None))


TLS = Tls(Path("brokers.pem"), client_ca=Path("ca.pem"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (ClusterConfig(follower_lag_ms=5), "follower_lag_ms=5: not with a real Kafka"),
        (ClusterConfig(memory_bytes=1 << 26), "memory_bytes"),
        (ClusterConfig(transactions=TransactionConfig(retry_ms=1)), r"transactions\.retry_ms=1"),
        (ClusterConfig(tls=TLS), r"client_ca=ca\.pem"),
    ],
)
def test_what_only_ours_can_do_is_refused_by_name(config: ClusterConfig, named: str) -> None:
    with pytest.raises(OnlyOursError, match=named) as raised:
        check_config(config)
    assert isinstance(raised.value, ClusterError)
    assert "\n" not in str(raised.value)


def test_invalid_configuration_is_refused_as_by_ours() -> None:
    with pytest.raises(ClusterError, match="brokers = 0: must be at least 1"):
        check_config(ClusterConfig(brokers=0))


def test_listener_with_tls_alone_is_one_of_the_proxy() -> None:
    check_config(ClusterConfig(tls=Tls(Path("brokers.pem"))))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a=b:c", "a=b:c"),
        ("a\\b", "a\\\\b"),
        (" a", "\\ a"),
        ("ä\n", "\\u00e4\\n"),
        ("𝄞", "\\ud834\\udd1e"),
    ],
)
def test_values_are_written_as_java_reads_them(value: str, written: str) -> None:
    assert properties_text({"key": value}) == f"key={written}\n"


def test_quoted_text_ends_at_its_own_quote() -> None:
    assert quoted('a"\\') == '"a\\"\\\\"'


def test_faults_that_are_refused_are_those_inside_brokers() -> None:
    inside = {"stall_follower", "slow_follower", "shrink_isr", "cut_link", "jump_clock"}
    assert set(REFUSALS) == inside


def test_each_method_of_our_cluster_is_there_or_refused() -> None:
    """None is missing in silence: a test of the fixture skips with the reason."""
    files = KafkaFiles("4.3.1", Path("libs"), Path("java"))
    ours, real = ThreadedCluster(), ThreadedRealKafka(files)
    refused = set()
    for name in (one for one in {*dir(ours), *vars(ours)} if not one.startswith("_")):
        if name in {*dir(ThreadedRealKafka), *vars(real)}:
            continue
        with pytest.raises(OnlyOursError, match=f"{name}: not with a real Kafka: "):
            getattr(real, name)
        refused.add(name)
    assert refused == {"move", "add_broker", "remove_broker"}
    with pytest.raises(AttributeError, match="no attribute 'reqests'"):
        real.reqests  # noqa: B018
