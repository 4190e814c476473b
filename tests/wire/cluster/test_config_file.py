"""A cluster's config from a TOML file and from options, and the errors of a wrong one."""

from __future__ import annotations

import asyncio
import re
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from purgatory.cli import cluster_command
from purgatory.cli.main import main
from purgatory.cluster import (
    AclSpec,
    Authorization,
    Cluster,
    ClusterConfig,
    ClusterError,
    Fsync,
    GroupConfig,
    Listener,
    ThreadedCluster,
    Tls,
    TopicSpec,
)
from purgatory.cluster.config import (
    ControlConfig,
    ProcessConfig,
    config_problems,
    load_config,
)
from purgatory.cluster.protocol.memory_pool import Limits
from purgatory.cluster.server import Serving
from purgatory.kafka import LogConfig, TopicPartition, TransactionConfig
from purgatory.kafka.settings.group_settings import MigrationPolicy

_WHOLE = """
brokers = 2
first_broker_id = 0
host = "::1"
advertised_host = "kafka"
default_partitions = 4
auto_create_topics = false
min_insync_replicas = 2
follower_lag_ms = 0.5
data_dir = "data"
fsync = "always"
trace = "/traces"
metrics_port = 0
faults = "plan.toml"

[[topics]]
name = "orders"
partitions = 6
settings = { "cleanup.policy" = "compact", "segment.bytes" = "1048576" }

[[listeners]]
name = "TLS"
first_port = 9192
sasl = ["PLAIN", "SCRAM-SHA-512"]
tls = { certificate = "both.pem", client_ca = "/ca.pem", client_auth = "requested" }

[users]
ann = "secret"

[authorization]
super_users = ["User:admin"]
allow_everyone_if_no_acl_found = false

[[authorization.acls]]
principal = "User:ann"
operation = "READ"
resource_type = "TOPIC"
name = "orders"

[groups]
initial_rebalance_delay_ms = 0

[limits]
connections = 10

[control]
port = 0
token = "x"
"""

_BOTH = {"cleanup.policy": "compact,delete"}


def _file(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_and_python_make_equal_configs(tmp_path: Path) -> None:
    config = load_config(_file(tmp_path, _WHOLE))
    listener = Listener(
        "TLS",
        9192,
        tls=Tls(tmp_path / "both.pem", None, Path("/ca.pem"), "requested"),
        sasl=["PLAIN", "SCRAM-SHA-512"],
    )
    assert config == ProcessConfig(
        brokers=2,
        first_broker_id=0,
        host="::1",
        advertised_host="kafka",
        default_partitions=4,
        auto_create_topics=False,
        min_insync_replicas=2,
        follower_lag_ms=0.5,
        data_dir=tmp_path / "data",
        fsync=Fsync.ALWAYS,
        topics=[
            TopicSpec("orders", 6, None, {"cleanup.policy": "compact", "segment.bytes": "1048576"})
        ],
        listeners=[listener],
        users={"ann": "secret"},
        authorization=Authorization(
            super_users=["User:admin"],
            allow_everyone_if_no_acl_found=False,
            acls=[AclSpec("User:ann", "READ", "TOPIC", "orders")],
        ),
        groups=replace(ClusterConfig().groups, initial_rebalance_delay_ms=0),
        limits=replace(ClusterConfig().limits, connections=10),
        control=ControlConfig(0, token="x"),
        trace=Path("/traces"),
        metrics_port=0,
        faults=tmp_path / "plan.toml",
    )


def test_documented_example_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
    [example] = re.findall(r"--config.*?```toml\n(.*?)```", text, re.S)
    config = load_config(_file(tmp_path, example.replace("# tls =", "tls =")))
    assert [one.security_protocol for one in config.listeners] == ["PLAINTEXT", "SASL_SSL"]
    assert config.data_dir == tmp_path / "data"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brokrs = 3", r'brokrs = 3: there is no such key; did you mean "brokers"\? the keys here'),
        ('brokers = "3"', r'brokers = "3": must be a valid integer'),
        ("brokers = true", r"brokers = true: must be a valid integer"),
        ("brokers = 0", r"brokers = 0: must be at least 1"),
        ("first_broker_id = -1", r"first_broker_id = -1: must be at least 0"),
        ("default_partitions = 0", r"default_partitions = 0: must be at least 1"),
        ("default_replication = 4", r"default_replication = 4: must be from 1 to brokers, which i"),
        (
            "min_insync_replicas = 4",
            r"min_insync_replicas = 4: must be at most brokers, which is 3",
        ),
        ('topics = [{name="a/b"}]', r"topics\[0\]\.name: 'a/b' is no name of a topic: 1 to 249"),
        (
            'topics = [{name="__consumer_offsets"}]',
            r"topics\[0\]\.name: topic __consumer_offsets is the cluster's own, which creates it",
        ),
        (
            'topics = [{name="a.b"}, {name="a_b"}]',
            r"topics\[1\]\.name: topic a_b collides with topic a\.b",
        ),
        ("first_port = 65534", r"first_port = 65534: a port for each of 3 brokers is from 0"),
        ('fsync = "often"', r"fsync = \"often\": must be 'never' or 'always'"),
        ("data_dir = 3", r"data_dir = 3: must be"),
        ("transactions_partitions = 0", r"transactions_partitions = 0: must be at least 1"),
        ("offsets_partitions = 20_000", r"offsets_partitions = 20000: must be at most 10000"),
        ("default_partitions = 20_000", r"default_partitions = 20000: must be at most max_partit"),
        ("first_broker_id = 2147483647", r"first_broker_id = 2147483647: the ids of 3 brokers are"),
        ("follower_lag_ms = inf", r"follower_lag_ms = inf: must be at most 2147483647"),
        ("memory_bytes = 0", r"memory_bytes = 0: must be at least 1"),
        ("retention_ms = -2", r"retention_ms = -2: must be at least -1"),
        ('host = ""', r"host = \"\": must be a name or an address"),
        (
            'host = "0.0.0.0"',
            r"host = \"0\.0\.0\.0\": clients can't connect to that: advertised_host \(--adv",
        ),
        ('host = "::"', r"host = \"::\": clients can't connect to that"),
        ('advertised_host = "a:1"', r"advertised_host = \"a:1\": must be the name or address of a"),
        ("limits.idle_s = 0", r"limits\.idle_s = 0\.0: must be at least 0\.01"),
        ("limits.frame_s = nan", r"limits\.frame_s = nan: must be at least 0\.01"),
        ("limits.connections = 0", r"limits\.connections = 0: must be at least 1"),
        ("limits.frame_bytes = 3000000000", r"limits\.frame_bytes = 3000000000: must be at most"),
        ("log_config.segment_bytes = 0", r"log_config: internal\.segment\.bytes=0: it is at"),
        ("log_config.codec = 9", r"log_config\.codec = 9: must be at most 4"),
        (
            "log_config.codec = 1\nlog_config.codec_level = 99",
            r"log_config: compression\.gzip\.level=99: it is one of -1, 1",
        ),
        (
            "log_config.retention_bytes = -1",
            r"log_config\.retention_bytes = -1: must be at least 0",
        ),
        (
            "log_config.min_dirty_ratio = 7.0",
            r"log_config: min\.cleanable\.dirty\.ratio=7\.0: it is",
        ),
        ("transactions.retry_ms = 0", r"transactions\.retry_ms = 0: must be at least 1"),
        (
            "authorization.alter_timeout_ms = -1",
            r"authorization\.alter_timeout_ms = -1: must be at",
        ),
        (
            'authorization.super_users = ["ann"]',
            r"authorization\.super_users\[0\] = \"ann\": must be as in User:ann",
        ),
        (
            "groups.max_session_timeout_ms = 5",
            r"groups\.min_session_timeout_ms = 6000: must be at most max_session_timeout_ms, which",
        ),
        (
            "groups.share_delivery_count_limit = 40_000",
            r"groups\.share_delivery_count_limit = 40000: must be at most 32767",
        ),
        ("control.port = 70000", r"control\.port = 70000: must be at most 65535"),
        ("metrics_port = -1", r"metrics_port = -1: must be at least 0"),
        ('listeners = [{name=""}]', r"listeners\[0\]\.name = \"\": a listener has a name"),
        ("groups = 3", r"groups = 3: must be a table of keys"),
        (
            'groups.consumer_migration_policy = "both"',
            r"groups\.consumer_migration_policy = \"both\": must be .*bidirectional",
        ),
        ("groups.max = 3", r"groups\.max = 3: there is no such key; .*max_size"),
        ("topics = [{}]", r"topics\[0\]\.name: this key is missing and must be given"),
        (
            "groups.share_delivery_count_limit = 0",
            r"groups\.share_delivery_count_limit = 0: must be at least 1",
        ),
        (
            'topics = [{name="a", settings={"retention.ms"="soon"}}]',
            r"topics\[0\]\.settings: retention\.ms=soon: it is a whole number",
        ),
        (
            'topics = [{name="a", settings={"remote.storage.enable"="true"}}]',
            r"topics\[0\]\.settings: .*There is no remote tier",
        ),
        ('topics = [{name="a", settings={"x"=1}}]', r"topics\[0\]\.settings\.x = 1: must be"),
        ('topics = [{name="a", partitions=0}]', r"topics\[0\]\.partitions = 0: must be at least 1"),
        ('topics = [{name="a"}, {name="a"}]', r"topics\[1\]\.name = \"a\": is there twice"),
        (
            'topics = [{name="a", replication=4}]',
            r"topics\[0\]\.replication = 4: must be from 1 to brokers, which is 3",
        ),
        ('listeners = [{name="a"}, {name="a"}]', r"listeners\[1\]\.name = \"a\": is there twice"),
        (
            'listeners = [{name="a", first_port=9000}, {name="b", first_port=9002}]',
            r"listeners\[1\]\.first_port = 9002: port 9002 is one of listener a, too",
        ),
        ('listeners = [{name="a", sasl=["X"]}]', r"listeners\[0\]\.sasl\[0\] = \"X\": must be 'PL"),
        ('users.a = "b"\n[[listeners]]\nname="l"', r"users = \"a\": no listener asks for them"),
        ('users."" = "b"', r"users = \"\": a user has a name"),
        (
            '[[authorization.acls]]\nprincipal="ann"\noperation="READ"\nresource_type="GROUP"',
            r"authorization\.acls\[0\]: .*as in User:ann",
        ),
        ("brokers = 2020-01-01", r"brokers = \"2020-01-01\": must be a valid integer"),
        ("brokers", r"not a TOML document"),
    ],
)
def test_errors_name_the_key_and_the_valid_values(tmp_path: Path, text: str, said: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(ClusterError, match=f"^{re.escape(str(path))}: {said}"):
        load_config(path)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    path = _file(
        tmp_path, "brokers = 0\nmax_partitions = 0\n[[topics]]\nname = 'a'\npartitions = 0"
    )
    with pytest.raises(ClusterError) as caught:
        load_config(path)
    assert len(str(caught.value).splitlines()) == 3


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ClusterError, match="can't be read"):
            load_config(path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterError, match="can't be read"):
        load_config(binary)


@pytest.mark.parametrize(
    "config",
    [
        ClusterConfig(brokers=0),
        ClusterConfig(first_broker_id=-1),
        ClusterConfig(brokers=1, min_insync_replicas=2),
        ClusterConfig(listeners=[Listener("a", sasl=["X"])]),  # type: ignore[list-item]
        ClusterConfig(topics=[TopicSpec("a"), TopicSpec("a")]),
        ClusterConfig(follower_lag_ms="1s"),  # type: ignore[arg-type]
        ClusterConfig(replica_max_lag_ms=timedelta(seconds=-1)),
        ClusterConfig(groups=GroupConfig(min_session_timeout_ms=timedelta(0))),
        ClusterConfig(topics=["orders"]),  # type: ignore[list-item]
        ClusterConfig(topics="orders"),  # type: ignore[arg-type]
        ClusterConfig(listeners=[9092]),  # type: ignore[list-item]
        ClusterConfig(groups={"min_session_timeout_ms": 1}),  # type: ignore[arg-type]
        ClusterConfig(tls="cert.pem"),  # type: ignore[arg-type]
        ClusterConfig(brokers="3"),  # type: ignore[arg-type]
    ],
)
def test_python_raises_the_same_errors(config: ClusterConfig) -> None:
    with pytest.raises(ClusterError, match=r"^config: .*: (must be|is there twice|mechanisms are)"):
        Cluster(config)


# ---- on the command line


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Serving]:
    """The arguments of `serve`, in place of serving."""
    taken: list[Serving] = []
    monkeypatch.setattr(cluster_command, "_run", lambda serving, *_: taken.append(serving))
    return taken


def _config(served: list[Serving], *arguments: Any) -> ClusterConfig:
    assert main(["cluster", *map(str, arguments)]) == 0
    return served[-1].config


def test_options_override_the_file_and_the_file_defaults(
    served: list[Serving], tmp_path: Path
) -> None:
    path = _file(
        tmp_path, "brokers = 2\nreplica_max_lag_ms = 5\ngroups.max_size = 9\ncontrol.port = 1"
    )
    config = _config(served, "--config", path, "--brokers", 1, "--group-delay", "1s")
    assert (config.brokers, config.replica_max_lag_ms) == (1, 5)
    groups = config.groups
    assert (groups.max_size, groups.initial_rebalance_delay_ms) == (9, 1_000)
    assert (config.first_port, groups.min_session_timeout_ms) == (9092, 6_000), "the defaults"
    assert (served[-1].control_port, served[-1].control_host) == (1, "127.0.0.1")


def test_migration_policy_is_read_by_its_name(served: list[Serving], tmp_path: Path) -> None:
    path = _file(tmp_path, 'groups.consumer_migration_policy = "upgrade"')
    policy = _config(served, "--config", path).groups.consumer_migration_policy
    assert policy is MigrationPolicy.UPGRADE
    groups = GroupConfig(consumer_migration_policy="both")  # type: ignore[arg-type]
    problems = config_problems(ClusterConfig(groups=groups))
    assert [problem.key for problem in problems] == ["groups.consumer_migration_policy"]


def test_options_set_the_cluster_config(served: list[Serving]) -> None:
    config = _config(
        served,
        *("--default-partitions", 4, "--default-replication", 2),
        *("--no-auto-create", "--first-broker-id", 0),
        *("--topic", "orders:6", "--user", "ann:secret", "--tls-cert", "c.pem"),
        *("--tls-client-ca", "ca.pem", "--listener", "PLAINTEXT:9092", "--listener", "SSL:9192"),
        *("--listener", "SASL_SSL:0", "--memory-mb", 64, "--fsync", "always"),
        *("--realistic-delays", "--kafka-version", "2.8"),
    )
    assert (config.realistic_delays, config.kafka_version) == (True, "2.8")
    assert (config.default_partitions, config.default_replication) == (4, 2)
    assert config.auto_create_topics is False
    assert list(config.broker_ids) == [0, 1, 2]
    assert config.topics == [TopicSpec("orders", 6)]
    assert config.users == {"ann": "secret"}
    plain, tls, both = config.listeners
    assert [one.security_protocol for one in config.listeners] == ["PLAINTEXT", "SSL", "SASL_SSL"]
    assert [one.first_port for one in config.listeners] == [9092, 9192, 0]
    assert tls.tls == both.tls == Tls(Path("c.pem"), None, Path("ca.pem"))
    assert plain.tls is None
    assert (config.memory_bytes, config.fsync) == (64 * 1024 * 1024, Fsync.ALWAYS)


def test_defaults_are_the_same_in_python_and_on_the_command_line(
    served: list[Serving],
) -> None:
    config, plain = _config(served), ClusterConfig()
    assert config.replica_max_lag_ms == 30_000, "as Kafka's replica.lag.time.max.ms"
    for one in fields(ClusterConfig):
        if one.name not in ("first_port", "topics", "listeners"):  # a port is said, nothing else
            assert getattr(config, one.name) == getattr(plain, one.name), one.name


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a", TopicSpec("a")),
        ("a:2:1", TopicSpec("a", 2, 1)),
        ("a:cleanup.policy=compact,delete", TopicSpec("a", settings=_BOTH)),
        ("a:6:cleanup.policy=compact,delete", TopicSpec("a", 6, settings=_BOTH)),
        (
            "a:6:3:cleanup.policy=compact,delete:retention.ms=-1",
            TopicSpec("a", 6, 3, {**_BOTH, "retention.ms": "-1"}),
        ),
    ],
)
def test_a_topic_may_have_settings(served: list[Serving], text: str, spec: TopicSpec) -> None:
    assert _config(served, "--topic", text).topics == [spec]


def test_options_set_share_group_config(served: list[Serving]) -> None:
    given = {"session": "1s", "heartbeat": "250ms", "lock": "2s"}
    counts = {"deliveries": 3, "max-locks": 7, "max-size": 2}
    options = [(f"--group-share-{name}", value) for name, value in {**given, **counts}.items()]
    groups = _config(served, *(word for option in options for word in option)).groups
    assert groups == replace(
        ClusterConfig().groups,
        share_session_timeout_ms=1_000,
        share_heartbeat_interval_ms=250,
        share_record_lock_duration_ms=2_000,
        share_delivery_count_limit=3,
        share_partition_max_record_locks=7,
        share_max_size=2,
    )
    assert _config(served).groups == ClusterConfig().groups


def test_times_of_a_config_may_be_timedeltas() -> None:
    config = ClusterConfig(
        follower_lag_ms=timedelta(microseconds=500),
        retention_ms=timedelta(days=1),
        authorization=Authorization(alter_timeout_ms=timedelta(seconds=1)),
        groups=GroupConfig(initial_rebalance_delay_ms=timedelta(0)),
        transactions=TransactionConfig(retry_ms=timedelta(milliseconds=5)),
        log_config=LogConfig(segment_ms=timedelta(hours=1)),
        limits=Limits(idle_s=timedelta(minutes=1)),
    )
    assert config == ClusterConfig(
        follower_lag_ms=0.5,
        retention_ms=86_400_000,
        authorization=Authorization(alter_timeout_ms=1_000),
        groups=GroupConfig(initial_rebalance_delay_ms=0),
        transactions=TransactionConfig(retry_ms=5),
        log_config=LogConfig(segment_ms=3_600_000),
        limits=Limits(idle_s=60),
    )
    assert replace(config, replica_max_lag_ms=timedelta(seconds=3)).replica_max_lag_ms == 3_000


def test_times_of_a_topic_may_be_timedeltas() -> None:
    spec = TopicSpec("a", settings={"retention.ms": timedelta(hours=1)})
    with ThreadedCluster(ClusterConfig(brokers=1, topics=[spec])) as cluster:
        cluster.create_topic("b", settings={"segment.ms": timedelta(seconds=2)})
        topics = cluster.running.controller.topics
        assert topics["a"].configs == {"retention.ms": "3600000"}
        assert topics["b"].configs == {"segment.ms": "2000"}
        with pytest.raises(ClusterError, match=r"segment\.bytes=.*settings in milliseconds"):
            cluster.create_topic("c", settings={"segment.bytes": timedelta(seconds=2)})


def test_topics_of_the_config_have_their_settings() -> None:
    async def main() -> None:
        spec = TopicSpec("a", settings=_BOTH)
        async with Cluster(ClusterConfig(brokers=1, topics=[spec])) as cluster:
            assert cluster.controller.topics["a"].configs == _BOTH
            partition = cluster.brokers[1].manager.partition(TopicPartition("a", 0))
            assert partition is not None
            assert partition.log.config.compacts

    asyncio.run(main())


def test_create_topic_in_python_refuses_invalid_settings() -> None:
    config = ClusterConfig(brokers=1)
    with ThreadedCluster(config) as cluster:
        for settings in ({"retention.ms": "soon"}, {"remote.storage.enable": "true"}):
            with pytest.raises(ClusterError, match=next(iter(settings))):
                cluster.create_topic("a", settings=settings)
        cluster.create_topic("a", settings=_BOTH)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "a:b"], "write NAME[:PARTITIONS[:REPLICAS]][:SETTING=VALUE]..., as in"),
        (["--topic", "a:1:retention.hours=1"], "topics[0].settings: Unknown topic config name"),
        (["--group-share-deliveries", "0"], "--group-share-deliveries"),
        (["--listener", "HTTP:80"], "write PROTOCOL:PORT, with one of PLAINTEXT, SSL"),
        (["--listener", "SSL:x"], "write PROTOCOL:PORT"),
        (["--listener", "PLAINTEXT:\u00b2"], "write PROTOCOL:PORT"),
        (["--topic", "a:\u00b2"], "write NAME[:PARTITIONS[:REPLICAS]]"),
        (["--listener", "SSL:80"], "needs --tls-cert"),
        (["--tls-client-ca", "x"], "--tls-client-ca without --tls-cert"),
        (["--topic", "a", "--topic", "a"], 'the options: topics[1].name = "a": is there twice'),
        (["--topic", "a/b"], "topics[0].name: 'a/b' is no name of a topic"),
        (["--topic", "a.b", "--topic", "a_b"], "topic a_b collides with topic a.b"),
        (["--brokers", "1", "--min-insync", "2"], "min_insync_replicas = 2: must be at most brok"),
        (["--default-replication", "4"], "default_replication = 4: must be from 1 to brokers"),
        (["--config", "/none.toml"], "/none.toml: can't be read"),
    ],
)
def test_invalid_options_are_named(
    served: list[Serving], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["cluster", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not served
