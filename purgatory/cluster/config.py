"""The configuration of a cluster: `ClusterConfig`, its checks, and its TOML file.

    brokers = 3
    auto_create_topics = false

    [[topics]]
    name = "orders"
    partitions = 6

Ground rules: relative paths in a file start at its folder.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from purgatory.cluster.listeners import MAX_PORT, MECHANISMS, Endpoint, Listener, Tls
from purgatory.cluster.protocol.memory_pool import Limits
from purgatory.cluster.storage import Fsync
from purgatory.kafka import GroupConfig, LogConfig, TransactionConfig
from purgatory.kafka.errors import ClusterError, KafkaError
from purgatory.kafka.kafka_versions import KAFKA_VERSIONS, NEWEST_KAFKA, former_default
from purgatory.kafka.log.log import CODECS
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
from purgatory.kafka.settings.group_settings import MigrationPolicy
from purgatory.kafka.settings.topic_settings import settings_of_log, validate_settings
from purgatory.kafka.topics import topic_creation_error
from purgatory.settings.addresses import is_anywhere, is_host, without_brackets
from purgatory.settings.plain_values import NotPlainError, plain_value
from purgatory.settings.problems import (
    ABSENT,
    Problem,
    hint_at_arguments,
    key_text,
    no_such_key,
    right_value,
)
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True)
class AclSpec:
    """An access control entry that the cluster starts with.

    Args:
        principal: a client, such as "User:ann"; "User:*" for all.
        operation: the operation by Kafka's name; "ALL" for all.
        resource_type: the type of the resource.
        name: its name; "*" for all of its type. The cluster needs none.
        pattern_type: "PREFIXED": ``name`` is a prefix of the names.
        host: the client's address; "*" for all.
        permission: whether the operation is allowed or denied.
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
            ClusterError: the entry is invalid.
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
        error_message = check_acl(acl)
        if error_message is not None:
            raise ClusterError(f"{self}: {error_message}")
        return acl


@timed_dataclass
class Authorization:
    """The configuration of the authorizer.

    Args:
        super_users: principals that may do everything, such as "User:admin".
        allow_everyone_if_no_acl_found: whether all clients may use resources without an entry.
            Kafka's default is False; here a cluster allows everything until entries are made.
        acls: the entries at the start.
        alter_timeout_ms: the longest time of a change until all brokers apply it.
    """

    super_users: Sequence[str] = ()
    allow_everyone_if_no_acl_found: bool = True
    acls: Sequence[AclSpec] = ()
    alter_timeout_ms: OrTimedelta[int] = default(30_000)


if TYPE_CHECKING:
    TopicSettings = Mapping[str, str | timedelta]
else:
    TopicSettings = Mapping[str, str]  # in a file


@hint_at_arguments()
@dataclass(frozen=True)
class TopicSpec:
    """A topic that the cluster starts with.

    Args:
        name: letters, digits, dots, dashes and underscores.
        partitions: the number of partitions, at least 1.
        replication: the replication factor; None: the cluster's default.
        settings: the topic's settings by Kafka's names: ``{"cleanup.policy": "compact"}``; those in
            milliseconds may be timedeltas.
    """

    name: str
    partitions: int = 1
    replication: int | None = None
    settings: TopicSettings = field(default_factory=dict)


@timed_dataclass
class ClusterConfig:
    """The configuration of a cluster.

    Args:
        brokers: the number of brokers.
        first_broker_id: the id of the first; the others have the ids after it.
        host: the host of their listener.
        advertised_host: the host that clients are given; None: ``host``. Its ports are the same.
        first_port: the port of the first broker; the others have the ports after it. 0: the system
            chooses.
        tls: the TLS files of that listener; None: plain connections.
        listeners: several listeners instead; ``Cluster.bootstrap_servers`` names the first. Without
            any, there is one, by ``host``, ``first_port``, ``tls`` and ``users``.
        racks: the rack of each broker, in their order; empty: unknown. Consumers with a rack read
            from a replica in it.
        topics: created at the start, unless the data folder has them.
        min_insync_replicas: the in-sync replicas that acks=all and commits need; of a topic with
            fewer replicas, all.
        follower_lag_ms: the delay of a follower's append.
        replica_max_lag_ms: a follower that did not catch up for so long leaves the ISR.
        auto_leader_rebalance: whether preferred leaders that are in sync are elected regularly.
        leader_imbalance_check_s: how often.
        auto_create_topics: whether a request for an unknown topic creates it.
        default_partitions: the partitions of topics that are created without a number.
        default_replication: their replication factor; None: three, or the number of brokers.
        max_partitions: the most partitions of all topics that clients create.
        offsets_partitions: the partitions of ``__consumer_offsets``.
        transactions_partitions: those of ``__transaction_state``.
        share_state_partitions: those of ``__share_group_state``.
        groups: the limits of groups.
        transactions: the limits of transactional ids.
        users: passwords by user, for SASL; None: clients authenticate only where ``listeners``
            have mechanisms.
        authorization: of clients; None: everything is allowed, and requests about access control
            lists are refused.
        data_dir: where logs and metadata are kept; None keeps them in memory.
        fsync: when files there are forced onto the disk.
        memory_bytes: the limit of all brokers' logs together, where they are in memory; a batch
            that exceeds it is refused.
        retention_ms: how long records are kept; -1: for ever; None: as in ``log_config``, a week.
        log_config: segments and retention.
        limits: the limits of clients.
        realistic_delays: whether brokers are some milliseconds behind, as those of a real Kafka:
            clients see errors that they have to retry, old settings, and batches that are cut.
        kafka_version: the Kafka whose versions of APIs, features and defaults it has: "0.11",
            "1.1", "2.0", "2.8", "3.0", "3.9", "4.0" or "4.3".
    """

    brokers: int = 3
    first_broker_id: int = 1
    host: str = "127.0.0.1"
    advertised_host: str | None = None
    first_port: int = 0
    tls: Tls | None = None
    listeners: Sequence[Listener] = ()
    racks: Sequence[str] = ()
    topics: Sequence[TopicSpec] = ()
    min_insync_replicas: int = 1
    follower_lag_ms: OrTimedelta[float] = default(0)
    replica_max_lag_ms: OrTimedelta[int] = default(30_000)
    auto_leader_rebalance: bool = True
    leader_imbalance_check_s: OrTimedelta[float] = default(300)
    auto_create_topics: bool = True
    default_partitions: int = 1
    default_replication: int | None = None
    max_partitions: int = 10_000
    offsets_partitions: int = 4
    transactions_partitions: int = 4
    share_state_partitions: int = 4
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    users: Mapping[str, str] | None = None
    authorization: Authorization | None = field(default_factory=Authorization)
    data_dir: Path | None = None
    fsync: Fsync = Fsync.NEVER
    memory_bytes: int = 1024 * 1024 * 1024
    retention_ms: OrTimedelta[int | None] = default(None)
    log_config: LogConfig = field(default_factory=LogConfig)
    limits: Limits = field(default_factory=Limits)
    realistic_delays: bool = False
    kafka_version: str = NEWEST_KAFKA

    @property
    def broker_ids(self) -> range:
        """The ids of all brokers."""
        return range(self.first_broker_id, self.first_broker_id + self.brokers)

    def setting(self, name: str) -> str | None:
        """Return the configured value of a topic setting, as text, or None."""
        forces = self.data_dir is not None and self.fsync is Fsync.ALWAYS
        own = {
            "min.insync.replicas": self.min_insync_replicas,
            "retention.ms": self.retention_ms,
            "flush.messages": 1 if forces else None,
        }
        value = own.get(name)
        if value is not None:
            return str(value)
        configured = self._settings_of_logs.get(name)
        return former_default(self.kafka_version, name) if configured is None else configured

    @cached_property
    def _settings_of_logs(self) -> Mapping[str, str]:
        return settings_of_log(self.log_config)

    def rack(self, broker_id: int) -> str | None:
        """Return a broker's rack; None: unknown."""
        place = broker_id - self.first_broker_id  # brokers that were added have none
        return self.racks[place] if place < len(self.racks) else None

    @property
    def all_listeners(self) -> Sequence[Listener]:
        """The listeners that each broker has, at least one."""
        if self.listeners:
            return self.listeners
        sasl = MECHANISMS if self.users is not None else ()
        return (Listener("CLIENTS", self.first_port, tls=self.tls, sasl=sasl),)

    def endpoint(self, listener: Listener, broker_id: int) -> Endpoint:
        """Return the address of a broker's listener; with port 0 the system chooses one."""
        port = listener.first_port and listener.first_port + broker_id - self.first_broker_id
        return Endpoint(without_brackets(listener.host or self.host), port)

    def told_host(self, listener: Listener) -> str:
        """Return the host of a listener that clients are given."""
        advertised = listener.advertised_host or self.advertised_host
        return without_brackets(advertised or listener.host or self.host)


# Checks beyond the types of values.


def config_problems(config: ClusterConfig) -> Iterator[Problem]:
    """Yield all problems of a configuration."""
    if of_other_classes := list(_classes(config)):
        yield from of_other_classes
        return
    yield from _bounds(config)
    yield from _topics(config)
    yield from _listeners(config)
    yield from _users(config)
    if config.authorization is not None:
        yield from _out_of_bounds(config, {"authorization.alter_timeout_ms": (0, _INT)})
        for number, user in enumerate(config.authorization.super_users):
            if ":" not in user:
                yield Problem(
                    f"authorization.super_users[{number}]", user, "must be as in User:ann"
                )
        for number, spec in enumerate(config.authorization.acls):
            try:
                _ = spec.acl
            except ClusterError as error:
                yield Problem(f"authorization.acls[{number}]", ABSENT, str(error))


def _classes(config: ClusterConfig) -> Iterator[Problem]:
    """Yield what a program gave in place of an object, since no other check can run on that."""
    default = type(config)()
    for part in fields(config):
        known, value = getattr(default, part.name), getattr(config, part.name)
        if part.name in _OR_NONE and value is None:
            continue
        if is_dataclass(known) and not isinstance(value, type(known)):
            yield Problem(part.name, value, f"must be of the class {type(known).__name__}")
        elif isinstance(known, int | float) and not isinstance(value, int | float):
            yield Problem(part.name, value, "must be a number")
    tls: Any = config.tls
    if tls is not None and not isinstance(tls, Tls):
        yield Problem("tls", tls, "must be of the class Tls")
    for name, kind, example in (
        ("topics", TopicSpec, 'TopicSpec("orders")'),
        ("listeners", Listener, 'Listener("CLIENTS")'),
    ):
        items = getattr(config, name)
        if isinstance(items, str) or not isinstance(items, Sequence):
            yield Problem(name, items, f"must be a list, as [{example}]")
            continue
        for number, item in enumerate(items):
            if not isinstance(item, kind):
                yield Problem(f"{name}[{number}]", item, f"must be as {example}")


_INT, _LONG = 2**31 - 1, 2**63 - 1
_MAX_INTERNAL_PARTITIONS = 10_000
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "brokers": (1, _INT),
    "first_broker_id": (0, _INT),
    "default_partitions": (1, _INT),
    "max_partitions": (1, _INT),
    "offsets_partitions": (1, _MAX_INTERNAL_PARTITIONS),
    "transactions_partitions": (1, _MAX_INTERNAL_PARTITIONS),
    "share_state_partitions": (1, _MAX_INTERNAL_PARTITIONS),
    "min_insync_replicas": (1, _INT),
    "follower_lag_ms": (0, _INT),
    "replica_max_lag_ms": (1, _LONG),
    "leader_imbalance_check_s": (0.01, _INT),
    "memory_bytes": (1, _LONG),
    "retention_ms": (-1, _LONG),
    "log_config.retention_bytes": (0, _LONG),
    "log_config.retention_ms": (0, _LONG),
    "log_config.codec": (0, len(CODECS) - 1),
    **{
        f"groups.{group_field.name}": (1, _INT)
        for group_field in fields(GroupConfig)
        if group_field.name != "consumer_migration_policy"
    },
    **{
        f"groups.{name}": (0, _INT)
        for name in (
            "initial_rebalance_delay_ms",
            "streams_initial_rebalance_delay_ms",
            "streams_num_standby_replicas",
        )
    },
    "groups.offsets_retention_ms": (1, _INT * 60_000),
    "groups.offsets_retention_check_interval_ms": (1, _LONG),
    "groups.share_delivery_count_limit": (1, 2**15 - 1),
    "transactions.max_timeout_ms": (1, _INT),
    "transactions.id_expiration_ms": (1, _LONG),
    "transactions.marker_wait_ms": (0, _INT),
    "transactions.retry_ms": (1, _INT),
    "limits.frame_bytes": (1, _INT),
    "limits.queued_bytes": (1, _LONG),
    "limits.held_bytes": (1, _LONG),
    "limits.connections": (1, _INT),
    # Idle connections are checked ten times within this time.
    "limits.frame_s": (0.01, _INT),
    "limits.idle_s": (0.01, _INT),
}
"""The least and the greatest value of numbers; the greatest are those of Kafka's types."""
_OR_NONE = frozenset({"authorization", "log_config.retention_ms"})
"""Keys that may be None, though it isn't their default."""
_PROCESS_BOUNDS = {"control.port": (0, MAX_PORT), "metrics_port": (0, MAX_PORT)}


def _out_of_bounds(config: object, bounds: Mapping[str, tuple[float, float]]) -> Iterator[Problem]:
    for key, (least, most) in bounds.items():
        value: Any = attrgetter(key)(config)
        if value is None and (key in _OR_NONE or attrgetter(key)(type(config)()) is None):
            continue
        if not (isinstance(value, int | float) and value >= least):
            yield Problem(key, value, f"must be at least {least}")
        elif value > most:
            yield Problem(key, value, f"must be at most {most}")


def _bounds(config: ClusterConfig) -> Iterator[Problem]:
    yield from _out_of_bounds(config, _BOUNDS)
    if config.first_broker_id + config.brokers - 1 > _INT >= config.first_broker_id:
        expected = f"the ids of {config.brokers} brokers are at most {_INT}"
        yield Problem("first_broker_id", config.first_broker_id, expected)
    if config.kafka_version not in KAFKA_VERSIONS:
        expected = f"must be one of {', '.join(KAFKA_VERSIONS)}"
        yield Problem("kafka_version", config.kafka_version, expected)
    policy, policies = config.groups.consumer_migration_policy, list(MigrationPolicy)
    if policy not in policies:
        expected = f"must be one of {', '.join(policies)}"
        yield Problem("groups.consumer_migration_policy", policy, expected)
    least, most = config.groups.min_session_timeout_ms, config.groups.max_session_timeout_ms
    if least > most:
        expected = f"must be at most max_session_timeout_ms, which is {most}"
        yield Problem("groups.min_session_timeout_ms", least, expected)
    if config.default_partitions > config.max_partitions >= 1:
        expected = f"must be at most max_partitions, which is {config.max_partitions}"
        yield Problem("default_partitions", config.default_partitions, expected)
    try:
        validate_settings(settings_of_log(config.log_config))
    except KafkaError as error:
        yield Problem("log_config", ABSENT, error.message)
    if not config.host:
        yield Problem("host", config.host, "must be a name or an address")
    if config.min_insync_replicas > config.brokers >= 1:
        expected = f"must be at most brokers, which is {config.brokers}"
        yield Problem("min_insync_replicas", config.min_insync_replicas, expected)
    default = config.default_replication
    if default is not None and not 1 <= default <= config.brokers:
        expected = f"must be from 1 to brokers, which is {config.brokers}"
        yield Problem("default_replication", default, expected)
    if config.racks and len(config.racks) != config.brokers:
        expected = f"must be one for each of {config.brokers} brokers"
        yield Problem("racks", list(config.racks), expected)


def _topics(config: ClusterConfig) -> Iterator[Problem]:
    names = [topic.name for topic in config.topics]
    yield from _find_duplicates("topics", "name", names)
    for number, topic in enumerate(config.topics):
        place = f"topics[{number}]"
        reason = topic_creation_error(topic.name, names[:number])
        if reason is not None:
            yield Problem(f"{place}.name", ABSENT, reason)
        if topic.partitions < 1:
            yield Problem(f"{place}.partitions", topic.partitions, "must be at least 1")
        if topic.replication is not None and not 1 <= topic.replication <= config.brokers:
            expected = f"must be from 1 to brokers, which is {config.brokers}"
            yield Problem(f"{place}.replication", topic.replication, expected)
        try:
            validate_settings(topic.settings, config.setting)
        except KafkaError as error:
            yield Problem(f"{place}.settings", ABSENT, error.message)


def _listeners(config: ClusterConfig) -> Iterator[Problem]:
    yield from _find_duplicates(
        "listeners", "name", [listener.name for listener in config.listeners]
    )
    used_ports: dict[tuple[str, int], str] = {}
    for number, listener in enumerate(config.all_listeners):
        place = f"listeners[{number}]." if config.listeners else ""
        if not listener.name:
            yield Problem(f"{place}name", listener.name, "a listener has a name")
        if listener.host == "":
            yield Problem(f"{place}host", listener.host, "must be a name or an address")
        told = config.told_host(listener)
        if told and is_anywhere(told):
            expected = (
                "clients can't connect to that: advertised_host (--advertised-host) is the name "
                "that they are given"
            )
            yield Problem(f"{place}host", told, expected)
        elif told and not is_host(told):
            expected = "must be the name or address of a host, without a port"
            yield Problem(f"{place}advertised_host", told, expected)
        last = listener.first_port + config.brokers - 1
        if listener.first_port < 0 or last > MAX_PORT:
            expected = f"a port for each of {config.brokers} brokers is from 0 to {MAX_PORT}"
            yield Problem(f"{place}first_port", listener.first_port, expected)
        for mechanism in listener.sasl:
            if mechanism not in MECHANISMS:
                expected = f"mechanisms are {', '.join(MECHANISMS)}"
                yield Problem(f"{place}sasl", mechanism, expected)
        for broker_id in config.broker_ids if listener.first_port else ():
            at = config.endpoint(listener, broker_id)
            if at in used_ports:
                expected = f"port {at.port} is one of listener {used_ports[at]}, too"
                yield Problem(f"{place}first_port", listener.first_port, expected)
                break
            used_ports[at] = listener.name


def _users(config: ClusterConfig) -> Iterator[Problem]:
    if config.users is None:
        return
    if "" in config.users:
        yield Problem("users", "", "a user has a name")
    if config.listeners and not any(listener.sasl for listener in config.listeners):
        names = ", ".join(config.users)
        yield Problem("users", names, "no listener asks for them: say by which mechanisms (sasl)")


def _find_duplicates(section: str, key: str, values: Sequence[str]) -> Iterable[Problem]:
    counts = Counter(values)
    for number, value in enumerate(values):
        if counts[value] > 1 and value in values[:number]:
            yield Problem(f"{section}[{number}].{key}", value, "is there twice; once is enough")


# The TOML file.


@dataclass(frozen=True)
class ControlConfig:
    """The address of a cluster's control.

    Args:
        port: the port of faults, state and /metrics; 0: the system chooses.
        host: the host.
        token: the token of each request; None: beyond this machine, a new one, which is printed.
    """

    port: int = 9990
    host: str = "127.0.0.1"
    token: str | None = None


@timed_dataclass
class ProcessConfig(ClusterConfig):
    """The configuration of a cluster's process.

    Args:
        control: the address of the control.
        metrics_port: another port for /metrics, on the brokers' host.
        trace: the folder of the trace.
        publish: the prefix of the topics that get the trace's rows.
        faults: a plan of faults.
    """

    control: ControlConfig = field(default_factory=ControlConfig)
    metrics_port: int | None = None
    trace: Path | None = None
    publish: str | None = None
    faults: Path | None = None


def load_config(path: Path) -> ProcessConfig:
    """Read a config.

    Raises:
        ClusterError: the file can't be read, or is invalid: a line for each problem.
    """
    return parse_config(read_document(path), str(path))


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML document; relative paths in it are made to start at its folder.

    Raises:
        ClusterError: the file can't be read.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: can't be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{path}: not a TOML document: {error}") from error
    anchored: dict[str, Any] = _anchored(ProcessConfig, document, path.parent)
    return anchored


def parse_config(document: Mapping[str, Any], source: str) -> ProcessConfig:
    """Make a config of a document.

    Args:
        document: the TOML document.
        source: its name in errors.

    Raises:
        ClusterError: the document is invalid: a line for each problem.
    """
    problems: Sequence[Problem] = ()
    try:
        config = plain_value(ProcessConfig, document)
    except NotPlainError:
        config, problems = _validated(document, source)
    problems = [*problems, *config_problems(config), *_out_of_bounds(config, _PROCESS_BOUNDS)]
    if problems:
        raise ClusterError(_lines(problems, source))
    return config


def _validated(document: Mapping[str, Any], source: str) -> tuple[ProcessConfig, Sequence[Problem]]:
    """Return the config of a document, and what its keys have wrong."""
    from pydantic import ValidationError

    problems = list(_unknown_keys(ProcessConfig, document, ()))
    try:
        text = json.dumps(document, default=str)  # TOML has times, too
        return _adapter().validate_json(text, strict=True), problems
    except ValidationError as error:
        found = [_as_problem(item) for item in error.errors(include_url=False)]
        known = {problem.key for problem in problems}
        problems += [problem for problem in found if problem and problem.key not in known]
        raise ClusterError(_lines(problems, source)) from error


def _lines(problems: Sequence[Problem], source: str) -> str:
    return "\n".join(problem.text(source) for problem in problems)


def _as_problem(item: Any) -> Problem | None:
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return None  # reported already, with the known keys
    key = key_text(item["loc"])
    if item["type"] == "missing":
        return Problem(key, ABSENT, right_value(item))
    if item["type"] in ("dataclass_type", "named_tuple_type", "dict_type"):
        return Problem(key, item["input"], "must be a table of keys")
    return Problem(key, item["input"], right_value(item))


def _unknown_keys(hint: Any, value: Any, location: tuple[int | str, ...]) -> Iterator[Problem]:
    table = _table(hint)
    if table is None:
        return
    if isinstance(value, list):
        for number, element in enumerate(value):
            yield from _unknown_keys(hint, element, (*location, number))
    elif isinstance(value, Mapping):
        hints = typing.get_type_hints(table)
        for key, element in value.items():
            if key in hints:
                yield from _unknown_keys(hints[key], element, (*location, key))
            else:
                yield Problem(key_text((*location, key)), element, no_such_key(key, hints))


def _anchored(hint: Any, value: Any, folder: Path) -> Any:
    """Make the paths in a value start at a folder."""
    if isinstance(value, str) and Path in (hint, *typing.get_args(hint)):
        return str(folder / value)
    table = _table(hint)
    if table is None:
        return value
    if isinstance(value, list):
        return [_anchored(hint, element, folder) for element in value]
    if isinstance(value, Mapping):
        hints = typing.get_type_hints(table)
        return {key: _anchored(hints.get(key), element, folder) for key, element in value.items()}
    return value


def _table(hint: Any) -> Any:
    """Return the class of a table, or of the tables in a list; None: another type."""
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return hint
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is not None:
        found = (_table(argument) for argument in typing.get_args(hint))
        return next((table for table in found if table is not None), None)
    return None


@cache
def _adapter() -> TypeAdapter[ProcessConfig]:
    """Return the validator of a class, made at the first call, as it takes a while."""
    from pydantic import TypeAdapter

    return TypeAdapter(ProcessConfig)
